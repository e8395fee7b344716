//! tower's `RateLimit` is not `Clone`, so it needs a `Buffer` below an agent.
use concentric_core::{AgentLayer, BoxModel, NoTools};
use std::time::Duration;
use tower::ServiceBuilder;

fn agent(model: BoxModel) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(NoTools))
            .rate_limit(5, Duration::from_secs(1))
            .service(model),
    )
}

fn main() {
    let _ = agent;
}
