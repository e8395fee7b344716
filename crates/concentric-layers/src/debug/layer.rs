use super::Debug;
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

impl<S> Layer<S> for DebugLayer {
    type Service = Debug<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Debug::new(inner, self.place)
    }
}
