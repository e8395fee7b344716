use super::{End, OnEnd};
use std::{any::type_name, fmt};
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

impl<F> fmt::Debug for OnEndLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnEndLayer")
            .field(&format_args!("{}", type_name::<F>()))
            .finish()
    }
}
