//! Tool calls that do not run, for the tests of what observes them.

use concentric_core::{
    AgentLayer, CallId, ChatRequest, Clearance, Context, Reply, RoundCall, ToolCall, ToolCallPart,
    ToolOutcome, Transcript,
};
use concentric_test::ScriptedModel;
use concentric_tools::{Approval, NoArguments, Toolset, tool};
use serde_json::json;
use std::sync::Arc;
use tower::{Layer, ServiceExt};

/// A denied call of a tool that does not exist.
pub(crate) fn call(context: &Context) -> ToolCall {
    let part = ToolCallPart::new(CallId::new("c1"), "look", json!({}));
    let denied = Clearance::Settled(Arc::new(ToolOutcome::denied("no")));
    ToolCall::of_round(RoundCall::new(0, part), denied, Transcript::new(), context)
}

/// Runs an agent with `add`'s hooks on its tools, which observe two calls: one of `pay`, which is denied, and one
/// of a tool that does not exist, `invented_name`.
pub(crate) async fn run(add: impl FnOnce(Toolset) -> Toolset) {
    let tools = Toolset::new()
        .tool(tool("pay", "", |NoArguments {}| async { "paid" }))
        .gate(Approval::for_tools("pay"));
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .tool_call("invented_name", json!({}))
        .then()
        .text("Not paid.");
    let agent = AgentLayer::new(add(tools)).layer(model);
    let asked = agent.clone().oneshot(ChatRequest::user("hi"));
    let asked = asked.await.unwrap().collect().await.unwrap();
    let state = *asked.finish.state.unwrap();
    let deny = Reply::deny(state.interrupts()[0].id.clone(), "no");
    let answer = agent.oneshot(ChatRequest::resume(state, vec![deny]));
    answer.await.unwrap().collect().await.unwrap();
}
