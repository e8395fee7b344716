use concentric_core::{
    CallId, Context, Event, Message, Part, PartKind, Role, ToolCallPart, ToolOutcome,
};
use concentric_mcp::{McpConnection, McpServer};
use concentric_tools::{RoundEnd, ToolLifecycle, Toolset};
use serde_json::Value;
use std::{
    future::Future,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

pub(crate) const SERVER: &str = env!("CARGO_BIN_EXE_hostile_mcp_server");

/// The settings of a server that misbehaves in the way of `how`.
pub(crate) fn server(how: &str) -> McpServer {
    let mut command = Command::new(SERVER);
    command.arg(how);
    McpServer::stdio("hostile", &command)
}

pub(crate) async fn connect(how: &str) -> McpConnection {
    server(how).connect().await.unwrap()
}

/// The message of a model with one call.
pub(crate) fn message(tool: &str, arguments: &Value) -> Message {
    let call = ToolCallPart::new(CallId::new("call_1"), tool, arguments.to_string());
    Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))])
}

/// Calls a tool through the lifecycle of a toolset, and collects the events.
pub(crate) async fn call_with(
    tools: Toolset,
    tool: &str,
    arguments: Value,
) -> (ToolOutcome, Vec<Event>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let mut lifecycle = ToolLifecycle::new(tools)
        .with_context(Context::new())
        .on_event(move |event| seen.lock().unwrap().push(event));
    let end = lifecycle
        .execute_round(message(tool, &arguments))
        .await
        .unwrap();
    let RoundEnd::Closed(round) = end else {
        panic!("{end:?}");
    };
    let outcome = round.results().first().unwrap().outcome.clone();
    let events = events.lock().unwrap().clone();
    (outcome, events)
}

pub(crate) async fn call(server: &McpConnection, tool: &str, arguments: Value) -> ToolOutcome {
    let tools = Toolset::new().tools(server.tools());
    call_with(tools, tool, arguments).await.0
}

/// Waits until `condition` holds; fails after a while.
pub(crate) async fn until<F, Fut>(condition: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = bool>,
{
    for _ in 0..1000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the condition did not hold in time");
}
