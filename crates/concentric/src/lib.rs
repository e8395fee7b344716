//! LLM agents as tower service stacks.
//!
//! A model is a [`Service`](https://docs.rs/tower-service) from a [`ChatRequest`] to a
//! [`ChatResponse`], whose body is a stream of [`Event`]s. All behaviour around a model is a
//! [`Layer`](https://docs.rs/tower-layer), including the loop that calls tools:
//!
//! ```
//! # #[cfg(all(feature = "client", feature = "openai", feature = "tools"))]
//! # mod example {
//! use concentric::prelude::*;
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Weather {
//!     /// The city's name.
//!     city: String,
//! }
//!
//! # async fn run() -> Result<(), Error> {
//! let weather = tool("weather", "Reports the weather.", |args: Weather| async move {
//!     format!("Sunny in {}.", args.city)
//! });
//! let agent = ServiceBuilder::new()
//!     // Layers here run once per user turn.
//!     .layer(AgentLayer::new(Toolset::new().tool(weather)))
//!     // Layers here run once per model call.
//!     .layer(OpenAiLayer::new("gpt-5.5", ApiKey::from_env("OPENAI_API_KEY")?))
//!     // Layers here run once per HTTP request to the provider.
//!     .service(HttpClient::new()?);
//! // Erases the type of the stack, for shorter compiler errors.
//! let agent = BoxModel::new(agent);
//!
//! let answer = agent.oneshot(ChatRequest::user("What's the weather in Oslo?")).await?;
//! println!("{}", answer.text().await?);
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! The place of a layer determines when it is called:
//!
#![doc = include_str!("../stack.svg")]
//!
//! The [`prelude`] exports the types that most programs use, the root those that occur in their
//! signatures, and each module one subject. [`agent`] describes the loop, and [`layers`] lists the
//! building blocks of layers and the built-in layers.
//!
//! | feature | module | contains |
//! |---|---|---|
//! | always | the root, [`agent`], [`ask`], [`call`], [`capability`], [`chat`], [`context`], [`describe`], [`durable`], [`event`], [`gate`], [`hooks`], [`id`], [`interrupt`], [`machine`], [`message`], [`service`], [`state`], [`step_gate`], [`store`], [`transcript`] | messages, requests, events, the loop, store traits |
//! | always | [`layers`] | building blocks for layers |
//! | `tools` (default) | `tools` | typed tools and toolsets, gates and approvals |
//! | `agent-tool` | `tools::agent` | agents as tools |
//! | `approval-tokens` | `tools::token` | signed tokens for approvals, for servers that do not store runs |
//! | `lazy` | `tools::lazy` | tools that are offered once the model has found them |
//! | `output` | `tools::output` | typed answers |
//! | `regex` | `tools` | regular expressions in the matchers of tools |
//! | `schema-validation` | `tools` | tools with JSON Schemas of any keyword, such as `pattern` and `$ref` |
//! | `skills` | `tools::skills` | instructions that a model loads when it needs them |
//! | `client` (default) | `providers` | an HTTP client |
//! | `openai` (default) | `providers` | OpenAI chat completions and compatible services |
//! | `responses` | `providers` | OpenAI Responses |
//! | `anthropic` | `providers` | Anthropic Messages |
//! | `gemini` | `providers` | Gemini |
//! | `ollama` | `providers` | Ollama |
//! | `activities` | `providers` | embeddings, images, moderation, speech and transcription at services with OpenAI's API |
//! | `providers` | `providers` | the parts that all provider layers share; enabled by each of them |
//! | `http` | `http` | AG-UI endpoints for agents, and a limit on concurrent runs |
//! | `console` | `http::console` | a console for operators: runs as they go, approvals, stacks; includes `http` |
//! | `openai-server` | `http::openai` | a server for the clients of OpenAI's API; includes `http` |
//! | `ui-messages` | `http::ui_messages` | endpoints for `useChat` of the Vercel AI SDK; includes `http` |
//! | `mcp` | `mcp` | servers of the Model Context Protocol as tools; includes `tools` and `schema-validation` |
//! | `mcp-oauth` | `mcp::oauth` | OAuth 2.1 for MCP servers; includes `mcp` |
//! | `mcp-server` | `mcp::serve` | toolsets as MCP servers; includes `mcp` |
//! | `layers` | [`layers`] | the built-in layers: suspended and detached runs, sessions, budgets, stop conditions, steering, retries, fallbacks, a limit on calls in flight, spans and metrics, stacks from configuration |
//! | `store` | [`store`] | SQLite and in-memory stores for runs, tool effects and decisions |
//! | `postgres` | [`store`] | PostgreSQL store, which several machines share; includes `store` |
//! | `postgres-rustls` | [`store`] | the same over TLS; includes `postgres` |
//! | `redis` | [`store`] | Redis store, which several machines share; includes `store` |
//! | `redis-rustls` | [`store`] | the same over TLS; includes `redis` |
//! | `full` | | all of these |
//! | `tokens-openai` | | exact counts of tokens for OpenAI's models; not in `full`, since its tables take half a minute to build |
//!
//! Features are additive: enabling one does not change behaviour.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub use concentric_core::{
    Agent, AgentLayer, Answer, BoxError, BoxModel, BoxTool, CancelReason, ChatOptions, ChatRequest,
    ChatResponse, Context, Decision, Environment, Error, ErrorKind, Event, EventStream, Finish,
    FinishReason, Hooks, Interrupt, Media, Message, ModelService, NoTools, Outcome, Part, PartKind,
    Plugin, Reply, ResponseHead, Role, Str, System, ToolCall, ToolChoice, ToolOutcome, ToolService,
    ToolSpec, Transcript, Turn, Usage,
    agent::StepGate,
    gate::{Gate, Verdict},
};
#[doc(inline)]
pub use concentric_core::{
    agent, ask, capability, context, describe, durable, gate, hooks, id, interrupt, machine,
    service, state, trace, transcript,
};

#[cfg(feature = "http")]
#[doc(inline)]
pub use concentric_http as http;
#[doc(inline)]
pub use concentric_layers as layers;
#[cfg(feature = "mcp")]
#[doc(inline)]
pub use concentric_mcp as mcp;
#[cfg(feature = "providers")]
#[doc(inline)]
pub use concentric_providers as providers;
#[cfg(feature = "tools")]
#[doc(inline)]
pub use concentric_tools as tools;

pub mod call {
    //! Tool calls, their rounds and their specifications.

    pub use concentric_core::{
        Annotations, Attempts, RoundService, Seal, ToolCall, ToolNameTaken, ToolRound, ToolSpec,
        ToolSpecs, call::*,
    };
}

pub mod chat {
    //! Parts of requests and responses.

    pub use concentric_core::{
        Allowance, Answer, ChatOptions, ChatRequest, ChatResponse, Incomplete, OutputSchema,
        RateLimits, ResponseHead, Resume, ResumePoint, RunOverrides, Stability, System,
        SystemSegment, ToolChoice,
    };
}

pub mod event {
    //! The events of a response body, and errors.

    pub use concentric_core::{
        CancelReason, CustomEvent, Error, ErrorKind, Event, Finish, FinishReason, Outcome, PartEnd,
        Phase, SideEffects, StepFinish, StepStart, SubAgentEvent, ToolCallDelta, ToolCallEvent,
        ToolCallStart, Usage,
    };
}

pub mod message {
    //! Messages and their parts.

    pub use concentric_core::{MessageBuilder, message::*};
}

pub mod step_gate {
    //! Gates that decide whether the next step, round or finish may happen.

    pub use concentric_core::agent::{
        FinishDecision, GateOrder, RoundDecision, StepDecision, StepDraft, StepGate, StepView,
    };
}

pub mod store {
    //! Traits for persistent state, and their implementations.
    //!
    //! | trait | stores |
    //! |---|---|
    //! | [`RunStore`] | interrupted runs, and runs whose process died |
    //! | [`Ledger`] | tool effects, so that no call is executed twice |
    //! | [`Decisions`] | decisions that also hold for later calls |
    //! | [`Once`] | used approval tokens |
    //! | [`CacheStore`] | answers and results of tools, for other processes |
    //!
    //! The feature `store` adds `SqliteStore`, a file shared by all processes of a machine, and
    //! `MemoryStore` for tests; the feature `postgres` adds `PostgresStore`, a database shared by several
    //! machines, and the feature `redis` adds `RedisStore`. Most programs only pass a store to a layer.
    //!
    //! A run belongs to a [`Tenant`]. The host inserts it into the extensions of a request after it
    //! has authenticated the caller.

    pub use concentric_core::store::*;
    #[cfg(feature = "store")]
    pub use concentric_store::*;
}

/// The common types of programs that build agents.
pub mod prelude {
    #[cfg(feature = "http")]
    pub use concentric_http::ag_ui::AgUiLayer;
    #[cfg(feature = "providers")]
    pub use concentric_providers::ApiKey;
    #[cfg(feature = "client")]
    pub use concentric_providers::HttpClient;
    #[cfg(feature = "openai")]
    pub use concentric_providers::OpenAiLayer;
    #[cfg(feature = "tools")]
    pub use concentric_tools::{
        Approval, NoArguments, Toolset,
        tool::{tool, tool_with_context},
    };

    #[cfg(feature = "layers")]
    pub use crate::layers::SuspendLayer;
    #[cfg(feature = "store")]
    pub use crate::store::SqliteStore;

    pub use concentric_core::{
        AgentLayer, BoxModel, ChatRequest, ChatResponse, Error, Event, EventStream,
    };
    pub use concentric_layers::{
        RequestDefaultsLayer, Transform,
        from_fn::{Next, from_fn},
    };
}

/// Compiles the examples of the README and of `docs`.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/approvals.md")]
#[doc = include_str!("../../../docs/extending.md")]
#[doc = include_str!("../../../docs/porting/alloy.md")]
#[doc = include_str!("../../../docs/porting/crux.md")]
#[doc = include_str!("../../../docs/porting/hpd.md")]
#[doc = include_str!("../../../docs/porting/tanstack.md")]
struct Readme;
