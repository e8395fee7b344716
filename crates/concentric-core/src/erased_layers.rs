//! Layers around boxed models.

use crate::service::{BoxModel, SharedModel};
use std::{any::type_name, fmt, sync::Arc};
use tower_layer::Layer;

/// Layers around a boxed model, the first outermost.
#[derive(Clone, Default)]
pub(crate) struct ErasedLayers(Vec<(&'static str, Around)>);

type Around = Arc<dyn Fn(BoxModel) -> BoxModel + Send + Sync>;

impl ErasedLayers {
    pub(crate) fn push<L>(&mut self, layer: L)
    where
        L: Layer<BoxModel, Service: SharedModel> + Send + Sync + 'static,
    {
        let around = move |inner| BoxModel::new(layer.layer(inner));
        self.0.push((type_name::<L::Service>(), Arc::new(around)));
    }

    /// Adds the layers of `inner` inside those of `self`.
    pub(crate) fn extend(&mut self, inner: Self) {
        self.0.extend(inner.0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn around(&self, model: BoxModel) -> BoxModel {
        let layers = self.0.iter().rev();
        layers.fold(model, |model, (_, around)| around(model))
    }

    /// Returns the names of the types of the layers' services, outermost first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }
}

impl fmt::Debug for ErasedLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
