use crate::history::IdRules;
use concentric_core::Str;

/// Where a server that speaks chat completions differs from OpenAI's.
///
/// [`OpenAiLayer::compatible`](super::OpenAiLayer::compatible) knows the larger services by their
/// host; for others, say it with [`OpenAiLayer::compat`](super::OpenAiLayer::compat).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compat {
    /// The provider's name (`gen_ai.provider.name`).
    pub provider: Str,
    /// The field for the most tokens to write: `max_completion_tokens`, or `max_tokens`.
    pub max_tokens: Str,
    /// The field for the seed.
    pub seed: Str,
    /// Whether a stream must be asked for its usage (`stream_options`).
    pub stream_options: bool,
    /// Whether metadata is sent.
    pub metadata: bool,
    /// The header that the key goes into: `authorization`, with `Bearer` before it, or another,
    /// without.
    pub key_header: Str,
    /// The field of an assistant's message in which the server wants its reasoning back, if it does.
    pub reasoning: Option<Str>,
    pub(super) ids: IdRules,
}

impl Compat {
    /// OpenAI's own service.
    pub const fn openai() -> Self {
        Self {
            provider: Str::from_static("openai"),
            max_tokens: Str::from_static("max_completion_tokens"),
            seed: Str::from_static("seed"),
            stream_options: true,
            metadata: true,
            key_header: Str::from_static("authorization"),
            reasoning: None,
            ids: IdRules::ANY,
        }
    }

    /// A server of which nothing else is known.
    pub fn generic(provider: impl Into<Str>) -> Self {
        Self {
            provider: provider.into(),
            max_tokens: Str::from_static("max_tokens"),
            metadata: false,
            ..Self::openai()
        }
    }

    /// What is known of the server at `host`.
    pub(crate) fn of_host(host: &str) -> Self {
        const REASONING: Option<&str> = Some("reasoning_content");
        const KNOWN: [(&str, &str, Option<&str>); 12] = [
            ("api.deepseek.com", "deepseek", REASONING),
            ("api.groq.com", "groq", None),
            ("api.mistral.ai", "mistral_ai", None),
            ("api.moonshot.ai", "moonshot_ai", REASONING),
            ("api.moonshot.cn", "moonshot_ai", REASONING),
            ("api.perplexity.ai", "perplexity", None),
            ("api.together.xyz", "together_ai", None),
            ("api.x.ai", "x_ai", None),
            ("api.z.ai", "z_ai", REASONING),
            ("generativelanguage.googleapis.com", "gcp.gemini", None),
            ("openai.azure.com", "azure.ai.openai", None),
            ("openrouter.ai", "openrouter", None),
        ];
        if host == "api.openai.com" {
            return Self::openai();
        }
        let known = KNOWN.iter().find(|(name, ..)| {
            host.strip_suffix(name)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        });
        let Some(&(_, provider, reasoning)) = known else {
            return Self::generic(host);
        };
        let mut compat = Self::generic(Str::from_static(provider));
        compat.reasoning = reasoning.map(Str::from_static);
        match provider {
            "azure.ai.openai" => {
                compat.max_tokens = Self::openai().max_tokens;
                compat.metadata = true;
                compat.key_header = Str::from_static("api-key");
            }
            "mistral_ai" => {
                // It refuses fields that it does not know.
                compat.seed = Str::from_static("random_seed");
                compat.stream_options = false;
                compat.ids = IdRules {
                    length: 9,
                    exact: true,
                    punctuation: "",
                };
            }
            _ => {}
        }
        compat
    }
}
