use super::OfRun;
use crate::{BoxModel, ModelService};
use std::{fmt, sync::Arc};
use tower_layer::Layer;

/// [`Layer`] that stands where the layers of one run go.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfRunLayer(());

impl OfRunLayer {
    /// Creates the layer.
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for OfRunLayer
where
    S: ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    type Service = OfRun<S>;

    fn layer(&self, inner: S) -> OfRun<S> {
        OfRun::new(inner)
    }
}

/// Layers around the model calls of one run, outside the agent's own; they stand in what its context
/// has of its [own](crate::Context::own_mut).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Default)]
pub struct ModelLayers(Arc<Vec<Around>>);

type Around = Arc<dyn Fn(BoxModel) -> BoxModel + Send + Sync>;

impl ModelLayers {
    /// Creates no layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer, inside those that were added before.
    #[must_use]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<BoxModel> + Send + Sync + 'static,
        L::Service: ModelService<Body: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        let around = move |inner| BoxModel::new(layer.layer(inner));
        Arc::make_mut(&mut self.0).push(Arc::new(around));
        self
    }

    pub(super) fn around(&self, model: BoxModel) -> BoxModel {
        self.0
            .iter()
            .rev()
            .fold(model, |model, around| around(model))
    }
}

impl fmt::Debug for ModelLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelLayers")
            .field("layers", &self.0.len())
            .finish()
    }
}
