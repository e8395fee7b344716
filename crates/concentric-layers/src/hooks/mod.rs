//! Hooks: one value that is told of runs, model calls and tool calls.
//!
//! What one concern has to do at several places (an audit trail, a budget, a trace) is one
//! [`Hooks`], whose methods are all optional. [`hooks()`] makes its layers, one for each place.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxError, ChatRequest, Error, ToolCall, ToolOutcome, layers::End};
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
//!         let tokens = run.usage().output_tokens.unwrap_or_default();
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
//! | at | moment | method |
//! |---|---|---|
//! | [`run`](HooksLayers::run) | a run begins | [`before_run`](Hooks::before_run) |
//! | | an event is about to be handed on | [`event`](Hooks::event) |
//! | | a step begins (in the first step: its model answers), its model call is over | [`step_started`](Hooks::step_started), [`step_finished`](Hooks::step_finished) |
//! | | a round of tool calls is closed | [`round_finished`](Hooks::round_finished) |
//! | | the run ends | [`after_run`](Hooks::after_run) |
//! | [`model`](HooksLayers::model) | a model is about to be called | [`before_model`](Hooks::before_model) |
//! | | an event is about to be handed on | [`model_event`](Hooks::model_event) |
//! | | the call ends | [`after_model`](Hooks::after_model) |
//! | [`gate`](HooksLayers::gate) | the next step is about to be made | [`before_step`](Hooks::before_step) |
//! | | a round of tool calls is about to be run | [`before_round`](Hooks::before_round) |
//! | | the run is about to come to its own end | [`before_finish`](Hooks::before_finish) |
//! | [`tool`](HooksLayers::tool) | see [`ToolHooks`](concentric_tools::hooks) | [`before_call`](Hooks::before_call), [`after_call`](Hooks::after_call), [`on_call_error`](Hooks::on_call_error), [`call_cancelled`](Hooks::call_cancelled) |
//! | `Sessions::hooks` | a conversation is taken up, is over | [`session_started`](Hooks::session_started), [`session_ended`](Hooks::session_ended) |
//!
//! To replace or drop events is for [`map_events`](concentric_core::layers::map_events()) and
//! [`Transform`](concentric_core::layers::Transform); to do something *around* a call, for
//! [`from_fn`](concentric_core::layers::from_fn()).
//!
#![cfg_attr(
    feature = "full",
    doc = "Who comes from another framework finds its hooks in [`mapping`], one by one."
)]
//!
//! # Attached to what
//!
//! | to | by |
//! |---|---|
//! | a place in a stack | the layers above, in a `ServiceBuilder`, and [`Toolset::hooks`](concentric_tools::Toolset::hooks) for tool calls |
//! | an agent, at all of them | [`AgentHooks::hooks`] |
//! | one run, outside of the agent's own | [`HooksLayers::attach`], and [`run`](HooksLayers::run) around a clone of the agent |
//! | the calls that match | [`ToolHooksLayer::scoped`](concentric_tools::ToolHooksLayer::scoped) of [`tool`](HooksLayers::tool) |
//!
//! # One end
//!
//! Each call of a `run` or `model` layer ends in exactly one `after_run` or `after_model`, also if
//! its own `before_run` or `before_model` failed, and whatever the rest of the stack does:
//!
//! | the call | [`End`] | is told |
//! |---|---|---|
//! | is refused by `before_run`, or fails | `Failed` | before its future resolves |
//! | finishes: completed, interrupted, halted, aborted, at a limit | `Finished`; [`Finish::outcome`](concentric_core::Finish::outcome) says which | before the last item is handed on |
//! | fails once it has a body | `Failed` | before the last item is handed on |
//! | ends without a terminal item | `Truncated` | before `None` is handed on |
//! | is dropped before any of these, as a future or as a body | `Dropped` | then, once what is inside is dropped |
//!
//! A consumer that leaves is told apart from a user's cancel: `Dropped`, and
//! [`Aborted`](concentric_core::Outcome::Aborted). All hooks of one call receive the same end: where a
//! consumer leaves while inner hooks handle the end of a body, the outer ones receive that end, too,
//! and not `Dropped`.
//!
//! # Order
//!
//! Hooks nest as layers do: those before a call are called in the order in which they were added,
//! those after it in reverse, and each sees requests and events as they are at its place. This is a
//! run of two steps, a tool call and then a text, with `a` outside of `b` at each place:
//!
#![doc = include_str!("trace.md")]
//!
//! # When a hook fails
//!
//! | a method that returns an error, panics or hangs | means |
//! |---|---|
//! | `before_run`, `before_model` | what is inside is not called, and the call fails with the error; one that hangs is given up when the run is cancelled or late, and has no other limit. Layers outside get their end |
//! | `event`, `model_event` (a panic) | nothing, but that the hook sees no more events of that call |
//! | `step_started`, `step_finished`, `round_finished` | nothing; one that hangs is given up after 30 seconds, or when the run is cancelled or late |
//! | `after_run`, `after_model` | nothing; one that hangs is given up after 30 seconds |
//! | those of tool calls | what [`ToolHooks`](concentric_tools::hooks) says |
//!
//! All of them are logged with the hook's [id](Hooks::id), and gathered in the run's
//! [`HookFailures`], if it has them; but for an error that fails the call it is about.
//!
//! # Place in the stack
//!
//! An audit goes outermost, where it also sees what other layers refuse. Inside of a retry a hook is
//! told of each attempt. What outlives a run, as a slow write, is best
//! [left for later](concentric_core::Context::defer).
//!
//! [`run`](HooksLayers::run) stands around an agent and [`model`](HooksLayers::model) inside of one;
//! without a loop either may stand around a model. The other way round does not compile in
//! [`Layers`](concentric_core::Layers), and in a `ServiceBuilder` the call fails with
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
//! Where there is a `before_run` or `before_model` the layer is always ready, and waits for the rest
//! of the stack once that says that the call goes on. Else readiness is that of the rest of the
//! stack.
//!
//! # Cancel safety
//!
//! Dropping the call drops what is inside, and the method that runs, but for `after_run` and
//! `after_model`: these go on, on tokio's runtime if they wait. Where there is no runtime, one that
//! waits is given up.
//!
//! # Cost
//!
//! A method that there is not is not called, or is a call that the compiler removes. A layer copies
//! a handle to the run per call, and allocates nothing, but a boxed future each for `before_run`,
//! `before_model` and what is told of steps and ends. Where steps or ends are told of, what is said
//! is kept for the [`Summary`].

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

pub use concentric_core::layers::End;
