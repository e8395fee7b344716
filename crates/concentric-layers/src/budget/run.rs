use super::{BudgetPlugin, RunBudgetLayer};
use concentric_core::{ChatRequest, RunOverrides};
use std::task::{Context, Poll};
use tower_service::Service;

/// Middleware that creates the [`Budget`](super::Budget) of each run.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Debug)]
pub struct RunBudget<S> {
    inner: S,
    layer: BudgetPlugin,
}

impl<S> RunBudget<S> {
    /// Wraps `inner`, whose runs get a budget as configured by `layer`.
    pub const fn new(inner: S, layer: BudgetPlugin) -> Self {
        Self { inner, layer }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Gets a mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes `self`, returning the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S> Service<ChatRequest> for RunBudget<S>
where
    S: Service<ChatRequest>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let gate = RunOverrides::new().optional_step_gate(self.layer.gate());
        request.overrides_mut().extend(gate);
        let context = &mut request.context;
        let budget = self.layer.budget(context);
        let limits_models = budget.limits_models();
        context.provide(budget);
        if limits_models {
            // Cannot fail, because the layer requires nothing. The call registers the layers that
            // it expects inside.
            let _ = context.enter_expecting::<RunBudgetLayer>(self.layer.charges());
        }
        self.inner.call(request)
    }
}
