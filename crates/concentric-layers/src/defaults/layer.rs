use super::Defaults;
use concentric_core::{ChatOptions, Str, SystemSegment};
use std::{fmt, sync::Arc};
use tower_layer::Layer;

/// [`Layer`] that sets the system prompt and options of requests ([`Defaults`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug, Default)]
pub struct RequestDefaultsLayer {
    pub(super) values: Arc<Values>,
}

#[derive(Clone, Default)]
pub(super) struct Values {
    pub(super) system: Vec<SystemSegment>,
    pub(super) options: ChatOptions,
}

/// Without the texts of the system prompt.
impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values")
            .field("system_segments", &self.system.len())
            .field("options", &self.options)
            .finish()
    }
}

impl RequestDefaultsLayer {
    /// Creates a layer without defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a system segment with a fixed text.
    #[must_use]
    pub fn system(self, text: impl Into<Str>) -> Self {
        self.system_segment(SystemSegment::new(text))
    }

    /// Adds a system segment.
    #[must_use]
    pub fn system_segment(mut self, segment: SystemSegment) -> Self {
        Arc::make_mut(&mut self.values).system.push(segment);
        self
    }

    /// Sets the model.
    #[must_use]
    pub fn model(self, model: impl Into<Str>) -> Self {
        let model = model.into();
        self.options(|options| options.model = Some(model))
    }

    /// Sets default options.
    #[must_use]
    pub fn options(mut self, set: impl FnOnce(&mut ChatOptions)) -> Self {
        set(&mut Arc::make_mut(&mut self.values).options);
        self
    }
}

impl<S> Layer<S> for RequestDefaultsLayer {
    type Service = Defaults<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Defaults::new(inner, Arc::clone(&self.values))
    }
}
