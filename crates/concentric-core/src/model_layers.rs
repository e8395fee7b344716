//! The layers around the model calls of one run.

use crate::{
    erased_layers::ErasedLayers,
    service::{BoxModel, ModelService},
};
use concentric_proto::{Error, ErrorKind};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tower_layer::Layer;

/// Layers around the model calls of one run, outside the agent's own layers. They are set in the
/// context's [own](crate::Context::own_mut) extensions.
///
/// See the [module docs](crate::of_run) for an example.
#[derive(Clone, Default)]
pub struct ModelLayers {
    layers: Arc<ErasedLayers>,
    // Set once they are applied to a model call.
    applied: Arc<AtomicBool>,
}

impl ModelLayers {
    /// Creates an empty set of layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer, inside the layers added before.
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
        Arc::make_mut(&mut self.layers).push(layer);
        self
    }

    pub(crate) fn around(&self, model: BoxModel) -> BoxModel {
        self.applied.store(true, Ordering::Relaxed);
        self.layers.around(model)
    }

    /// Returns the same layers, for one model call.
    pub(crate) fn for_call(&self) -> Self {
        Self {
            layers: Arc::clone(&self.layers),
            applied: Arc::default(),
        }
    }

    /// Returns whether the layers were applied to a model call.
    pub(crate) fn are_applied(&self) -> bool {
        self.applied.load(Ordering::Relaxed)
    }
}

/// Prints the names of the layers, outermost first.
impl fmt::Display for ModelLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.layers.names().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            write!(f, "`{name}`")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ModelLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelLayers")
            .field("layers", &self.layers)
            .finish()
    }
}

/// The error of a run whose own model layers were not applied.
pub(crate) fn not_applied(layers: &ModelLayers) -> Error {
    let message = format!(
        "no `OfRunLayer` applies the run's own model layers ({layers}): add `OfRunLayer` directly \
         inside `AgentLayer`"
    );
    Error::new(ErrorKind::Configuration, message).with_code("model_layers")
}
