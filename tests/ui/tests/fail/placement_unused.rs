//! A budget limits the run, and no layer around the model charges it.
use concentric_core::{
    BoxModel, Capability, Declares, Layers,
    capability::{Expects, Provides, Requires},
};
use tower::Layer;

#[derive(Clone)]
struct Budget;

impl Capability for Budget {}

struct RunBudgetLayer;

impl Declares for RunBudgetLayer {
    type Capabilities = (Provides<Budget>, Expects<Budget, ModelBudgetLayer>);
}

impl<S> Layer<S> for RunBudgetLayer {
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}

struct ModelBudgetLayer;

impl Declares for ModelBudgetLayer {
    type Capabilities = Requires<Budget>;
}

impl<S> Layer<S> for ModelBudgetLayer {
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}

fn agent(model: BoxModel) {
    let whole = Layers::new().with(RunBudgetLayer).with(ModelBudgetLayer);
    let _ = whole.service(model.clone());
    let _ = Layers::new().with(RunBudgetLayer).service(model);
}

fn main() {
    let _ = agent;
}
