use crate::layers::{Layers, ObserveSettled};
use concentric_core::{BoxTool, ToolService, service::CloneService};
use tower_layer::Layer;

/// Layers around the tool calls of one run, outside of the agent's layers. They are set in
/// [`Context::own_mut`](concentric_core::Context::own_mut) of the run's request.
///
/// ```
/// use concentric_core::{ChatRequest, ToolCall};
/// use concentric_layers::{NextTool, tool_from_fn};
/// use concentric_tools::ToolLayers;
///
/// let mut request = ChatRequest::user("hi");
/// let own = ToolLayers::new().layer(tool_from_fn(async |call: ToolCall, mut next: NextTool| {
///     next.run(call).await
/// }));
/// request.context.own_mut().insert(own);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ToolLayers(pub(super) Layers);

impl ToolLayers {
    /// Creates an empty list of layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer inside those that were added before.
    #[must_use]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + CloneService + Send + Sync + 'static,
    {
        self.0.push(layer);
        self
    }

    /// Adds hooks that also observe calls that do not run: see [`Toolset::hooks`](crate::Toolset::hooks).
    #[must_use]
    pub fn hooks<L>(mut self, hooks: L) -> Self
    where
        L: ObserveSettled + Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        self.0.push_hooks(hooks);
        self
    }
}
