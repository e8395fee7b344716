//! Hooks: what is to be done before and after each tool call.
//!
//! A hook is a [`ToolHooks`], whose methods are all optional; [`ToolHooksLayer`] puts it on the stack.
//! [`Toolset::hooks`](crate::Toolset::hooks) adds it for all calls, [`Toolset::layer`](crate::Toolset::layer)
//! only for those that may run.
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
//!             return Ok(Flow::block("Tables are not dropped here."));
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
//! [`before_fn`] and [`after_fn`] make a hook of a closure that does not wait. What stands *around* a
//! call (a span, a lock, a second attempt) is a layer, most easily a
//! [`tool_from_fn`](concentric_core::layers::tool_from_fn).
//!
//! # When the methods are called
//!
//! | moment | method |
//! |---|---|
//! | a call that is to run comes in | [`before`](ToolHooks::before) |
//! | it has its outcome, from the tool, an inner layer or this hook's own `before` | [`after`](ToolHooks::after) |
//! | a call has its outcome already: it was refused, denied or executed elsewhere | [`after`](ToolHooks::after) alone, and only if the hook was added by [`Toolset::hooks`](crate::Toolset::hooks); what it returns is ignored |
//! | something inside panics, which makes it a failed outcome | [`after`](ToolHooks::after) |
//! | something inside returns an error | [`on_error`](ToolHooks::on_error) |
//! | the future of the call is dropped before either | [`cancelled`](ToolHooks::cancelled) |
//! | the call [waits](concentric_core::Error::pending) for somebody | none: it will be made again |
//!
//! So each call that comes in ends in exactly one of `after`, `on_error`, `cancelled` and waiting.
//!
//! # When a hook fails
//!
//! | a method that returns an error or panics | means |
//! |---|---|
//! | `before` | the call is not run; the model is told that a check failed, and the log, why |
//! | `after` | nothing: the outcome is what it was |
//! | `on_error` | nothing: the error is what it was |
//! | `cancelled` | nothing |
//!
//! A `before` that returns an error of its own that is [`fatal`](crate::fatal) ends the run, and one
//! that [waits](concentric_core::Error::waiting) has the call wait.
//!
//! # Place in the stack
//!
//! Hooks nest as layers do: `before` runs in the order in which they were added, `after` in the
//! reverse one, and each sees the arguments and the outcome as they are at its place. An audit goes
//! outermost, where it also sees what other layers block; it is told the time that all inside of it
//! took. Inside of a retry a hook is told of each attempt.
//!
//! # Backpressure
//!
//! Readiness is that of the rest of the stack. What it reserved is kept while `before` runs, and
//! given back if the call does not go on.
//!
//! # Cancel safety
//!
//! Dropping the call's future drops the method that runs, and the rest of the stack; then `cancelled`
//! is called, unless `after` or `on_error` had begun.
//!
//! # Cost
//!
//! A method that a hook does not have costs nothing. For one that it has, its future is boxed; the
//! box is used again by the next call, so that a method that does not wait does not allocate. The
//! call is cloned once, and again if `before` changes it: a few reference counts, and what is in its
//! context's extensions. The rest of the stack is cloned only if `before` or a matcher waits.

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
