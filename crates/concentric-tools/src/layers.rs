use concentric_core::{BoxTool, ToolService};
use std::{fmt, sync::Arc};
use tower_layer::Layer;

/// Layers around tool calls, the first added outermost.
///
/// Each is erased when it is added, so that the work of the compiler and the type of a stack do
/// not grow with the number of layers.
#[derive(Clone, Default)]
pub(crate) struct Layers(Vec<Entry>);

#[derive(Clone)]
struct Entry {
    name: &'static str,
    wrap: Arc<dyn Fn(BoxTool) -> BoxTool + Send + Sync>,
}

impl Layers {
    pub(crate) fn push<L>(&mut self, layer: L)
    where
        L: Layer<BoxTool> + Send + Sync + 'static,
        L::Service: ToolService<Future: Send + 'static> + Clone + Send + Sync + 'static,
    {
        self.0.push(Entry {
            name: std::any::type_name::<L>(),
            wrap: Arc::new(move |inner| BoxTool::new(layer.layer(inner))),
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn around(&self, innermost: BoxTool) -> BoxTool {
        let inside_out = self.0.iter().rev();
        inside_out.fold(innermost, |inner, layer| (layer.wrap)(inner))
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|layer| layer.name))
            .finish()
    }
}
