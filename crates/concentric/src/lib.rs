//! LLM agents as tower service stacks.
//!
//! This crate gathers the others, by feature; [`concentric_core`] explains the idea and is
//! re-exported whole.
//!
//! | feature | module | holds |
//! |---|---|---|
//! | always | the root, [`layers`], [`store`] | messages, requests, events, the loop, building blocks for layers, the traits of stores |
//! | `tools` (default) | [`tools`] | typed tools and sets of them; approvals, hooks, skills, lazy tools, agents as tools, typed answers |
//! | `providers` (default) | [`providers`] | OpenAI chat completions and servers that speak them, OpenAI Responses, Anthropic, Gemini, Ollama, an HTTP client |
//! | `http` | [`http`] | agents as AG-UI endpoints |
//! | `layers` | [`layers`] | the built-in layers: suspended and detached runs, sessions, hooks, budgets, stop conditions, steering, a limit on calls in flight |
//! | `store` | [`store`] | what runs, effects and decisions are kept in: a SQLite file, or memory |
//!
//! Features add API and change nothing else.

pub use concentric_core::*;

#[cfg(feature = "http")]
pub use concentric_http as http;
#[cfg(feature = "providers")]
pub use concentric_providers as providers;
#[cfg(feature = "tools")]
pub use concentric_tools as tools;

/// Building blocks for layers, and the built-in ones.
pub mod layers {
    pub use concentric_core::layers::*;
    #[cfg(feature = "layers")]
    pub use concentric_layers::*;
}

/// What outlives a process, as traits, and the stores that have them.
pub mod store {
    pub use concentric_core::store::*;
    #[cfg(feature = "store")]
    pub use concentric_store::*;
}

/// What most files that build an agent use.
pub mod prelude {
    #[cfg(feature = "http")]
    pub use concentric_http::ag_ui::AgUiLayer;
    #[cfg(feature = "providers")]
    pub use concentric_providers::{
        AnthropicLayer, ApiKey, GeminiLayer, HttpClient, OllamaLayer, OpenAiLayer,
        OpenAiResponsesLayer,
    };
    #[cfg(feature = "tools")]
    pub use concentric_tools::{
        Approval, Gate, Json, Siblings, ToolError, Toolset, Verdict, agent_tool, gate_fn, tool,
    };

    #[cfg(feature = "layers")]
    pub use crate::layers::SuspendLayer;
    #[cfg(feature = "store")]
    pub use crate::store::SqliteStore;

    pub use crate::layers::{DefaultsLayer, Next, NextTool, from_fn, tool_from_fn};
    pub use concentric_core::{
        AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
        Event, EventStream, FinishReason, Interrupt, Outcome, Reply, ToolCall, ToolOutcome,
        Transcript, Usage,
    };
}

/// The code of the README compiles.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
