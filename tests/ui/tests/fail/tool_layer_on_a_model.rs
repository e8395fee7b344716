//! A layer for tool calls does not fit on a model.
use concentric_core::{BoxModel, Error, ToolCall, ToolOutcome};
use concentric_layers::{NextTool, tool_from_fn};
use tower::ServiceBuilder;

async fn log(call: ToolCall, mut next: NextTool) -> Result<ToolOutcome, Error> {
    println!("{}", call.name());
    next.run(call).await
}

fn agent(model: BoxModel) {
    let _ = ServiceBuilder::new()
        .layer(tool_from_fn(log))
        .service(model);
}

fn main() {
    let _ = agent;
}
