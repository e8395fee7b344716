use super::TransformEvents;
use tower_layer::Layer;

/// [`Layer`] that passes the events of an answer through a transform ([`TransformEvents`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy)]
pub struct TransformLayer<F> {
    make: F,
}

impl<F> TransformLayer<F> {
    /// Creates a layer that creates a [`Transform`](super::Transform) for each call with `make`.
    pub const fn new<T>(make: F) -> Self
    where
        F: Fn(&concentric_core::ChatRequest) -> T,
        T: super::Transform,
    {
        Self { make }
    }
}

impl<S, F> Layer<S> for TransformLayer<F>
where
    F: Clone,
{
    type Service = TransformEvents<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        TransformEvents::new(inner, self.make.clone())
    }
}

concentric_core::opaque_debug!(TransformLayer<F>);
