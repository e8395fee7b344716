use super::Durable;
use tower_layer::Layer;

/// [`Layer`] that makes model calls durable steps ([`Durable`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DurableLayer {}

impl DurableLayer {
    /// Creates a layer.
    pub const fn new() -> Self {
        Self {}
    }
}

impl<S> Layer<S> for DurableLayer {
    type Service = Durable<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Durable::new(inner)
    }
}
