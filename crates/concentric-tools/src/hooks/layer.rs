use super::{
    HookedTool, ToolHooks,
    future::{Guard, matched},
    shared::Shared,
};
use crate::{
    Matcher,
    layers::{Observation, Observe},
    matcher::Matched,
};
use concentric_core::ToolCall;
use std::{any::type_name, fmt, sync::Arc};
use tower_layer::Layer;

/// [`Layer`] that calls [`ToolHooks`] for tool calls.
///
/// See the [module docs](super) for an example. Its services share the hooks.
pub struct ToolHooksLayer<H> {
    shared: Arc<Shared<H>>,
    scope: Option<Matcher>,
}

impl<H> ToolHooksLayer<H>
where
    H: ToolHooks,
{
    /// Creates a layer that calls `hooks` for every tool call.
    pub fn new(hooks: H) -> Self {
        Self {
            shared: Arc::new(Shared::new(hooks)),
            scope: None,
        }
    }

    /// Calls the hooks only for calls that match, or for which the matcher fails.
    ///
    /// The call is matched before the hooks change it.
    #[must_use]
    pub fn scoped(mut self, matcher: impl Into<Matcher>) -> Self {
        let matcher = matcher.into();
        self.scope = Some(match self.scope {
            Some(scope) => scope.and(matcher),
            None => matcher,
        });
        self
    }
}

impl<H> ToolHooksLayer<H>
where
    H: ToolHooks,
{
    /// Returns a function that calls the hooks with the outcomes of settled calls.
    pub(crate) fn observe(&self) -> Arc<Observe> {
        let (shared, scope) = (Arc::clone(&self.shared), self.scope.clone());
        Arc::new(move |call: &ToolCall| {
            let shared = Arc::clone(&shared);
            let later = match scope.as_ref().map(|scope| scope.matches(call)) {
                None => None,
                Some(Matched::Now(result)) => match matched(result, &shared.hooks) {
                    true => None,
                    false => return None,
                },
                Some(Matched::Later(later)) => Some(later),
            };
            let Some(later) = later else {
                return Some(Guard::of(shared, call.clone()).observed());
            };
            let call = call.clone();
            let observation: Observation = Box::pin(async move {
                if matched(later.await, &shared.hooks) {
                    Guard::of(shared, call).observed().await;
                }
            });
            Some(observation)
        })
    }
}

impl<S, H> Layer<S> for ToolHooksLayer<H> {
    type Service = HookedTool<S, H>;

    fn layer(&self, inner: S) -> Self::Service {
        HookedTool::new(inner, Arc::clone(&self.shared), self.scope.clone())
    }
}

impl<H> Clone for ToolHooksLayer<H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            scope: self.scope.clone(),
        }
    }
}

impl<H> fmt::Debug for ToolHooksLayer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolHooksLayer")
            .field("hooks", &format_args!("{}", type_name::<H>()))
            .field("scope", &self.scope)
            .finish()
    }
}
