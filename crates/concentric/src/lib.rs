//! LLM agents as tower service stacks.
//!
//! A model is a [`Service`](https://docs.rs/tower-service) from a [`ChatRequest`] to a
//! [`ChatResponse`], whose body is a stream of [`Event`]s. Everything that observes or changes it is a
//! [`Layer`](https://docs.rs/tower-layer), and so is the loop between a model and its tools:
//!
//! ```
//! # #[cfg(all(feature = "tools", feature = "providers"))]
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
//!
//! let answer = agent.oneshot(ChatRequest::user("What's the weather in Oslo?")).await?;
//! println!("{}", answer.text().await?);
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! Start with [`prelude`], which has what most programs need; [`agent`] describes the loop, and
//! [`layers`] the layers that exist and how to write one.
//!
//! | feature | module | contains |
//! |---|---|---|
//! | always | the root, [`layers`], [`store`] | messages, requests, events, the loop, building blocks for layers, the traits of stores |
//! | `tools` (default) | `tools` | typed tools and sets of them; approvals, skills, lazy tools, agents as tools, typed answers |
//! | `providers` (default) | `providers` | OpenAI chat completions and compatible servers, OpenAI Responses, Anthropic, Gemini, Ollama, an HTTP client |
//! | `http` | `http` | agents as AG-UI endpoints, and a limit on the runs of a server |
//! | `layers` | [`layers`] | the built-in layers: suspended and detached runs, sessions, hooks, budgets, stop conditions, steering, a limit on calls in flight |
//! | `store` | [`store`] | a SQLite file, or memory, for runs, effects and decisions |
//!
//! Features add API and change nothing else.

pub use concentric_core::*;

#[cfg(feature = "http")]
#[doc(inline)]
pub use concentric_http as http;
#[cfg(feature = "providers")]
#[doc(inline)]
pub use concentric_providers as providers;
#[cfg(feature = "tools")]
#[doc(inline)]
pub use concentric_tools as tools;

pub mod layers {
    //! Building blocks for layers, and the built-in layers.
    //!
    //! | to | use | cost |
    //! |---|---|---|
    //! | observe events, or change each where it is | [`inspect_events`], [`map_events()`] | none |
    //! | drop, add, hold back or refuse events | a [`Transform`] | a box per call |
    //! | change a request, skip a call, call again | [`from_fn()`], [`tool_from_fn`] | three boxes per call, an indirect call per event |
    //! | do all of that at no cost, or have a readiness of your own | a `tower::Layer` and a `tower::Service` | what you write |
    //!
    //! [`DefaultsLayer`] adds the system prompt and options, [`CommitLayer`] decides when an answer is
    //! shown, [`on_end()`] reports once how it ended, [`DebugLayer`] logs what passes a place.
    //!
    //! ```
    //! use concentric::{
    //!     ChatRequest,
    //!     layers::{Next, from_fn},
    //! };
    //!
    //! // Once per run outside `AgentLayer`, once per model call inside it.
    //! let brief = from_fn(async |mut request: ChatRequest, mut next: Next| {
    //!     request.options_mut().max_output_tokens = Some(500);
    //!     next.run(request).await
    //! });
    //! # let _ = brief;
    //! ```
    //!
    //! The feature `layers` adds the built-in layers, each in a module of its own:
    //!
    //! | layer | module | does |
    //! |---|---|---|
    //! | `BudgetLayer` | `budget` | limits what runs spend: money, tokens, calls, time |
    //! | `DetachLayer` | `detach` | completes a run whose consumer leaves |
    //! | `Hooks` | `hooks` | calls one value at each point of runs, model calls and tool calls |
    //! | `InFlightLimitLayer` | `in_flight` | limits calls until their bodies end |
    //! | `Sessions` | `session` | keeps a conversation, one turn at a time |
    //! | `Steering` | `steering` | adds messages to a run in progress |
    //! | `StopWhen`, `LoopDetector` and others | `stop` | end a run, or keep it from ending |
    //! | `SuspendLayer` | `suspend` | stores runs that wait, and resumes those whose process died |
    //!
    //! tower's own layers work on models and agents, too, and end where the stream begins: a
    //! `ConcurrencyLimit` counts a call until its first token, and a `Timeout` measures the time to it. The
    //! built-in layers hold until the last token.

    pub use concentric_core::layers::*;
    #[cfg(feature = "layers")]
    pub use concentric_layers::*;
}

pub mod store {
    //! What outlives a process, as traits, and the stores that implement them.
    //!
    //! | trait | keeps |
    //! |---|---|
    //! | [`RunStore`] | runs that wait for somebody, and runs whose process died |
    //! | [`Ledger`] | the effects of tools, so that a call is not executed twice |
    //! | [`Decisions`] | approvals that hold for later calls |
    //! | [`Once`] | which approval tokens are used |
    //!
    //! The feature `store` adds `SqliteStore`, one file that all processes of a machine share, and
    //! `MemoryStore` for tests. Most programs pass a store to a layer and call nothing of it.
    //!
    //! Runs are those of a [`Tenant`], which the host puts into the extensions of a request after it has
    //! authenticated the caller.

    pub use concentric_core::store::*;
    #[cfg(feature = "store")]
    pub use concentric_store::*;
}

/// What most programs that build an agent use, by one `use concentric::prelude::*`.
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
