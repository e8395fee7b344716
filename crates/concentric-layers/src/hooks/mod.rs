//! Hooks: one value with callbacks for runs, steps, model calls and tool calls.
//!
//! A concern that acts at several places, such as an audit trail, a budget or a trace, implements
//! [`Hooks`], whose methods are optional. [`hooks()`] creates its layers, one per place.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxError, ChatRequest, Error, ToolCall, ToolOutcome};
//! use concentric_layers::End;
//! use concentric_layers::hooks::{Hooks, ModelFlow, Summary, hooks};
//! use concentric_test::ScriptedModel;
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use serde_json::json;
//! use std::{sync::{Arc, Mutex}, time::Duration};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! #[derive(Default)]
//! struct Audit(Mutex<Vec<String>>);
//!
//! impl Audit {
//!     fn write(&self, line: String) {
//!         self.0.lock().unwrap().push(line);
//!     }
//! }
//!
//! impl Hooks for Audit {
//!     fn id(&self) -> &str {
//!         "audit"
//!     }
//!
//!     async fn before_model(&self, request: &mut ChatRequest) -> Result<ModelFlow, BoxError> {
//!         if request.context.step() >= 8 {
//!             return Ok(ModelFlow::halt("too many steps"));
//!         }
//!         Ok(ModelFlow::Continue)
//!     }
//!
//!     async fn after_call(
//!         &self,
//!         call: &ToolCall,
//!         outcome: &ToolOutcome,
//!         _took: Duration,
//!     ) -> Result<Option<ToolOutcome>, BoxError> {
//!         self.write(format!("{}: {:?}", call.name(), outcome.status));
//!         Ok(None)
//!     }
//!
//!     async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
//!         let tokens = run.usage().output_tokens().unwrap_or_default();
//!         self.write(match end {
//!             End::Finished(finish) => format!("{:?}, {tokens} tokens", finish.outcome),
//!             End::Failed(error) => format!("failed: {error}"),
//!             End::Truncated | End::Dropped => "cut short".into(),
//!         });
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let audit = Arc::new(Audit::default());
//! let layers = hooks(Arc::clone(&audit));
//! let tools = Toolset::new()
//!     .tool(tool("search", "", |NoArguments {}| async { "42" }))
//!     .hooks(layers.tool());
//! let agent = ServiceBuilder::new()
//!     .layer(layers.run())
//!     .layer(AgentLayer::new(tools))
//!     .layer(layers.model())
//!     .service(ScriptedModel::new().tool_call("search", json!({})).then().text("It is 42."));
//!
//! agent.oneshot(ChatRequest::user("What is it?")).await?.text().await?;
//! assert_eq!(*audit.0.lock().unwrap(), ["search: Done", "Completed, 2 tokens"]);
//! # Ok(())
//! # }
//! ```
//!
//! # When the methods are called
//!
//! | place | when | method |
//! |---|---|---|
//! | [`run`](HooksLayers::run) | before the run | [`before_run`](Hooks::before_run) |
//! | | before the body yields an event | [`event`](Hooks::event) |
//! | | at the start of a step (of the first step: when its model answers), after its model call | [`step_started`](Hooks::step_started), [`step_finished`](Hooks::step_finished) |
//! | | after a round of tool calls | [`round_finished`](Hooks::round_finished) |
//! | | at the end of the run | [`after_run`](Hooks::after_run) |
//! | [`model`](HooksLayers::model) | before a model call | [`before_model`](Hooks::before_model) |
//! | | before the body yields an event | [`model_event`](Hooks::model_event) |
//! | | at the end of the call | [`after_model`](Hooks::after_model) |
//! | [`gate`](HooksLayers::gate) | before the next step | [`before_step`](Hooks::before_step) |
//! | | before a round of tool calls | [`before_round`](Hooks::before_round) |
//! | | before the run ends with the model's answer | [`before_finish`](Hooks::before_finish) |
//! | [`tool`](HooksLayers::tool) | see [`ToolHooks`](concentric_tools::hooks) | [`before_call`](Hooks::before_call), [`after_call`](Hooks::after_call), [`on_call_error`](Hooks::on_call_error), [`call_cancelled`](Hooks::call_cancelled) |
//! | `Sessions::hooks` | at the start and the end of a session | [`session_started`](Hooks::session_started), [`session_ended`](Hooks::session_ended) |
//!
//! To replace or drop events, use [`map_events`](crate::map_events()) or a
//! [`Transform`](crate::Transform). To wrap a call, use
//! [`from_fn`](crate::from_fn()).
//!
#![cfg_attr(
    feature = "full",
    doc = "The module [`mapping`] lists the equivalents of the hooks of other frameworks."
)]
//!
//! # How to add hooks
//!
//! | to | with |
//! |---|---|
//! | a place in a stack | the layers above in a `ServiceBuilder`, and [`Toolset::hooks`](concentric_tools::Toolset::hooks) for tool calls |
//! | an agent, at all places | [`AgentHooks::hooks`] |
//! | one run, outside the hooks of the agent | [`HooksLayers::attach`], and [`run`](HooksLayers::run) around a clone of the agent |
//! | some tool calls | [`ToolHooksLayer::scoped`](concentric_tools::ToolHooksLayer::scoped) of [`tool`](HooksLayers::tool) |
//!
//! # One end
//!
//! Each call of a `run` or `model` layer ends with exactly one `after_run` or `after_model`, even
//! if its own `before_run` or `before_model` failed:
//!
//! | the call | [`End`] | when |
//! |---|---|---|
//! | is refused by `before_run`, or fails | `Failed` | before its future resolves |
//! | finishes: completed, interrupted, halted, aborted, at a limit | `Finished`, with [`Finish::outcome`](concentric_core::Finish::outcome) | before the body yields the terminal item |
//! | fails after it has a body | `Failed` | before the body yields the error |
//! | ends without a terminal item | `Truncated` | before the body yields `None` |
//! | is dropped before any of these, as a future or as a body | `Dropped` | after the inner service is dropped |
//!
//! A disconnect of the consumer (`Dropped`) is distinguished from a cancellation by the user
//! ([`Aborted`](concentric_core::Outcome::Aborted)). All hooks of one call receive the same end: if
//! the consumer disconnects while inner hooks handle the end of a body, the outer hooks receive
//! that end too, not `Dropped`.
//!
//! # Order
//!
//! Hooks nest like layers: methods before a call are called in the order in which the hooks were
//! added, methods after it in reverse order. Each hook receives requests and events as they are at
//! its place. The following trace shows a run of two steps, a tool call and then a text, with `a`
//! outside `b` at each place:
//!
#![doc = include_str!("trace.md")]
//!
//! # When a hook fails
//!
//! | method that returns an error, panics or hangs | effect |
//! |---|---|
//! | `before_run`, `before_model` | the inner service is not called, and the call fails with the error. A method that hangs is dropped when the run is cancelled or passes its deadline, and has no other time limit. Outer layers receive the end |
//! | `event`, `model_event` (panic) | the hook receives no more events of that call |
//! | `step_started`, `step_finished`, `round_finished` | none. A method that hangs is dropped after 30 seconds, or when the run is cancelled or passes its deadline |
//! | `after_run`, `after_model` | none. A method that hangs is dropped after 30 seconds |
//! | methods of tool calls | see [`ToolHooks`](concentric_tools::hooks) |
//!
//! Failures are logged with the [id](Hooks::id) of the hooks, and added to the run's
//! [`HookFailures`] if it has one. Errors that fail their call are not logged.
//!
//! # Place in the stack
//!
//! An audit goes outermost, where it also observes calls that other layers refuse. Inside a retry
//! layer, hooks are called for each attempt. Work that may take longer than the run, such as a slow
//! write, should be [deferred](concentric_core::Context::defer).
//!
//! [`run`](HooksLayers::run) goes around an agent and [`model`](HooksLayers::model) inside an
//! agent; without a loop, both may be used around a model. The reverse does not compile in
//! [`Layers`](concentric_core::Layers). In a `ServiceBuilder`, the call fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration) and names both layers:
//!
//! ```compile_fail,E0283
//! # use concentric_core::{AgentLayer, Layers, NoTools};
//! # use concentric_layers::hooks::{Hooks, hooks};
//! # struct Audit;
//! # impl Hooks for Audit {
//! #     fn id(&self) -> &str {
//! #         "audit"
//! #     }
//! # }
//! let audit = hooks(Audit);
//! let agent = Layers::new()
//!     .with(AgentLayer::new(NoTools))
//!     .with(audit.run());
//! ```
//!
//! # Backpressure
//!
//! With a `before_run` or `before_model`, the layer is always ready, and waits for the inner
//! service after the method has returned. Otherwise, it forwards the readiness of the inner
//! service.
//!
//! # Cancel safety
//!
//! Dropping the call drops the inner service's call and any running method, except `after_run` and
//! `after_model`: these are completed in a task on tokio's runtime if they do not return at their
//! first poll. Without a runtime, they are dropped instead.
//!
//! # Cost
//!
//! Methods that are not implemented are not called, or are calls that the compiler removes. Per
//! call, a layer clones a handle to the run. It allocates only boxed futures for `before_run`,
//! `before_model` and the methods for steps and ends. If steps or ends are observed, the answer is
//! accumulated for the [`Summary`].

mod agent;
mod arc;
mod body;
mod failures;
mod flow;
mod future;
mod gate;
mod hook;
mod layer;
#[cfg(feature = "full")]
pub mod mapping;
mod method;
mod place;
mod round;
mod service;
mod summary;
mod tool;
mod watch;

#[doc(hidden)]
pub use self::place::{Has, Place};
pub use self::{
    agent::{AgentHooks, HookedAgentLayer, ModelStack, RunStack},
    body::HooksBody,
    failures::{HookFailure, HookFailures},
    flow::{ModelFlow, RunFlow},
    future::ResponseFuture,
    gate::OnStep,
    hook::Hooks,
    layer::{HooksLayer, HooksLayers, hooks},
    place::{OnModel, OnRun},
    service::Hooked,
    summary::Summary,
    tool::OnTool,
};

pub use crate::on_end::End;
