use crate::{
    gate::Gate,
    hooks::{Hooks, ToolHooksLayer},
    service::{BoxTool, ToolService},
    tool_call::ToolCall,
};
use std::{any::type_name, fmt, future::Future, pin::Pin, sync::Arc};
use tower_layer::Layer;

/// A layer around tool calls with its type erased.
#[derive(Clone)]
pub struct ErasedToolLayer {
    name: &'static str,
    wrap: Arc<dyn Fn(BoxTool) -> BoxTool + Send + Sync>,
    observe: Option<Arc<dyn Fn(ToolCall) -> Observation + Send + Sync>>,
}

/// The observation of a call that has its outcome and does not enter the layers.
type Observation = Pin<Box<dyn Future<Output = ()> + Send>>;

impl ErasedToolLayer {
    /// Erases the type of `layer`.
    pub fn new<L>(layer: L) -> Self
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        Self {
            name: type_name::<L>(),
            wrap: Arc::new(move |inner| BoxTool::new(layer.layer(inner))),
            observe: None,
        }
    }

    /// Erases the type of hooks, which also [observe](ToolHooksLayer::observe) settled calls.
    pub fn hooks<H>(hooks: ToolHooksLayer<H>) -> Self
    where
        H: Hooks,
    {
        let observer = hooks.clone();
        Self {
            observe: Some(Arc::new(move |call| Box::pin(observer.observe(call)))),
            ..Self::new(hooks)
        }
    }

    /// Returns the name of the layer's type.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Calls hooks with a settled call; `None` if the layer does not observe such calls.
    pub fn observe(&self, call: &ToolCall) -> Option<Observation> {
        self.observe.as_ref().map(|observe| observe(call.clone()))
    }

    /// Returns whether the layer observes settled calls.
    pub fn observes(&self) -> bool {
        self.observe.is_some()
    }
}

impl Layer<BoxTool> for ErasedToolLayer {
    type Service = BoxTool;

    fn layer(&self, inner: BoxTool) -> BoxTool {
        (self.wrap)(inner)
    }
}

impl fmt::Debug for ErasedToolLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ErasedToolLayer").field(&self.name).finish()
    }
}

/// What plugins add to the tools of an agent; see [`ToolSource::install`](crate::ToolSource::install).
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct ToolParts {
    /// Layers around each call, inside those that the tools have already; the first is outermost.
    pub layers: Vec<ErasedToolLayer>,
    /// Gates of each call.
    pub gates: Vec<Arc<dyn Gate>>,
}

impl ToolParts {
    /// Returns whether there are no parts.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.gates.is_empty()
    }
}

impl fmt::Debug for ToolParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolParts")
            .field("layers", &self.layers)
            .field("gates", &self.gates.len())
            .finish()
    }
}
