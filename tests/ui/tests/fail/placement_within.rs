//! A layer for model calls stands around the agent.
use concentric_core::{
    AgentLayer, Layers, NoTools,
    hooks::{self, Hooks},
};
use std::sync::Arc;

struct Audit;

impl Hooks for Audit {
    fn id(&self) -> &str {
        "audit"
    }
}

fn main() {
    let _ = Layers::new()
        .with(AgentLayer::new(NoTools))
        .with(hooks::model(Arc::new(Audit)));
    let _ = Layers::new()
        .with(hooks::model(Arc::new(Audit)))
        .with(AgentLayer::new(NoTools));
}
