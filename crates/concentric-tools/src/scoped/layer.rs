use super::{Scoped, applies};
use crate::{Matcher, ToolsetError, matcher::Matched};
use concentric_core::{
    BoxError, Error, Hooks, Plugin, ToolCall, ToolOutcome, ToolSpecs,
    agent::{Installer, ObserveSettled},
    hooks::Flow,
};
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

/// Installs hooks at each of their places. The methods for tool calls are called for the calls that
/// match, the others for all runs, steps and model calls.
impl<H> Plugin for ScopedLayer<H>
where
    H: Hooks,
{
    fn install(self, at: &mut Installer<'_>) {
        at.hooks(self.layer, |calls| ScopedLayer::new(self.matcher, calls));
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

    fn ask(
        &self,
        call: ToolCall,
    ) -> Pin<Box<dyn Future<Output = (ToolCall, Result<Flow<ToolOutcome>, Error>)> + Send>> {
        let (matcher, hooks) = (self.matcher.clone(), self.layer.clone());
        Box::pin(async move {
            match applies(matcher.matches(&call).await) {
                true => hooks.ask(call).await,
                false => (call, Ok(Flow::Continue)),
            }
        })
    }

    fn check(&self, tools: &ToolSpecs) -> Result<(), BoxError> {
        if self.matcher.has_none() {
            return Err(ToolsetError::EmptyRule(self.matcher.to_string().into()).into());
        }
        self.matcher.check_names(tools)?;
        self.layer.check(tools)
    }
}

/// Extension trait that applies layers and hooks to some of the tool calls.
pub trait ScopedExt: Sized {
    /// Applies this layer, or these hooks, only to calls that match.
    fn scoped(self, matcher: impl Into<Matcher>) -> ScopedLayer<Self> {
        ScopedLayer::new(matcher, self)
    }
}

impl<L> ScopedExt for L {}
