//! The known services, in one table.
//!
//! Each profile lists its differences from a base profile. Words in italics name the page of the
//! service's own documentation that is the source.

use super::{Prefill, Profile, Reasoning, Turns};
use crate::{Capabilities, Sources, Timeouts, history::IdRules};
use std::time::Duration;

/// Base64 data or a URL.
const HERE_OR_URL: Sources = Sources {
    id: false,
    ..Sources::ALL
};

/// The capabilities of a service for text and images.
const IMAGES: Capabilities = Capabilities {
    images: HERE_OR_URL,
    audio: Sources::NONE,
    files: Sources::NONE,
    ..Capabilities::all()
};

/// The capabilities of a service for text.
const TEXT: Capabilities = Capabilities {
    images: Sources::NONE,
    images_in_results: false,
    ..IMAGES
};

/// The ids of calls that `OpenAI` accepts.
const SHORT: IdRules = IdRules {
    length: 40,
    exact: false,
    punctuation: "_-",
};

impl Profile {
    pub(super) const GENERIC: Self = Self {
        name: "",
        provider: "",
        base_url: "",
        hosts: &[],
        key_env: &[],
        key_optional: true,
        key_header: "authorization",
        instructions: "system",
        max_tokens: "max_tokens",
        seed: "seed",
        required: "required",
        stream_options: true,
        metadata: false,
        reasoning: Reasoning::No,
        refusals: false,
        empty_content: false,
        turns: Turns::Any,
        user_after_tool: true,
        system_after_answer: true,
        prefill: Prefill::Plain,
        document_url: false,
        strict_subset: false,
        reasoning_apart: false,
        activities: &[
            "embeddings",
            "images",
            "moderation",
            "speech",
            "transcription",
        ],
        timeouts: Timeouts::new(),
        capabilities: Capabilities::all(),
        ids: IdRules::ANY,
    };

    /// A service for text and images that requires a key.
    const HOSTED: Self = Self {
        key_optional: false,
        capabilities: IMAGES,
        ..Self::GENERIC
    };

    /// OpenAI's own service.
    ///
    /// Audio is sent as base64 data, and documents as base64 data or uploaded files; at most four
    /// stop sequences are allowed (*Create chat completion*). `strict` accepts a subset of JSON
    /// Schema (*Structured Outputs*). An id of a call has at most forty characters.
    pub const OPENAI: Self = Self {
        name: "openai",
        provider: "openai",
        base_url: "https://api.openai.com/v1",
        hosts: &["api.openai.com"],
        key_env: &["OPENAI_API_KEY"],
        max_tokens: "max_completion_tokens",
        metadata: true,
        refusals: true,
        strict_subset: true,
        capabilities: Capabilities {
            images: HERE_OR_URL,
            audio: Sources::BASE64,
            files: Sources {
                url: false,
                ..Sources::ALL
            },
            stop: 4,
            ..Capabilities::all()
        },
        ids: SHORT,
        ..Self::HOSTED
    };

    /// Azure `OpenAI`, with the base URL `https://<resource>.openai.azure.com/openai/v1`.
    ///
    /// The key is sent in a separate header, and chat completions do not accept documents (*Azure
    /// `OpenAI` REST API reference*).
    pub const AZURE: Self = Self {
        name: "azure",
        provider: "azure.ai.openai",
        base_url: "",
        hosts: &["openai.azure.com", "services.ai.azure.com"],
        key_env: &["AZURE_OPENAI_API_KEY"],
        key_header: "api-key",
        capabilities: Capabilities {
            files: Sources::NONE,
            ..Self::OPENAI.capabilities
        },
        ..Self::OPENAI
    };

    /// Groq.
    ///
    /// `max_tokens` is deprecated, no model supports penalties, and at most four stop sequences are
    /// allowed (*API reference: Create chat completion*); an output schema is not supported with
    /// tools (*Structured Outputs*).
    pub const GROQ: Self = Self {
        name: "groq",
        activities: &["speech", "transcription"],
        provider: "groq",
        base_url: "https://api.groq.com/openai/v1",
        hosts: &["api.groq.com"],
        key_env: &["GROQ_API_KEY"],
        max_tokens: "max_completion_tokens",
        capabilities: Capabilities {
            output_schema_with_tools: false,
            penalties: false,
            stop: 4,
            ..IMAGES
        },
        ..Self::HOSTED
    };

    /// Mistral.
    ///
    /// Rejects unknown fields, call ids other than nine letters and digits, a user message directly
    /// after a tool message, a system message directly after a tool or assistant message, and a
    /// final assistant message without `prefix`. Has its own fields for the seed and for documents
    /// and its own value for a required call, and sends reasoning in the content (*Chat completion
    /// API; Document understanding; Reasoning*).
    pub const MISTRAL: Self = Self {
        name: "mistral",
        provider: "mistral_ai",
        base_url: "https://api.mistral.ai/v1",
        hosts: &["api.mistral.ai"],
        key_env: &["MISTRAL_API_KEY"],
        seed: "random_seed",
        required: "any",
        stream_options: false,
        user_after_tool: false,
        system_after_answer: false,
        prefill: Prefill::Field("prefix"),
        reasoning: Reasoning::Content,
        document_url: true,
        capabilities: Capabilities {
            images: HERE_OR_URL,
            audio: HERE_OR_URL,
            ..Capabilities::all()
        },
        ids: IdRules {
            length: 9,
            exact: true,
            punctuation: "",
        },
        ..Self::HOSTED
    };

    /// `DeepSeek`.
    ///
    /// Requires the reasoning of messages with tool calls (*Thinking Mode*), supports JSON output
    /// without a schema only (*JSON Output*), and has neither a seed nor `parallel_tool_calls`; at
    /// most sixteen stop sequences are allowed (*Create Chat Completion*).
    pub const DEEPSEEK: Self = Self {
        name: "deepseek",
        activities: &[],
        provider: "deepseek",
        base_url: "https://api.deepseek.com",
        hosts: &["api.deepseek.com"],
        key_env: &["DEEPSEEK_API_KEY"],
        reasoning: Reasoning::Demanded("reasoning_content"),
        empty_content: true,
        // The service sends comments while a request is queued, and closes one that is not complete
        // after 30 minutes (*Rate Limit*).
        timeouts: Timeouts {
            idle: Some(Duration::from_mins(5)),
            progress: Some(Duration::from_mins(30)),
            ..Timeouts::new()
        },
        capabilities: Capabilities {
            parallel_tool_calls: false,
            output_schema: false,
            output_schema_with_tools: false,
            seed: false,
            stop: 16,
            ..TEXT
        },
        ..Self::HOSTED
    };

    /// `DeepSeek`'s beta, which supports prefill (*Chat Prefix Completion*).
    pub const DEEPSEEK_BETA: Self = Self {
        name: "deepseek-beta",
        base_url: "https://api.deepseek.com/beta",
        prefill: Prefill::Field("prefix"),
        ..Self::DEEPSEEK
    };

    /// xAI.
    ///
    /// `max_tokens` is deprecated (*Chat completions*). Reasoning is not part of the output tokens,
    /// but of the total (*Models and Pricing*).
    pub const XAI: Self = Self {
        name: "xai",
        activities: &["images"],
        provider: "x_ai",
        base_url: "https://api.x.ai/v1",
        hosts: &["api.x.ai"],
        key_env: &["XAI_API_KEY"],
        max_tokens: "max_completion_tokens",
        ..Self::HOSTED
    };

    /// `OpenRouter`.
    ///
    /// Documents may be at a URL (*PDF Inputs*), audio may not (*Audio Inputs*).
    /// `reasoning_details` are sent back unchanged (*Preserving Reasoning*). Ids of calls are
    /// forwarded to upstream providers, so they use a form that all of these accept.
    pub const OPENROUTER: Self = Self {
        name: "openrouter",
        provider: "openrouter",
        base_url: "https://openrouter.ai/api/v1",
        hosts: &["openrouter.ai"],
        key_env: &["OPENROUTER_API_KEY"],
        // The service sends comments while a request is queued (*Streaming*).
        timeouts: Timeouts {
            idle: Some(Duration::from_mins(5)),
            ..Timeouts::new()
        },
        capabilities: Capabilities {
            images: HERE_OR_URL,
            audio: Sources::BASE64,
            files: HERE_OR_URL,
            ..Capabilities::all()
        },
        ids: SHORT,
        ..Self::HOSTED
    };

    /// Together AI.
    ///
    /// `parallel_tool_calls` is not supported (*Create Chat Completion*).
    pub const TOGETHER: Self = Self {
        name: "together",
        provider: "together_ai",
        base_url: "https://api.together.xyz/v1",
        hosts: &["api.together.xyz", "api.together.ai"],
        key_env: &["TOGETHER_API_KEY"],
        capabilities: Capabilities {
            parallel_tool_calls: false,
            audio: HERE_OR_URL,
            ..IMAGES
        },
        ..Self::HOSTED
    };

    /// Perplexity's Sonar.
    ///
    /// After the system messages, user and assistant messages must alternate, and the last one must
    /// be from the user; tools, a seed and stop sequences are not supported. Deep research counts
    /// its reasoning in neither the output nor the total (*Sonar API: Chat Completions*).
    pub const PERPLEXITY: Self = Self {
        name: "perplexity",
        provider: "perplexity",
        base_url: "https://api.perplexity.ai",
        hosts: &["api.perplexity.ai"],
        key_env: &["PERPLEXITY_API_KEY", "PPLX_API_KEY"],
        turns: Turns::Strict,
        reasoning_apart: true,
        capabilities: Capabilities {
            tools: false,
            tool_choice: false,
            parallel_tool_calls: false,
            output_schema_with_tools: false,
            prefill: false,
            seed: false,
            stop: 0,
            ..IMAGES
        },
        ..Self::HOSTED
    };

    /// Cerebras.
    ///
    /// Rejects penalties and `parallel_tool_calls` (*`OpenAI` Compatibility*), and an output schema
    /// with tools (*Structured Outputs*).
    pub const CEREBRAS: Self = Self {
        name: "cerebras",
        activities: &[],
        provider: "cerebras",
        base_url: "https://api.cerebras.ai/v1",
        hosts: &["api.cerebras.ai"],
        key_env: &["CEREBRAS_API_KEY"],
        max_tokens: "max_completion_tokens",
        capabilities: Capabilities {
            parallel_tool_calls: false,
            output_schema_with_tools: false,
            penalties: false,
            ..TEXT
        },
        ..Self::HOSTED
    };

    /// Moonshot AI (Kimi).
    ///
    /// A forced tool choice is not supported, since most models think (*Tool Use*). The service
    /// requires their reasoning (*Thinking Models*), supports JSON output without a schema only,
    /// accepts images only as base64 data (*Vision*), and continues a message with `partial`
    /// (*Partial Mode*). `max_tokens` is deprecated, at most five stop sequences are allowed, and
    /// neither a seed nor `parallel_tool_calls` is supported (*Create Chat Completion*).
    pub const MOONSHOT: Self = Self {
        name: "moonshot",
        provider: "moonshot_ai",
        base_url: "https://api.moonshot.ai/v1",
        hosts: &["api.moonshot.ai", "api.moonshot.cn"],
        key_env: &["MOONSHOT_API_KEY", "MOONSHOTAI_API_KEY"],
        max_tokens: "max_completion_tokens",
        reasoning: Reasoning::Demanded("reasoning_content"),
        prefill: Prefill::Field("partial"),
        capabilities: Capabilities {
            tool_choice: false,
            parallel_tool_calls: false,
            output_schema: false,
            output_schema_with_tools: false,
            images: Sources::BASE64,
            seed: false,
            stop: 5,
            ..IMAGES
        },
        ..Self::HOSTED
    };

    /// Z.ai.
    ///
    /// The tool choice is always `auto`, a single stop sequence is allowed, JSON output has no
    /// schema, and neither penalties nor a seed are supported (*Chat Completion*); reasoning is
    /// sent back (*Thinking Mode*).
    pub const ZAI: Self = Self {
        name: "zai",
        provider: "z_ai",
        base_url: "https://api.z.ai/api/paas/v4",
        hosts: &["api.z.ai", "open.bigmodel.cn"],
        key_env: &["ZAI_API_KEY", "Z_AI_API_KEY"],
        reasoning: Reasoning::Field("reasoning_content"),
        capabilities: Capabilities {
            tool_choice: false,
            parallel_tool_calls: false,
            output_schema: false,
            output_schema_with_tools: false,
            penalties: false,
            seed: false,
            stop: 1,
            ..IMAGES
        },
        ..Self::HOSTED
    };

    /// Hugging Face's router to other services (*Inference Providers: Chat Completion*).
    pub const HUGGINGFACE: Self = Self {
        name: "huggingface",
        provider: "huggingface",
        base_url: "https://router.huggingface.co/v1",
        hosts: &["router.huggingface.co"],
        key_env: &["HF_TOKEN"],
        ..Self::HOSTED
    };

    /// Fireworks AI, to which reasoning is sent back (*Reasoning*).
    pub const FIREWORKS: Self = Self {
        name: "fireworks",
        provider: "fireworks_ai",
        base_url: "https://api.fireworks.ai/inference/v1",
        hosts: &["api.fireworks.ai"],
        key_env: &["FIREWORKS_API_KEY"],
        reasoning: Reasoning::Field("reasoning_content"),
        ..Self::HOSTED
    };

    /// Gemini's chat completions endpoint.
    ///
    /// Media are sent as base64 data, and a call is sent back with its thought signature
    /// (`extra_content`) (*`OpenAI` compatibility; Thought signatures*); at most five stop
    /// sequences are allowed (*`GenerationConfig`*).
    pub const GEMINI: Self = Self {
        name: "gemini",
        provider: "gcp.gemini",
        base_url: "https://generativelanguage.googleapis.com/v1beta/openai",
        hosts: &["generativelanguage.googleapis.com"],
        key_env: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        capabilities: Capabilities {
            images: Sources::BASE64,
            audio: Sources::BASE64,
            stop: 5,
            ..IMAGES
        },
        ..Self::HOSTED
    };

    /// llama.cpp's server.
    ///
    /// The model's template formats the messages, and many templates require roles to alternate. A
    /// schema becomes a grammar, which excludes tools (*llama-server README; Function calling*).
    pub const LLAMA_CPP: Self = Self {
        name: "llama.cpp",
        provider: "llama.cpp",
        base_url: "http://localhost:8080/v1",
        key_env: &["LLAMA_API_KEY"],
        reasoning: Reasoning::Field("reasoning_content"),
        turns: Turns::Merged,
        capabilities: Capabilities {
            output_schema_with_tools: false,
            audio: Sources::BASE64,
            ..IMAGES
        },
        ..Self::GENERIC
    };

    /// vLLM, which continues a final assistant message on request (*`OpenAI`-Compatible Server*),
    /// and accepts its reasoning (*Reasoning Outputs*).
    pub const VLLM: Self = Self {
        name: "vllm",
        provider: "vllm",
        base_url: "http://localhost:8000/v1",
        key_env: &["VLLM_API_KEY"],
        reasoning: Reasoning::Field("reasoning"),
        prefill: Prefill::Continue,
        capabilities: Capabilities {
            audio: HERE_OR_URL,
            ..IMAGES
        },
        ..Self::GENERIC
    };

    /// Ollama's chat completions endpoint; for the native API, see [`ollama`](crate::ollama).
    ///
    /// A tool choice is not supported, and images are sent as base64 data (*`OpenAI`
    /// compatibility*); a schema becomes a grammar, which excludes tools.
    pub const OLLAMA: Self = Self {
        name: "ollama",
        provider: "ollama",
        base_url: "http://localhost:11434/v1",
        hosts: &["ollama.com", "localhost:11434", "127.0.0.1:11434"],
        key_env: &["OLLAMA_API_KEY"],
        reasoning: Reasoning::Field("reasoning"),
        capabilities: Capabilities {
            tool_choice: false,
            parallel_tool_calls: false,
            output_schema_with_tools: false,
            images: Sources::BASE64,
            ..IMAGES
        },
        ..Self::GENERIC
    };

    /// LM Studio: as with llama.cpp, the model's template formats the messages; images are sent as
    /// base64 data (*`OpenAI` Compatibility Endpoints*).
    pub const LM_STUDIO: Self = Self {
        name: "lmstudio",
        provider: "lmstudio",
        base_url: "http://localhost:1234/v1",
        key_env: &["LM_API_TOKEN"],
        turns: Turns::Merged,
        capabilities: Capabilities {
            images: Sources::BASE64,
            ..IMAGES
        },
        ..Self::GENERIC
    };

    /// The known services.
    pub const ALL: &'static [Self] = &[
        Self::OPENAI,
        Self::AZURE,
        Self::GROQ,
        Self::MISTRAL,
        Self::DEEPSEEK,
        Self::DEEPSEEK_BETA,
        Self::XAI,
        Self::OPENROUTER,
        Self::TOGETHER,
        Self::PERPLEXITY,
        Self::CEREBRAS,
        Self::MOONSHOT,
        Self::ZAI,
        Self::HUGGINGFACE,
        Self::FIREWORKS,
        Self::GEMINI,
        Self::LLAMA_CPP,
        Self::VLLM,
        Self::OLLAMA,
        Self::LM_STUDIO,
    ];
}
