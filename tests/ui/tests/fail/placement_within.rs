//! A layer for model calls stands around the agent.
use concentric_core::{AgentLayer, Layers, NoTools, of_run::OfRunLayer};

fn main() {
    let _ = Layers::new()
        .with(AgentLayer::new(NoTools))
        .with(OfRunLayer::new());
    let _ = Layers::new()
        .with(OfRunLayer::new())
        .with(AgentLayer::new(NoTools));
}
