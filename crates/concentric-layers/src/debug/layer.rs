use super::Debug;
use concentric_core::agent::{Installer, Plugin};
use tower_layer::Layer;

/// [`Layer`] that logs requests and events ([`Debug`](super::Debug)).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, std::fmt::Debug)]
pub struct DebugLayer {
    place: &'static str,
}

impl DebugLayer {
    /// Creates a layer that logs `place` with each request and event.
    pub const fn new(place: &'static str) -> Self {
        Self { place }
    }
}

/// Logs the requests and events of the run and of each model call, outside of the layers that
/// are added later.
impl Plugin for DebugLayer {
    fn install(self, at: &mut Installer<'_>) {
        at.run_layer(self);
        at.model_layer(self);
    }
}

impl<S> Layer<S> for DebugLayer {
    type Service = Debug<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Debug::new(inner, self.place)
    }
}
