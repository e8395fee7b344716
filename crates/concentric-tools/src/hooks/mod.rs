//! Hooks, which are called before and after each tool call.
//!
//! Hooks implement [`ToolHooks`], whose methods are optional, and are added by
//! [`Toolset::hooks`](crate::Toolset::hooks) for all calls, or as a [`ToolHooksLayer`] by
//! [`Toolset::layer`](crate::Toolset::layer) for calls that may run.
//!
//! ```
//! use concentric_tools::{BeforeCall, Flow, NoArguments, ToolHooks, ToolHooksLayer, Toolset, tool};
//! use concentric_core::{BoxError, ToolCall, ToolOutcome};
//! use std::time::Duration;
//!
//! struct Audit;
//!
//! impl ToolHooks for Audit {
//!     fn id(&self) -> &str {
//!         "audit"
//!     }
//!
//!     async fn before(&self, call: &mut BeforeCall) -> Result<Flow, BoxError> {
//!         if call.arguments().as_str().contains("DROP TABLE") {
//!             return Ok(Flow::block("Tables must not be dropped."));
//!         }
//!         Ok(Flow::Continue)
//!     }
//!
//!     async fn after(
//!         &self,
//!         call: &ToolCall,
//!         outcome: &ToolOutcome,
//!         took: Duration,
//!     ) -> Result<Option<ToolOutcome>, BoxError> {
//!         println!("{}: {:?} in {took:?}", call.name(), outcome.status);
//!         Ok(None)
//!     }
//! }
//!
//! let tools = Toolset::new()
//!     .tool(tool("sql", "", |NoArguments {}| async { "2 rows" }))
//!     .hooks(ToolHooksLayer::new(Audit).scoped("sql"));
//! # let _ = tools;
//! ```
//!
//! [`before_fn`] and [`after_fn`] create hooks from closures. To wrap a call (in a span, a lock, a
//! retry), use a layer such as `tool_from_fn` of `concentric-layers`.
//!
//! # When
//!
//! | moment | method |
//! |---|---|
//! | a call that may run arrives | [`before`](ToolHooks::before) |
//! | the call has an outcome, from the tool, an inner layer or the hooks' own `before` | [`after`](ToolHooks::after) |
//! | a call arrives with an outcome: it was refused, denied or executed elsewhere | only [`after`](ToolHooks::after), if the hooks were added by [`Toolset::hooks`](crate::Toolset::hooks); the return value is ignored |
//! | an inner layer or the tool panics, which is a failed outcome | [`after`](ToolHooks::after) |
//! | an inner layer or the tool returns an error | [`on_error`](ToolHooks::on_error) |
//! | the future of the call is dropped first | [`cancelled`](ToolHooks::cancelled) |
//! | the call [is suspended](concentric_core::Error::suspension) | none: it will be made again |
//!
//! Each call ends in exactly one of `after`, `on_error`, `cancelled` and a suspension.
//!
//! # Failing hooks
//!
//! | a method that returns an error or panics | effect |
//! |---|---|
//! | `before` | the call is not run; the model reads that a check failed, and the error is logged |
//! | `after` | none: the outcome is unchanged |
//! | `on_error` | none: the error is unchanged |
//! | `cancelled` | none |
//!
//! A `before` that returns a [`fatal`](crate::fatal) error ends the run; one that returns a
//! [suspension](concentric_core::Error::suspended) suspends the call.
//!
//! # Place in the stack
//!
//! Hooks nest as layers do: `before` runs in the order in which they were added, `after` in reverse
//! order, and each receives the arguments and the outcome at its place. An audit is best placed
//! outermost, where it also observes calls that other layers block, and measures the duration of
//! all inner layers. Inside of a retry, hooks are called for each attempt.
//!
//! # Backpressure
//!
//! Forwards readiness. Reserved capacity is held while `before` runs, and released if the call does
//! not continue.
//!
//! # Cancel safety
//!
//! Dropping the call's future drops the running method and the inner layers; then `cancelled` is
//! called, unless `after` or `on_error` had started.
//!
//! # Cost
//!
//! A method that is not implemented costs nothing. The future of an implemented one is boxed, and
//! the box is reused by the next call, so that a method that does not wait does not allocate. The
//! call is cloned once, and again if `before` changes it: a few reference counts and the extensions
//! of its context. The inner service is cloned only if `before` or a matcher waits.

mod before;
mod function;
mod future;
mod hook;
mod layer;
mod service;
mod shared;

pub use self::{
    before::{BeforeCall, Flow},
    function::{AfterFn, BeforeFn, after_fn, before_fn},
    future::ResponseFuture,
    hook::ToolHooks,
    layer::ToolHooksLayer,
    service::HookedTool,
};
