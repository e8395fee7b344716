use super::{BeforeCall, Flow};
use concentric_core::{BoxError, Error, ToolCall, ToolOutcome, method::unset};
use std::{future::Future, sync::Arc, time::Duration};

/// What is to be done before and after each tool call.
///
/// See the [module docs](super) for an example, and for when each method is called. An
/// implementation may answer with `async fn`s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a hook on tool calls",
    label = "not a `ToolHooks`",
    note = "implement `ToolHooks`, of which only `id` is required; or use `before_fn` or `after_fn` for a closure, `tool_from_fn` for an async function"
)]
pub trait ToolHooks: Send + Sync + 'static {
    /// Names the hook, for the log.
    fn id(&self) -> &str;

    /// Decides whether a call goes on, and may change its arguments.
    ///
    /// # When
    ///
    /// Before anything inside of this place is called; once per call that comes in here, and not
    /// for those that are [settled](ToolCall::settled) or [refused](ToolCall::refusal) already. It
    /// begins when the call is made, even if the call's future is never polled.
    ///
    /// # Errors
    ///
    /// The call is not run, and the model is told no more than that a check failed. An error that
    /// is [`fatal`](crate::fatal), [halts](Error::halted) the run, or says that the call
    /// [waits](Error::waiting), is handed on.
    fn before(&self, call: &mut BeforeCall) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        let _ = call;
        unset(|| Ok(Flow::Continue))
    }

    /// Sees what came of a call, and may put another outcome in its place.
    ///
    /// # When
    ///
    /// Once the call has an outcome, whatever its [status](ToolOutcome::status). A hook that was added
    /// by [`Toolset::hooks`](crate::Toolset::hooks) is also called for a call that does not run
    /// ([`ToolCall::settled`]); the outcome that it returns then is ignored. `took` is the time that
    /// everything inside of this place took, by the context's clock; zero, if the call did not come
    /// further than here or was settled before.
    ///
    /// # Errors
    ///
    /// They are [told](Self::failed), and change nothing.
    fn after(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, outcome, took);
        unset(|| Ok(None))
    }

    /// Sees that a call failed, and may make an outcome of it. Else the error goes on as it is.
    ///
    /// # When
    ///
    /// A layer inside of this place returned an error, or a tool that is a service, or one that is
    /// [`fatal`](crate::fatal). That a tool says that it failed is an outcome.
    ///
    /// # Errors
    ///
    /// They are [told](Self::failed), and change nothing.
    fn on_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, error, took);
        unset(|| Ok(None))
    }

    /// Is told that a call was given up.
    ///
    /// # When
    ///
    /// The call's future was dropped before there was an outcome or an error: the run was
    /// cancelled, its consumer is gone, or a layer outside gave up. What ran inside is dropped by
    /// now. It is called while that is so, and must not block.
    fn cancelled(&self, call: &ToolCall) {
        let _ = call;
    }

    /// Is told that another `method` of the hook failed: it returned an error, or panicked. By
    /// default that is logged.
    ///
    /// # When
    ///
    /// At once. It must not block, or panic.
    fn failed(&self, method: &'static str, error: &Error, call: &ToolCall) {
        let (hook, tool) = (self.id(), call.name().as_str());
        let error = format_args!("{error:#}");
        tracing::warn!(hook, tool, method, %error, "a hook on a tool call failed");
    }
}

impl<H> ToolHooks for Arc<H>
where
    H: ToolHooks,
{
    fn id(&self) -> &str {
        H::id(self)
    }

    fn before(&self, call: &mut BeforeCall) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        H::before(self, call)
    }

    fn after(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        H::after(self, call, outcome, took)
    }

    fn on_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        H::on_error(self, call, error, took)
    }

    fn cancelled(&self, call: &ToolCall) {
        H::cancelled(self, call);
    }

    fn failed(&self, method: &'static str, error: &Error, call: &ToolCall) {
        H::failed(self, method, error, call);
    }
}
