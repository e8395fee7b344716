use super::{Hooks, failures::report};
use concentric_core::{BoxError, Error, ToolCall, ToolOutcome};
use concentric_tools::{BeforeCall, Flow, ToolHooks};
use std::{fmt, future::Future, sync::Arc, time::Duration};

/// The tool methods of [`Hooks`], as [`ToolHooks`].
pub struct OnTool<H>(pub(super) Arc<H>);

impl<H> ToolHooks for OnTool<H>
where
    H: Hooks,
{
    fn id(&self) -> &str {
        self.0.id()
    }

    fn before(&self, call: &mut BeforeCall) -> impl Future<Output = Result<Flow, BoxError>> + Send {
        self.0.before_call(call)
    }

    fn after(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        self.0.after_call(call, outcome, took)
    }

    fn on_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> impl Future<Output = Result<Option<ToolOutcome>, BoxError>> + Send {
        self.0.on_call_error(call, error, took)
    }

    fn cancelled(&self, call: &ToolCall) {
        self.0.call_cancelled(call);
    }

    fn failed(&self, method: &'static str, error: &Error, call: &ToolCall) {
        let method = match method {
            "before" => "before_call",
            "after" => "after_call",
            "on_error" => "on_call_error",
            _ => "call_cancelled",
        };
        report(self.0.id(), method, error.clone(), &call.context);
    }
}

impl<H> fmt::Debug for OnTool<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnTool").finish_non_exhaustive()
    }
}
