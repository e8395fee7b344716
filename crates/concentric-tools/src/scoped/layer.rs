use super::{Scoped, applies};
use crate::{Matcher, matcher::Matched};
use concentric_core::{ToolCall, agent::ObserveSettled};
use std::pin::Pin;
use tower_layer::Layer;

/// [`Layer`] that applies another layer to some of the tool calls.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct ScopedLayer<L> {
    matcher: Matcher,
    layer: L,
}

impl<L> ScopedLayer<L> {
    /// Applies `layer` to calls that match.
    pub fn new(matcher: impl Into<Matcher>, layer: L) -> Self {
        Self {
            matcher: matcher.into(),
            layer,
        }
    }
}

impl<S, L> Layer<S> for ScopedLayer<L>
where
    S: Clone,
    L: Layer<S>,
{
    type Service = Scoped<L::Service, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Scoped::new(self.matcher.clone(), self.layer.layer(inner.clone()), inner)
    }
}

impl<L> ObserveSettled for ScopedLayer<L>
where
    L: ObserveSettled + Clone,
{
    fn observe(&self, call: &ToolCall) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        match self.matcher.evaluate(call) {
            Matched::Now(matched) => applies(matched).then(|| self.layer.observe(call)).flatten(),
            Matched::Later(later) => {
                let (hooks, call) = (self.layer.clone(), call.clone());
                Some(Box::pin(async move {
                    if applies(later.await)
                        && let Some(observation) = hooks.observe(&call)
                    {
                        observation.await;
                    }
                }))
            }
        }
    }
}

/// Extension trait that applies layers to some of the tool calls.
pub trait ScopedExt: Sized {
    /// Applies this layer only to calls that match.
    fn scoped(self, matcher: impl Into<Matcher>) -> ScopedLayer<Self> {
        ScopedLayer::new(matcher, self)
    }
}

impl<L> ScopedExt for L {}
