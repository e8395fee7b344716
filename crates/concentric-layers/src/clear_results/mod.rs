//! A layer that sends placeholders for old results of tools.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel};
//! use concentric_layers::ClearToolResultsLayer;
//! use concentric_tools::Toolset;
//! use tower::ServiceBuilder;
//!
//! fn agent(tools: Toolset, model: BoxModel) -> BoxModel {
//!     let clear = ClearToolResultsLayer::new()
//!         .trigger(50_000)
//!         .keep(5)
//!         .except(["read_plan"])
//!         .placeholder("[{bytes} bytes were removed; call the tool again if you need them]");
//!     BoxModel::new(ServiceBuilder::new().layer(AgentLayer::new(tools)).layer(clear).service(model))
//! }
//! # let _ = agent;
//! ```
//!
//! # What is cleared
//!
//! When a request has more tokens than the [`trigger`](ClearToolResultsLayer::trigger), or than half of a
//! [`ContextBudget`](crate::tokens::ContextBudget), the contents of the oldest results are replaced.
//!
//! | result | |
//! |---|---|
//! | among the newest ([`keep`](ClearToolResultsLayer::keep)), or of their rounds | stays |
//! | of a tool that is [excepted](ClearToolResultsLayer::except) | stays |
//! | a failure, a denial, a cancellation, an unknown outcome | stays: the model must not forget it |
//! | not much larger than the placeholder | stays |
//! | of a call that the provider executed | stays: the provider requires it |
//! | other | its content is replaced; [`data`](concentric_core::ToolOutcome::data), which models do not receive, stays |
//!
//! The results of a round are cleared together. A cleared result stays cleared for the run, so that the
//! provider's prompt cache applies to the steps between two changes. With
//! [`clear_at_least`](ClearToolResultsLayer::clear_at_least), a change is worth its cost.
//!
//! Each change emits a custom event `concentric.clear_results` with the value
//! `{"turns": n, "tokens_before": n, "tokens_after": n}`; `turns` is the number of leading turns without
//! results.
//!
//! # Place in the stack
//!
//! Inside the loop, once per model call: the conversation of the run and its store keep all results. Inside
//! [`CompactionLayer`](crate::CompactionLayer), outside [`TrimLayer`](crate::TrimLayer). One layer in a loop.
//! Anthropic's service clears by itself if the request's [provider options](concentric_core::ChatOptions::provider)
//! have `context_management`; do not use both. The layer does not choose between them, since the services inside
//! may be of several providers.
//!
//! See the [recommended order](crate::order).
//!
//! # State
//!
//! A durable slot of the run, `concentric/clear_results`, has the place up to which results are cleared.
//!
//! # Backpressure, errors and cancellation
//!
//! Readiness is forwarded, responses and errors pass unchanged; the layer does not wait for anything. Only turns that
//! change are copied, once. The counts of the turns are kept for the next call, also if nothing is cleared: a call
//! reads the turns that are new, and those that it clears with the ones after them. It takes a few small allocations,
//! however long the conversation is, and none for an event.

mod layer;
mod service;

pub use self::{layer::ClearToolResultsLayer, service::ClearToolResults};
pub use crate::window::{ResponseFuture, WindowBody};
