//! The contract of layers over a tool.

use concentric_core::{ToolCall, hooks};
use concentric_layers::{
    from_fn::NextTool,
    tool_cache::{CacheScope, ToolCacheLayer},
    tool_from_fn,
};
use concentric_test::{check_step_gate, check_tool_layer};
use concentric_tools::{RetryTool, ScopedExt};
use std::sync::Arc;
use tower::retry::RetryLayer;

struct Nothing;

impl hooks::Hooks for Nothing {
    fn id(&self) -> &str {
        "nothing"
    }
}

#[tokio::test(start_paused = true)]
async fn layers_over_tools_keep_their_contract() {
    check_tool_layer(ToolCacheLayer::new(CacheScope::Run)).await;
    check_tool_layer(RetryLayer::new(RetryTool::new(3))).await;
    check_tool_layer(hooks::tool(Arc::new(Nothing))).await;
    let next = async |call: ToolCall, mut next: NextTool| next.run(call).await;
    check_tool_layer(tool_from_fn(next)).await;
    check_tool_layer(hooks::tool(Arc::new(Nothing)).scoped("look")).await;
}

#[tokio::test(start_paused = true)]
async fn hooks_keep_the_contract_of_step_gates() {
    check_step_gate(|| hooks::step_gate(Arc::new(Nothing))).await;
}
