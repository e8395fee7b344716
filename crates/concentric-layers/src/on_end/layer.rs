use super::{End, OnEnd};
use tower_layer::Layer;

/// Creates a layer that calls `f` when an answer ends.
///
/// See the [module docs](super) for an example.
pub const fn on_end<F>(f: F) -> OnEndLayer<F>
where
    F: Fn(End<'_>) + Clone,
{
    OnEndLayer { f }
}

/// [`Layer`] that calls a function at the end of each answer ([`OnEnd`]).
#[derive(Clone, Copy)]
pub struct OnEndLayer<F> {
    f: F,
}

impl<S, F> Layer<S> for OnEndLayer<F>
where
    F: Clone,
{
    type Service = OnEnd<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        OnEnd::new(inner, self.f.clone())
    }
}

concentric_core::opaque_debug!(OnEndLayer<F>);
