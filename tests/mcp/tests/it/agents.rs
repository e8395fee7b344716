//! An agent that is served as a tool.

use crate::{
    common::{message, until},
    http::serve,
};
use axum::Router;
use concentric_core::{CancelReason, Context, Event, ToolStatus};
use concentric_mcp::{McpConnection, McpServer, McpService};
use concentric_mcp_tests::{Called, assistant, call, running};
use concentric_tools::{ToolLifecycle, Toolset};
use serde_json::{Value, json};
use std::time::Duration;

async fn served() -> McpConnection {
    let service = McpService::new("agents", Toolset::new().tool(assistant()));
    let origin = serve(Router::new().route_service("/mcp", service)).await;
    let server = McpServer::http("agents", format!("{origin}/mcp")).allow_private_addresses();
    server.connect().await.unwrap()
}

async fn prompted(server: &McpConnection, prompt: &str, answer: Value) -> Called {
    let tools = Toolset::new().tools(server.tools());
    let arguments = json!({"prompt": prompt});
    let called = call(&tools, "agents__assistant", &arguments, &answer).await;
    called.unwrap()
}

#[tokio::test]
async fn the_text_of_an_agent_is_progress_and_its_answer_the_result() {
    let server = served().await;
    let called = prompted(&server, "count to 100", Value::Null).await;
    let words: String = (0..100).map(|number| format!("{number} ")).collect();
    assert_eq!(called.outcome.status, ToolStatus::Done);
    assert_eq!(
        called.outcome.data.as_deref(),
        Some(&json!({"words": words}))
    );
    let messages = called.events.iter().filter_map(|event| match event {
        Event::Custom(event) => event.value["message"].as_str(),
        _ => None,
    });
    let messages: Vec<_> = messages.collect();
    // 100 words in a second.
    assert!((2..=6).contains(&messages.len()), "{messages:?}");
    let whole = format!("{{\"words\": \"{words}\"}}");
    assert!(whole.starts_with(&messages.concat()), "{messages:?}");
}

#[tokio::test]
async fn an_interrupt_of_an_agent_is_a_question_to_the_user() {
    let server = served().await;
    let called = prompted(&server, "refund the order", json!({"approved": true})).await;
    assert_eq!(called.suspensions, 1);
    assert_eq!(
        called.outcome.data.as_deref(),
        Some(&json!({"words": "refunded"}))
    );
}

#[tokio::test]
async fn an_error_of_an_agent_does_not_reach_the_client() {
    let server = served().await;
    let called = prompted(&server, "break", Value::Null).await;
    assert_eq!(called.outcome.status, ToolStatus::Failed);
    assert!(!called.text().contains("secret"), "{}", called.text());
}

#[tokio::test]
async fn a_long_answer_is_cut_at_the_limit_of_its_reader() {
    let server = served().await;
    let called = prompted(&server, "write a MiB", Value::Null).await;
    assert_eq!(called.outcome.status, ToolStatus::Done);
    let data = called.outcome.data.as_deref().unwrap();
    assert_eq!(data["words"].as_str().map(str::len), Some(1 << 20));
    assert!(called.text().len() <= 1 << 20);
}

#[tokio::test]
async fn a_call_that_is_dropped_cancels_the_run() {
    let server = served().await;
    let mut lifecycle = ToolLifecycle::new(Toolset::new().tools(server.tools()));
    let message = message("agents__assistant", &json!({"prompt": "wait"}));
    let calling = lifecycle.execute_round(message);
    let dropped = tokio::time::timeout(Duration::from_millis(500), calling).await;
    assert!(dropped.is_err());
    until(async || running() == 0).await;
    // A cancelled run does the same.
    let context = Context::new();
    let cancelled = context.clone();
    let message = crate::common::message("agents__assistant", &json!({"prompt": "wait"}));
    let tools = Toolset::new().tools(server.tools());
    let mut lifecycle = ToolLifecycle::new(tools).with_context(context);
    let (_, ()) = tokio::join!(lifecycle.execute_round(message), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(running(), 1);
        cancelled.cancel(CancelReason::User);
    });
    until(async || running() == 0).await;
}
