//! Runs behind AG-UI that are refused: the client reads why, and the server's log names the thing.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test")]

use concentric_core::{AgentLayer, BoxModel, InterruptHub};
use concentric_http::ag_ui::AgUiLayer;
use concentric_layers::SuspendLayer;
use concentric_store::SqliteStore;
use concentric_test::{ScriptedModel, ScriptedTools};
use concentric_tools::{Approval, ApprovalTokens, NoArguments, Toolset, token::TokenKeys, tool};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{Layer, Service, ServiceExt};
use tracing::Level;

type Request = http::Request<Full<bytes::Bytes>>;

fn post(tools: &Value) -> Request {
    let message = json!({"id": "u", "role": "user", "content": "hi"});
    let input = json!({"threadId": "t", "runId": "r", "messages": [message], "tools": tools});
    http::Request::post("/agent")
        .header("content-type", "application/json")
        .body(Full::new(input.to_string().into()))
        .unwrap()
}

/// The lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// The only test of this program that reads the log, which is that of the whole process.
#[tokio::test]
async fn a_client_tool_named_like_a_server_tool_is_logged() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(Level::INFO)
        .with_writer(move || writer.clone())
        .init();
    let model = ScriptedModel::new().text("never");
    let tools = ScriptedTools::new().answers("search", "found");
    let agent = BoxModel::new(AgentLayer::new(tools).layer(model.clone()));
    let service = AgUiLayer::new().layer(agent);
    let taken = json!([{"name": "search", "description": "the client's secret"}]);
    let response = service.oneshot(post(&taken)).await.unwrap();
    assert_eq!(response.status(), 422);
    assert_eq!(model.calls(), 0);
    let log = lines.text();
    let found = log
        .lines()
        .filter(|line| line.contains("has the name of an agent's tool"));
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1, "{log}");
    for part in ["INFO", "tool=\"search\"", "thread_id=t", "run_id=r"] {
        assert!(
            found.iter().all(|line| line.contains(part)),
            "{part}: {log}"
        );
    }
    assert!(!log.contains("secret"), "{log}");
}

#[tokio::test]
async fn a_live_run_is_a_conflict_before_its_model_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("runs.db");
    // Two processes that share a store.
    let process = || {
        let model = ScriptedModel::new().tool_call("look", "{}").then().never();
        let tools = ScriptedTools::new().answers("look", "seen");
        let store = Arc::new(SqliteStore::open(&file).unwrap());
        let agent = AgentLayer::new(tools).layer(model.clone());
        let agent = BoxModel::new(SuspendLayer::new(store).layer(agent));
        (AgUiLayer::new().layer(agent), model)
    };
    let (mut first, model) = process();
    let response = first.call(post(&json!([]))).await.unwrap();
    let mut body = Box::pin(response.into_body());
    let mut shown = String::new();
    // From its first round on the run is in the store.
    while !shown.contains("TOOL_CALL_RESULT") {
        let frame = body.frame().await.unwrap().unwrap();
        shown += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
    }
    let (other, model_of_other) = process();
    for service in [first.clone(), other] {
        let response = service.oneshot(post(&json!([]))).await.unwrap();
        assert_eq!(response.status(), 409);
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["error"]["code"], "run_live");
    }
    assert_eq!(model_of_other.calls(), 0);
    // The two steps of the live run.
    assert!(model.calls() <= 2, "{}", model.calls());
}

#[tokio::test]
async fn an_unknown_effect_fails_no_run_that_is_not_stored() {
    for has_tokens in [true, false] {
        let store = SqliteStore::open_in_memory().unwrap();
        let pay = tool("pay", "", |NoArguments {}| std::future::pending::<()>());
        let refund = tool("refund", "", |NoArguments {}| async {});
        let tools = Toolset::new()
            .tool(pay.timeout(Duration::ZERO))
            .tool(refund)
            .ledger(store.clone());
        let approval = Approval::for_tools("refund");
        let tools = match has_tokens {
            true => {
                let keys = TokenKeys::new("k", vec![7; 32]).unwrap();
                let tokens = ApprovalTokens::new(keys, "https://agent.example", store);
                tools.gate(approval).tokens(tokens)
            }
            false => tools.gate(approval.live(&InterruptHub::new(), Duration::ZERO)),
        };
        let model = ScriptedModel::new()
            .tool_call("pay", json!({}))
            .then()
            .text("I do not know whether it is paid.");
        let agent = BoxModel::new(AgentLayer::new(tools).layer(model.clone()));
        let service = AgUiLayer::new().layer(agent);
        let response = service.oneshot(post(&json!([]))).await.unwrap();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        let answer = String::from_utf8(answer.to_vec()).unwrap();
        assert!(!answer.contains("RUN_ERROR"), "{answer}");
        assert!(answer.contains("\"status\":\"unknown\""), "{answer}");
        assert!(answer.contains("I do not know"), "{answer}");
        assert_eq!(model.calls(), 2);
    }
}
