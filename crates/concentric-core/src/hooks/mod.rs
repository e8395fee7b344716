//! Hooks: one value with callbacks for runs, steps, model calls and tool calls.
//!
//! A concern that acts at several places, such as an audit trail, a budget or a trace, implements
//! [`Hooks`], whose methods are optional. [`run`], [`model`], [`tool`] and [`step_gate`] create its
//! layers, one per place.
//!
//! ```
//! use concentric_core::{
//!     AgentLayer, BoxError, BoxModel, ChatRequest, NoTools,
//!     hooks::{self, End, Flow, Hooks, Interest, Summary},
//! };
//! use std::sync::{Arc, Mutex};
//! use tower::ServiceBuilder;
//!
//! #[derive(Default)]
//! struct Audit(Mutex<Vec<String>>);
//!
//! impl Hooks for Audit {
//!     fn id(&self) -> &str {
//!         "audit"
//!     }
//!
//!     fn interest(&self) -> Interest {
//!         Interest::BEFORE_MODEL | Interest::AFTER_RUN
//!     }
//!
//!     async fn before_model(
//!         &self,
//!         request: &mut ChatRequest,
//!     ) -> Result<Flow<Vec<concentric_core::Event>>, BoxError> {
//!         if request.context.step() >= 8 {
//!             return Ok(Flow::halt("too many steps"));
//!         }
//!         Ok(Flow::Continue)
//!     }
//!
//!     async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
//!         let tokens = run.usage().output_tokens().unwrap_or_default();
//!         self.0.lock().unwrap().push(match end {
//!             End::Finished(finish) => format!("{:?}, {tokens} tokens", finish.outcome),
//!             End::Failed(error) => format!("failed: {error}"),
//!             End::Truncated | End::Dropped => "cut short".into(),
//!         });
//!         Ok(())
//!     }
//! }
//!
//! fn agent(audit: Arc<Audit>, provider: BoxModel) -> BoxModel {
//!     let agent = ServiceBuilder::new()
//!         .layer(hooks::run(Arc::clone(&audit)))
//!         .layer(AgentLayer::new(NoTools))
//!         .layer(hooks::model(audit))
//!         .service(provider);
//!     BoxModel::new(agent)
//! }
//! # let _ = agent;
//! ```
//!
//! [`RunOverrides::hooks`](crate::RunOverrides::hooks) adds hooks to a single run.
//!
//! # When the methods are called
//!
//! | place | when | method |
//! |---|---|---|
//! | [`run`](run()) | before the run | [`before_run`](Hooks::before_run) |
//! | | before the body yields an event | [`event`](Hooks::event) |
//! | | at the start of a step (of the first step: when its model answers), after its model call | [`step_started`](Hooks::step_started), [`step_finished`](Hooks::step_finished) |
//! | | after a round of tool calls | [`round_finished`](Hooks::round_finished) |
//! | | at the end of the run | [`after_run`](Hooks::after_run) |
//! | [`model`](model()) | before a model call | [`before_model`](Hooks::before_model) |
//! | | before the body yields an event | [`model_event`](Hooks::model_event) |
//! | | at the end of the call | [`after_model`](Hooks::after_model) |
//! | [`step_gate`](step_gate()) | before the next step | [`before_step`](Hooks::before_step) |
//! | | before a round of tool calls | [`before_round`](Hooks::before_round) |
//! | | before the run ends with the model's answer | [`before_finish`](Hooks::before_finish) |
//! | [`tool`](tool()) | a call that may run arrives | [`before_call`](Hooks::before_call) |
//! | | the call has an outcome, from the tool, an inner layer or `before_call`; or an inner layer or the tool panics | [`after_call`](Hooks::after_call) |
//! | | a call arrives with an outcome at hooks of a whole toolset | only [`after_call`](Hooks::after_call), whose return value is ignored |
//! | | an inner layer or the tool returns an error | [`on_call_error`](Hooks::on_call_error) |
//! | | the future of the call is dropped first | [`call_cancelled`](Hooks::call_cancelled) |
//! | | the call [is suspended](crate::Error::suspension) | none: it will be made again |
//! | `MakeSession::hooks` | at the start and the end of a session | [`session_started`](Hooks::session_started), [`session_ended`](Hooks::session_ended) |
//!
//! Each tool call ends in exactly one of `after_call`, `on_call_error`, `call_cancelled` and a
//! suspension. To change an answer or to wrap a call, use a layer, such as `map_events`, a
//! `Transform`, `from_fn` or `tool_from_fn` of `concentric-layers`.
//!
//! # One end
//!
//! Each call of a `run` or `model` layer ends with exactly one `after_run` or `after_model`, even
//! if its own `before_run` or `before_model` failed:
//!
//! | the call | [`End`] | when |
//! |---|---|---|
//! | is refused by `before_run`, or fails | `Failed` | before its future resolves |
//! | finishes: completed, interrupted, halted, aborted, at a limit | `Finished`, with [`Finish::outcome`](crate::Finish::outcome) | before the body yields the terminal item |
//! | fails after it has a body | `Failed` | before the body yields the error |
//! | ends without a terminal item | `Truncated` | before the body yields `None` |
//! | is dropped before any of these, as a future or as a body | `Dropped` | after the inner service is dropped |
//!
//! A disconnect of the consumer (`Dropped`) is distinguished from a cancellation by the user
//! ([`Aborted`](crate::Outcome::Aborted)). All hooks of one call receive the same end: if
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
//! | `before_call` | the call is not run, and the model reads that a check failed. An error that is [fatal](crate::fatal) ends the run, and a [suspension](crate::Error::suspended) suspends the call |
//! | `after_call`, `on_call_error`, `call_cancelled` | none |
//!
//! Failures are logged with the [id](Hooks::id) of the hooks, and added to the run's
//! [`HookFailures`] if it has one. Errors that fail their call are not logged.
//!
//! # Place in the stack
//!
//! An audit goes outermost, where it also observes calls that other layers refuse. Inside a retry
//! layer, hooks are called for each attempt. Work that may take longer than the run, such as a slow
//! write, should be [deferred](crate::Context::defer).
//!
//! [`run`](run()) goes around an agent and [`model`](model()) inside an
//! agent; without a loop, both may be used around a model. The reverse does not compile in
//! [`Layers`](crate::Layers). In a `ServiceBuilder`, the call fails with
//! [`Configuration`](crate::ErrorKind::Configuration) and names both layers:
//!
//! ```compile_fail,E0283
//! # use concentric_core::{AgentLayer, Layers, NoTools, hooks::{self, Hooks}};
//! # struct Audit;
//! # impl Hooks for Audit {
//! #     fn id(&self) -> &str {
//! #         "audit"
//! #     }
//! # }
//! let agent = Layers::new()
//!     .with(AgentLayer::new(NoTools))
//!     .with(hooks::run(std::sync::Arc::new(Audit)));
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
//! For tool calls, readiness is forwarded: reserved capacity is held while `before_call` runs, and
//! released if the call does not continue.
//!
//! # Cost
//!
//! Methods outside of the [interest](Hooks::interest) are not called, and an empty `event` is
//! removed by the compiler. Per call, a layer clones a handle to the run, or the tool call. It
//! allocates only the boxed futures of the methods; those of tool calls are reused by the next
//! call. If steps or ends are observed, the answer is accumulated for the [`Summary`].

mod at;
mod before_call;
mod body;
mod call;
mod failures;
mod flow;
mod forward;
mod future;
mod gate;
mod hook;
mod layer;
mod round;
mod service;
mod summary;
mod tool_future;
mod tool_layer;
mod tool_service;
mod tool_shared;
mod traced;
mod watch;

pub use self::{
    before_call::BeforeCall,
    body::HooksBody,
    failures::{HookFailure, HookFailures},
    flow::Flow,
    future::ResponseFuture,
    hook::Hooks,
    layer::{HooksLayer, model, run, step_gate, tool},
    service::Hooked,
    summary::Summary,
    tool_future::CallFuture,
    tool_layer::ToolHooksLayer,
    tool_service::HookedTool,
};
pub use crate::{end::End, interest::Interest};
