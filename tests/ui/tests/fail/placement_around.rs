//! A layer for runs is inside the loop.
use concentric_core::{
    AgentLayer, Declares, Layers, NoTools,
    capability::{Around, InLoop},
};

struct AuditLayer;

impl Declares for AuditLayer {
    type Capabilities = Around<InLoop>;
}

fn main() {
    let _ = Layers::new()
        .with(AuditLayer)
        .with(AgentLayer::new(NoTools));
    let _ = Layers::new()
        .with(AgentLayer::new(NoTools))
        .with(AuditLayer);
}
