//! A single tool is put into a `Toolset`.
use concentric_core::{AgentLayer, BoxModel};
use concentric_tools::{NoArguments, tool};
use tower::ServiceBuilder;

fn agent(model: BoxModel) {
    let now = tool("now", "Tells the time.", |_: NoArguments| async { "noon" });
    let _ = ServiceBuilder::new()
        .layer(AgentLayer::new(now))
        .service(model);
}

fn main() {
    let _ = agent;
}
