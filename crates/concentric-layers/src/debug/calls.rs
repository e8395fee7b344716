use concentric_core::{
    BoxError, Error, ToolCall, ToolOutcome,
    hooks::{BeforeCall, Flow, Hooks, Interest},
};
use std::time::Duration;

/// Logs each tool call and its outcome, also of calls that are not executed.
pub(super) struct DebugCalls {
    pub(super) place: &'static str,
}

impl Hooks for DebugCalls {
    fn id(&self) -> &str {
        self.place
    }

    fn interest(&self) -> Interest {
        Interest::TOOL
    }

    async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        let (place, id, tool) = (self.place, call.id(), call.name());
        tracing::debug!(target: "concentric::events", place, %id, %tool, "tool call");
        tracing::trace!(target: "concentric::events", place, %id, arguments = call.arguments().as_str());
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        let (place, id, tool) = (self.place, call.id(), call.name());
        let status = outcome.status;
        tracing::debug!(target: "concentric::events", place, %id, %tool, ?status, ?took, "tool outcome");
        tracing::trace!(target: "concentric::events", place, %id, ?outcome);
        Ok(None)
    }

    async fn on_call_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        let (place, id, tool) = (self.place, call.id(), call.name());
        tracing::debug!(target: "concentric::events", place, %id, %tool, ?error, ?took, "tool call failed");
        Ok(None)
    }

    fn call_cancelled(&self, call: &ToolCall) {
        let (place, id, tool) = (self.place, call.id(), call.name());
        tracing::debug!(target: "concentric::events", place, %id, %tool, "tool call dropped");
    }
}
