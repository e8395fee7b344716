use crate::common::{SERVER, call, connect, server, until};
use concentric_core::{Annotations, ToolStatus};
use concentric_mcp::McpServer;
use serde_json::json;
use std::{process::Command, time::Duration};

#[tokio::test]
async fn a_call_is_answered() {
    let server = connect("well").await;
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Done);
    assert_eq!(outcome.content.text(), "called");
}

#[tokio::test]
async fn a_server_with_a_result_for_each_method_is_connected() {
    let server = connect("results").await;
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.content.text(), "called");
}

#[tokio::test]
async fn the_outcome_of_a_call_whose_server_dies_is_unknown() {
    let server = connect("dies").await;
    for _ in 0..2 {
        // The second call reaches another process.
        let outcome = call(&server, "hostile__call", json!({})).await;
        assert_eq!(outcome.status, ToolStatus::Unknown, "{outcome:?}");
        assert!(outcome.content.text().contains("ended during the call"));
    }
}

#[tokio::test]
async fn a_repeatable_call_whose_server_dies_fails() {
    let server = server("dies").annotations(|_| Some(Annotations::idempotent()));
    let server = server.connect().await.unwrap();
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Failed, "{outcome:?}");
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled() {
    let file = std::env::temp_dir().join(format!("concentric-mcp-late-{}", std::process::id()));
    let mut command = Command::new(SERVER);
    command.arg("silent").env("CANCELLED", &file);
    let server = McpServer::stdio("hostile", &command).call_timeout(Duration::from_millis(100));
    let server = server.connect().await.unwrap();
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Unknown);
    assert!(outcome.content.text().contains("timed out"));
    until(async || file.exists()).await;
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn a_dropped_call_is_cancelled() {
    let file = std::env::temp_dir().join(format!("concentric-mcp-drop-{}", std::process::id()));
    let mut command = Command::new(SERVER);
    command.arg("silent").env("CANCELLED", &file);
    let server = McpServer::stdio("hostile", &command)
        .connect()
        .await
        .unwrap();
    let calling = call(&server, "hostile__call", json!({}));
    let late = tokio::time::timeout(Duration::from_millis(200), calling).await;
    assert!(late.is_err());
    until(async || file.exists()).await;
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn a_structured_result_must_match_its_schema() {
    let server = connect("structured").await;
    let outcome = call(&server, "hostile__structured", json!({"n": 3})).await;
    assert_eq!(outcome.status, ToolStatus::Done);
    assert_eq!(outcome.data.as_deref(), Some(&json!({"n": 3})));
    let outcome = call(&server, "hostile__structured", json!({"n": "three"})).await;
    assert_eq!(outcome.status, ToolStatus::Failed);
    assert!(outcome.content.text().contains("result is invalid"));
}

#[tokio::test]
async fn an_error_of_the_server_is_a_failed_call() {
    let server = connect("error").await;
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Failed);
    let expected = "The MCP server `hostile` reports an error: it is broken";
    assert_eq!(outcome.content.text(), expected);
}

#[tokio::test]
async fn a_long_result_is_cut() {
    let server = connect("large").await;
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert_eq!(outcome.status, ToolStatus::Done);
    assert!(outcome.content.text().len() <= 1 << 20);
}

#[tokio::test]
async fn an_answer_that_is_not_a_result_fails_the_call() {
    let server = server("nonsense").call_timeout(Duration::from_secs(1));
    let server = server.connect().await.unwrap();
    let outcome = call(&server, "hostile__call", json!({})).await;
    assert!(
        matches!(outcome.status, ToolStatus::Failed | ToolStatus::Unknown),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn the_process_has_only_the_configured_variables() {
    let mut command = Command::new(SERVER);
    command.arg("environment").env("TOKEN", "secret");
    let server = McpServer::stdio("hostile", &command);
    let alone = server.clone().connect().await.unwrap();
    let outcome = call(&alone, "hostile__call", json!({})).await;
    assert_eq!(outcome.content.text(), "TOKEN=secret");

    let inheriting = server
        .inherit_env(["PATH", "NOT_SET_ANYWHERE"])
        .connect()
        .await
        .unwrap();
    let outcome = call(&inheriting, "hostile__call", json!({})).await;
    let text = outcome.content.text();
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    assert_eq!(names.len(), 2, "{text}");
    assert!(names.contains(&("TOKEN", "secret")));
    assert!(names.contains(&("PATH", &*std::env::var("PATH").unwrap())));
}

#[tokio::test]
async fn nothing_secret_is_printed() {
    let mut command = Command::new(SERVER);
    command.env("TOKEN", "canary-1").arg("canary-2");
    let stdio = McpServer::stdio("hostile", &command);
    let http = McpServer::http("web", "https://example.com/canary-3").bearer("canary-4");
    assert!(!format!("{stdio:?} {http:?}").contains("canary"));
}
