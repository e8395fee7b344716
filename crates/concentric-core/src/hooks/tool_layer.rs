use super::{Flow, HookedTool, Hooks, tool_future::Guard, tool_shared::Shared};
use crate::tool_call::ToolCall;
use concentric_proto::{Error, ToolOutcome};
use std::{any::type_name, fmt, sync::Arc};
use tower_layer::Layer;

/// [`Layer`] that calls [`Hooks`] for tool calls. Its services share the hooks.
///
/// Created by [`tool`](super::tool).
pub struct ToolHooksLayer<H> {
    shared: Arc<Shared<H>>,
}

impl<H> ToolHooksLayer<H>
where
    H: Hooks,
{
    pub(super) fn new(hooks: Arc<H>) -> Self {
        Self {
            shared: Arc::new(Shared::new(hooks)),
        }
    }

    /// Calls [`after_call`](Hooks::after_call) with the outcome of a
    /// [settled](ToolCall::settled) call, which does not enter the layers. For round services; the
    /// outcome cannot be replaced.
    pub fn observe(&self, call: ToolCall) -> impl Future<Output = ()> + Send + use<H> {
        Guard::new(Arc::clone(&self.shared)).observe(call)
    }

    /// Calls [`before_call`](Hooks::before_call) for a call that is not made, and returns the call
    /// with the arguments that the hooks set. For round services.
    pub fn ask(
        &self,
        call: ToolCall,
    ) -> impl Future<Output = (ToolCall, Result<Flow<ToolOutcome>, Error>)> + Send + use<H> {
        Guard::new(Arc::clone(&self.shared)).ask(call)
    }
}

impl<S, H> Layer<S> for ToolHooksLayer<H> {
    type Service = HookedTool<S, H>;

    fn layer(&self, inner: S) -> Self::Service {
        HookedTool::new(inner, Arc::clone(&self.shared))
    }
}

impl<H> Clone for ToolHooksLayer<H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<H> fmt::Debug for ToolHooksLayer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolHooksLayer")
            .field("hooks", &format_args!("{}", type_name::<H>()))
            .finish()
    }
}
