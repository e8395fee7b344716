use concentric_core::{
    BoxError, ToolCall, ToolOutcome,
    hooks::{self, BeforeCall, Flow, Hooks, ToolHooksLayer},
};
use std::{sync::Arc, time::Duration};

/// Hooks that call `f` before each tool call.
pub(crate) fn before_fn<F>(id: &'static str, f: F) -> ToolHooksLayer<impl Hooks>
where
    F: Fn(&mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> + Send + Sync + 'static,
{
    struct Before<F>(&'static str, F);

    impl<F> Hooks for Before<F>
    where
        F: Fn(&mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> + Send + Sync + 'static,
    {
        fn id(&self) -> &str {
            self.0
        }

        async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
            (self.1)(call)
        }
    }

    hooks::tool(Arc::new(Before(id, f)))
}

/// Hooks that call `f` with the outcome of each tool call.
pub(crate) fn after_fn<F>(id: &'static str, f: F) -> ToolHooksLayer<impl Hooks>
where
    F: Fn(&ToolCall, &ToolOutcome, Duration) -> Result<Option<ToolOutcome>, BoxError>
        + Send
        + Sync
        + 'static,
{
    struct After<F>(&'static str, F);

    impl<F> Hooks for After<F>
    where
        F: Fn(&ToolCall, &ToolOutcome, Duration) -> Result<Option<ToolOutcome>, BoxError>
            + Send
            + Sync
            + 'static,
    {
        fn id(&self) -> &str {
            self.0
        }

        async fn after_call(
            &self,
            call: &ToolCall,
            outcome: &ToolOutcome,
            took: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            (self.1)(call, outcome, took)
        }
    }

    hooks::tool(Arc::new(After(id, f)))
}
