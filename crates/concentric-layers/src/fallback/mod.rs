//! A layer that calls other models in place of one that fails.
//!
//! ```
//! use concentric_core::{ChatRequest, Error, ErrorKind};
//! use concentric_layers::fallback::{FailedAttempts, FallbackLayer};
//! use concentric_test::ScriptedModel;
//! use tower::{Layer, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let gpt = ScriptedModel::new().error(Error::new(ErrorKind::Overloaded, "busy"));
//! let claude = ScriptedModel::new().text("Hello.");
//! let local = ScriptedModel::new().text("Hi.");
//! let model = FallbackLayer::new("gpt-5.5")
//!     .or("claude", claude)
//!     .or_with("local", local, |request| request.options_mut().reasoning_effort = None)
//!     .layer(gpt);
//! let answer = model.oneshot(ChatRequest::user("Hi")).await?;
//! let failed: &FailedAttempts = answer.extensions.get().expect("the first model failed");
//! assert_eq!(failed.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["gpt-5.5"]);
//! assert_eq!(answer.text().await?, "Hello.");
//! # Ok(())
//! # }
//! ```
//!
//! # The order of the models
//!
//! The inner service is the first model, and the others follow in the order added. Each is called at most once,
//! so the number of models limits that of the attempts. It has no limit of its own: the program names each model, and
//! [`time_to_first`](FallbackLayer::time_to_first) and the run's deadline bound the time.
//! In later calls of a run, also after a suspension, the model that answered last is the first, and those before
//! it follow the last one; [`sticky(false)`](FallbackLayer::sticky) begins each call with the inner service. A
//! model that the configuration no longer has is ignored. A nested agent makes its own choice.
//!
//! Each model receives the same request: the conversation, the system prompt, the tools and the context with its
//! event sink. [`model`](concentric_core::ChatOptions::model) and
//! [`provider`](concentric_core::ChatOptions::provider) of the options apply to the inner service only;
//! [`or_with`](FallbackLayer::or_with) sets them for another model.
//!
//! # Which errors lead to another model
//!
//! Only an error of the response future, so before any content was emitted. An error in the body is delivered.
//!
//! | error | |
//! |---|---|
//! | `RateLimited`, `Overloaded`, `Server`, `Timeout`, `Connection`, `Truncated`, `Protocol`, `NotFound`, `Quota`, `ContextWindow` | the next model is called |
//! | `InvalidRequest` with the code `unsupported`: the model lacks a capability | the next model is called |
//! | any other, such as `Authentication`, `Permission`, `ContentFilter`, `Halted` | returned |
//!
//! [`on`](FallbackLayer::on) replaces this table: `Halted` for a cheaper model once a budget is used up, for
//! example. No option continues after an error with [side effects](concentric_core::Error::effects), after a tool
//! with effects was started, for a call that waits for a reply, in a cancelled run, or after the run's deadline.
//!
//! # Place in the stack
//!
//! Inside the loop, outside of retries: each model has [its own](crate::retry), and an error of this layer is
//! not repeated by one around it. Around agents, the layer falls back for runs that had no effect.
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! Always ready. The future waits for the readiness of each model it calls, and a model that fails to become
//! ready has failed. Other models are not polled.
//!
//! # Errors
//!
//! The error of the last model that was called, with the number of
//! [`attempts`](concentric_core::Error::attempts) of all models. Its source is a [`FailedAttempts`] if others
//! failed before. An answer of another model has them in its extensions. They have no tokens and no times: those are
//! in [`Finish::run_usage`](concentric_core::Finish::run_usage), also of failed attempts, and in the spans of a layer
//! inside, such as [`Otel::model`](crate::Otel::model). [`FIRST_CONTENT`] is the only error of the layer itself.
//!
//! Each change emits a custom event `concentric.fallback` with the value `{"from", "to", "kind", "code"}`, and
//! logs a warning. A choice that cannot be read or stored is logged, and the call continues.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the call of the current model. A failed call is dropped before the next
//! one begins.

mod attempts;
mod body;
mod failed;
mod future;
mod layer;

pub use self::{
    body::FallbackBody,
    failed::FailedAttempts,
    future::ResponseFuture,
    layer::{Fallback, FallbackLayer},
};

/// The [code](concentric_core::Error::code) of the error of a model that exceeded
/// [`time_to_first`](FallbackLayer::time_to_first).
pub const FIRST_CONTENT: &str = "first_content";
