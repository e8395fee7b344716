//! Layers around boxed models.

use crate::{
    describe::short,
    service::{BoxModel, SharedModel},
};
use concentric_proto::Phase;
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

    /// Adds the layers around `model`, and `each` around each of them.
    pub(crate) fn around(&self, model: BoxModel, phase: Phase, each: &EachLayer) -> BoxModel {
        let layers = self.0.iter().rev();
        layers.fold(model, |model, (name, around)| {
            each.around(phase, name, around(model))
        })
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

/// The layers that plugins add around each layer of an agent.
#[derive(Clone, Default)]
pub(crate) struct EachLayer(Option<Arc<AroundEach>>);

type AroundEach = dyn Fn(Phase, &str, BoxModel) -> BoxModel + Send + Sync;

impl EachLayer {
    /// Adds the layers of `make` inside those that were added before.
    pub(crate) fn push<L>(&mut self, make: impl Fn(Phase, &str) -> L + Send + Sync + 'static)
    where
        L: Layer<BoxModel, Service: SharedModel>,
    {
        let outer = self.clone();
        self.0 = Some(Arc::new(move |phase, name, inner| {
            let inner = BoxModel::new(make(phase, name).layer(inner));
            outer.around(phase, name, inner)
        }));
    }

    /// Adds the layers around `inner`, whose type is `name`.
    pub(crate) fn around(&self, phase: Phase, name: &str, inner: BoxModel) -> BoxModel {
        match &self.0 {
            Some(around) => around(phase, &short(name), inner),
            None => inner,
        }
    }
}

impl fmt::Debug for EachLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EachLayer").field(&self.0.is_some()).finish()
    }
}
