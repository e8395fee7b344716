//! Building blocks for layers, and the built-in layers of Concentric.
//!
//! # Building blocks
//!
//! | to | use | cost |
//! |---|---|---|
//! | observe or map single events | [`inspect_events`], [`map_events()`] | none |
//! | observe the calls of any service | [`observe()`] | none |
//! | drop, add, delay or reject events | a [`Transform`] | one box per call |
//! | change a request, skip a call, repeat a call | [`from_fn()`], [`tool_from_fn`] | three boxes per call, one indirect call per event |
//! | do any of these without overhead, or control readiness | a [`Layer`] and a [`Service`] | none |
//!
//! [`RequestDefaultsLayer`] adds a system prompt and options, [`CommitLayer`] sets the commit point of a response,
//! [`on_end()`] reports the end of a response once, and [`DebugLayer`] logs requests and events.
//!
//! All of them forward readiness, and work outside and inside the loop. They do not require `Clone`, `Send`
//! or `'static` of the inner service, except [`from_fn()`] and [`tool_from_fn`], which erase its type.
//!
//! ```
//! use concentric_core::ChatRequest;
//! use concentric_layers::{Next, from_fn};
//!
//! // Once per run outside `AgentLayer`, once per model call inside it.
//! let brief = from_fn(async |mut request: ChatRequest, mut next: Next| {
//!     request.options_mut().max_output_tokens = Some(500);
//!     next.run(request).await
//! });
//! # let _ = brief;
//! ```
//!
//! # Built-in layers
//!
//! Each has a feature and a module of its own. None is enabled by default; `full` enables all, as does the
//! feature `layers` of `concentric`.
//!
//! | layer | feature | purpose |
//! |---|---|---|
//! | `BudgetPlugin` | `budget` | limits the cost, tokens, calls and time of runs |
//! | `ClearToolResultsLayer` | `clear-results` | sends placeholders for old results of tools |
//! | `CompactionLayer` | `compaction` | summarises the older part of a conversation |
//! | `Registry` | `config` | builds agents from JSON and TOML |
//! | `CircuitBreakerLayer` | `circuit-breaker` | rejects model calls while the model fails |
//! | `ConversationLayer` | `conversation` | keeps the history of conversations in a store |
//! | `DetachLayer` | `detach` | completes a run after its consumer has disconnected |
//! | `DurableLayer`, `DurableTools` | `durable` | have model calls and rounds recorded by an engine that replays runs |
//! | `DynamicMemoryLayer` | `memory` | recalls memories of earlier runs, and captures each turn |
//! | `Envelopes` | `envelope` | numbers and correlates the events of a run |
//! | `FallbackLayer` | `fallback` | calls other models in place of one that fails |
//! | `GuardLayer` | `guard` | removes personal data, credentials and other texts from inputs and answers |
//! | `GuardrailLayer` | `guardrail` | has inputs and answers judged by a classifier |
//! | `InFlightLimitLayer` | `in-flight` | limits calls until their bodies end |
//! | `LogLayer` | `log` | logs runs, model calls and tool calls |
//! | `Otel` | `otel` | records spans and metrics of OpenTelemetry |
//! | `RateLimitLayer` | `rate-limit` | keeps model calls within a quota of requests and tokens |
//! | `ResponseCacheLayer` | `response-cache` | answers repeated requests from earlier answers, and shares concurrent calls |
//! | `RetryModel` | `retry` | repeats model calls, as a policy for tower's retry layer |
//! | `MakeSession` | `session` | keeps a conversation, with one turn at a time |
//! | `StaticMemoryLayer` | `static-memory` | adds documents to the system prompt |
//! | `Steering` | `steering` | adds messages to a run in progress |
//! | `StopWhen`, `LoopDetector` and others in `stop` | `stop` | end a run, or continue it |
//! | `SuspendLayer` | `suspend` | persists interrupted runs, and resumes runs whose process died |
//! | `TokenCounter`, `Estimator`, `BpeCounter` in `tokens` | `tokens`, `tokens-openai` | count the tokens of requests |
//! | `ToolCacheLayer` | `tool-cache` | answers repeated tool calls from earlier results |
//! | `TrimLayer` | `trim` | sends the newest turns of a conversation |
//!
//! The page `order` has their recommended order in one stack.
//!
//! Functions of the application that a layer calls run within the call, and under no lock of the layer. A panic
//! of one unwinds to the caller, as a panic of an inner service does, and the layer works afterwards; a loop around
//! it fails its run. Guards, caches, memories, redaction and the hooks of compaction catch it instead, since they
//! have a safe result; their pages state it.
//!
//! tower's own layers work with models and agents, but only until the response future resolves: a
//! `ConcurrencyLimit` counts a call until its first token, and a `Timeout` limits the time to it. The layers
//! here cover the body as well, up to the last token.
//!
//! [`Layer`]: https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html
//! [`Service`]: https://docs.rs/tower-service/0.3/tower_service/trait.Service.html

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
#[cfg(feature = "budget")]
pub mod budget;
#[cfg(any(feature = "circuit-breaker", feature = "retry"))]
mod by_key;
#[cfg(any(feature = "response-cache", feature = "tool-cache"))]
mod caching;
#[cfg(any(feature = "log", feature = "otel"))]
mod capture;
#[cfg(feature = "circuit-breaker")]
pub mod circuit_breaker;
#[cfg(feature = "clear-results")]
pub mod clear_results;
pub mod commit;
#[cfg(feature = "compaction")]
pub mod compaction;
#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "conversation")]
pub mod conversation;
pub mod debug;
pub mod defaults;
#[cfg(feature = "detach")]
pub mod detach;
#[cfg(feature = "durable")]
pub mod durable;
#[cfg(any(feature = "conversation", feature = "session"))]
mod end;
#[cfg(feature = "envelope")]
pub mod envelope;
#[cfg(feature = "fallback")]
pub mod fallback;
#[cfg(any(feature = "memory", feature = "static-memory"))]
mod frame;
pub mod from_fn;
#[cfg(feature = "guard")]
pub mod guard;
#[cfg(feature = "guardrail")]
pub mod guardrail;
#[cfg(feature = "in-flight")]
pub mod in_flight;
#[cfg(any(feature = "durable", feature = "response-cache"))]
mod joined;
#[cfg(any(feature = "budget", feature = "rate-limit", feature = "retry"))]
mod local;
#[cfg(feature = "log")]
pub mod log;
pub mod map_events;
#[cfg(feature = "memory")]
pub mod memory;
pub mod observe;
pub mod on_end;
// The page links to the layers of all features.
#[cfg(all(doc, feature = "full"))]
pub mod order;
#[cfg(feature = "otel")]
pub mod otel;
#[cfg(any(feature = "response-cache", feature = "retry"))]
mod provider_state;
#[cfg(feature = "rate-limit")]
pub mod rate_limit;
#[cfg(any(feature = "compaction", feature = "fallback", feature = "retry"))]
mod repeats;
#[cfg(feature = "response-cache")]
pub mod response_cache;
#[cfg(any(feature = "detach", feature = "suspend"))]
mod rest;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(feature = "session")]
pub mod session;
#[cfg(any(feature = "log", feature = "otel"))]
mod settled;
#[cfg(any(feature = "in-flight", feature = "rate-limit"))]
mod shared;
#[cfg(any(feature = "budget", feature = "in-flight", feature = "rate-limit"))]
mod shared_store;
#[cfg(feature = "static-memory")]
pub mod static_memory;
#[cfg(feature = "steering")]
pub mod steering;
#[cfg(feature = "stop")]
pub mod stop;
#[cfg(feature = "suspend")]
pub mod suspend;
#[cfg(feature = "tokens")]
pub mod tokens;
#[cfg(feature = "tool-cache")]
pub mod tool_cache;
pub mod transform;
#[cfg(feature = "trim")]
pub mod trim;
#[cfg(any(feature = "conversation", feature = "suspend"))]
mod turn;
#[cfg(any(
    feature = "compaction",
    feature = "conversation",
    feature = "detach",
    feature = "guardrail",
    feature = "in-flight",
    feature = "memory",
    feature = "rate-limit",
    feature = "response-cache",
    feature = "session",
    feature = "suspend"
))]
mod wait;
#[cfg(any(feature = "clear-results", feature = "compaction", feature = "trim"))]
mod window;
#[cfg(any(feature = "log", feature = "otel"))]
mod wording;

pub use self::{
    commit::CommitLayer,
    debug::DebugLayer,
    defaults::RequestDefaultsLayer,
    from_fn::{Next, NextTool, from_fn, tool_from_fn},
    map_events::{inspect_events, map_events},
    observe::observe,
    on_end::{End, on_end},
    transform::{Emit, Transform, TransformLayer},
};

#[cfg(feature = "budget")]
pub use self::budget::{Budget, BudgetPlugin};
#[cfg(feature = "circuit-breaker")]
pub use self::circuit_breaker::CircuitBreakerLayer;
#[cfg(feature = "clear-results")]
pub use self::clear_results::ClearToolResultsLayer;
#[cfg(feature = "compaction")]
pub use self::compaction::CompactionLayer;
#[cfg(feature = "conversation")]
pub use self::conversation::ConversationLayer;
#[cfg(feature = "detach")]
pub use self::detach::DetachLayer;
#[cfg(feature = "durable")]
pub use self::durable::{DurableLayer, DurableTools};
#[cfg(feature = "envelope")]
pub use self::envelope::{Envelope, Envelopes};
#[cfg(feature = "fallback")]
pub use self::fallback::FallbackLayer;
#[cfg(feature = "guard")]
pub use self::guard::GuardLayer;
#[cfg(feature = "guardrail")]
pub use self::guardrail::GuardrailLayer;
#[cfg(feature = "in-flight")]
pub use self::in_flight::InFlightLimitLayer;
#[cfg(feature = "log")]
pub use self::log::LogLayer;
#[cfg(feature = "memory")]
pub use self::memory::DynamicMemoryLayer;
#[cfg(feature = "otel")]
pub use self::otel::Otel;
#[cfg(feature = "rate-limit")]
pub use self::rate_limit::RateLimitLayer;
#[cfg(feature = "response-cache")]
pub use self::response_cache::ResponseCacheLayer;
#[cfg(feature = "retry")]
pub use self::retry::RetryModel;
#[cfg(feature = "session")]
pub use self::session::{MakeSession, Session};
#[cfg(any(feature = "in-flight", feature = "rate-limit"))]
pub use self::shared::{OnOutage, Shared};
#[cfg(feature = "static-memory")]
pub use self::static_memory::StaticMemoryLayer;
#[cfg(feature = "steering")]
pub use self::steering::Steering;
#[cfg(feature = "stop")]
pub use self::stop::StopWhen;
#[cfg(feature = "suspend")]
pub use self::suspend::SuspendLayer;
#[cfg(feature = "tool-cache")]
pub use self::tool_cache::ToolCacheLayer;
#[cfg(feature = "trim")]
pub use self::trim::TrimLayer;
