use super::{BeforeCall, Flow};
use concentric_core::{BoxError, Error, ToolCall, ToolOutcome, method::unset};
use std::{future::Future, sync::Arc, time::Duration};

/// Callbacks before and after each tool call.
///
/// See the [module docs](super) for an example and the order of calls. The methods can be
/// implemented as `async fn`s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a hook on tool calls",
    label = "not a `ToolHooks`",
    note = "implement `ToolHooks`, of which only `id` is required; or use `before_fn` or `after_fn` for a closure, `tool_from_fn` for an async function"
)]
pub trait ToolHooks: Send + Sync + 'static {
    /// Returns the name of the hook, for logs.
    fn id(&self) -> &str;

    /// Decides whether a call continues, and may change its arguments.
    ///
    /// # When
    ///
    /// Before anything inside of the hook; once per call that reaches the hook, except for
    /// [settled](ToolCall::settled) and [refused](ToolCall::refusal) calls. The method starts when
    /// the service is called, even if the call's future is never polled.
    ///
    /// # Errors
    ///
    /// The call is not run, and the model only reads that a check failed. An error that is
    /// [`fatal`](crate::fatal), [halts](Error::halted) the run or [suspends](Error::suspended) the
    /// call is propagated.
    fn before(&self, call: &mut BeforeCall) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        let _ = call;
        unset(|| Ok(Flow::Continue))
    }

    /// Receives the outcome of a call, and may replace it.
    ///
    /// # When
    ///
    /// After the call has an outcome of any [status](ToolOutcome::status). Hooks added by
    /// [`Toolset::hooks`](crate::Toolset::hooks) are also called for calls that do not run
    /// ([`ToolCall::settled`]); the returned outcome is then ignored. `took` is the duration of
    /// everything inside of the hook by the context's clock; zero if the call did not continue.
    ///
    /// # Errors
    ///
    /// Errors are passed to [`failed`](Self::failed), and the outcome is unchanged.
    fn after(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, outcome, took);
        unset(|| Ok(None))
    }

    /// Receives the error of a call, and may replace it by an outcome. By default the error is
    /// propagated.
    ///
    /// # When
    ///
    /// After an inner layer or a tool service returned an error, or a tool a
    /// [`fatal`](crate::fatal) one. Other failures of a tool are outcomes.
    ///
    /// # Errors
    ///
    /// Errors are passed to [`failed`](Self::failed), and the original error is propagated.
    fn on_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        let _ = (call, error, took);
        unset(|| Ok(None))
    }

    /// Called when a call is cancelled.
    ///
    /// # When
    ///
    /// After the call's future was dropped before an outcome or an error: the run was cancelled,
    /// its consumer is gone, or an outer layer abandoned the call. The inner futures are dropped
    /// already. The method is called while the call's future is dropped, and must not block.
    fn cancelled(&self, call: &ToolCall) {
        let _ = call;
    }

    /// Called when another `method` of the hook returns an error or panics. The default logs the
    /// error.
    ///
    /// # When
    ///
    /// Immediately. The method must not block or panic.
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
