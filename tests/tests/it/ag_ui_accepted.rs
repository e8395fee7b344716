//! When the head of an AG-UI response is sent, with runs that are kept in a store.

use concentric_core::{
    AgentLayer, BoxModel, ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, ThreadId,
    store::{Renewed, RunChange, RunKey, RunRecord, RunStore, RunSummary, StoreFuture, Tenant},
};
use concentric_http::{
    Shutdown,
    ag_ui::{AgUi, AgUiLayer},
};
use concentric_layers::SuspendLayer;
use concentric_store::SqliteStore;
use concentric_test::{ScriptedModel, ScriptedTools};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{future::pending, sync::Arc, time::Duration};
use tempfile::TempDir;
use tower::{Layer, Service, ServiceExt};

type Request = http::Request<Full<bytes::Bytes>>;

fn post(tools: &Value) -> Request {
    let message = json!({"id": "u", "role": "user", "content": "hi"});
    let input = json!({"threadId": "t", "runId": "r", "messages": [message], "tools": tools});
    http::Request::post("/agent")
        .header("content-type", "application/json")
        .body(Full::new(input.to_string().into()))
        .unwrap()
}

/// An agent with the tool `search`, whose runs are kept in `store`.
fn agent(store: Arc<impl RunStore + ?Sized>, model: ScriptedModel) -> BoxModel {
    let tools = ScriptedTools::new().answers("search", "found");
    let agent = AgentLayer::new(tools).layer(model);
    BoxModel::new(SuspendLayer::new(store).layer(agent))
}

fn over_sqlite(model: ScriptedModel) -> (AgUi<BoxModel>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("runs.db")).unwrap();
    let agent = agent(Arc::new(store), model);
    (AgUiLayer::new().layer(agent), dir)
}

#[tokio::test]
async fn a_stored_agent_refuses_a_tool_name_with_a_status() {
    let model = ScriptedModel::new().text("never");
    let (service, _dir) = over_sqlite(model.clone());
    let taken = json!([{"name": "search", "description": ""}]);
    let response = service.oneshot(post(&taken)).await.unwrap();
    assert_eq!(response.status(), 422);
    let answer = response.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["error"]["code"], "tool_name_taken");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("`search`"), "{message}");
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn the_head_does_not_wait_for_the_model() {
    let model = ScriptedModel::new().never();
    let (mut service, _dir) = over_sqlite(model.clone());
    let response = service.call(post(&json!([]))).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(model.calls(), 1);
    let mut body = Box::pin(response.into_body());
    let frame = body.frame().await.unwrap().unwrap();
    assert!(
        frame
            .data_ref()
            .unwrap()
            .starts_with(b"data: {\"type\":\"RUN_STARTED\"")
    );
}

/// A store that never answers.
struct Never;

fn never<T: Send + 'static>() -> StoreFuture<T> {
    Box::pin(pending())
}

impl RunStore for Never {
    fn begin(&self, _: RunKey, _: RunId, _: RunChange, _: Duration) -> StoreFuture<u64> {
        never()
    }

    fn is_live(&self, _: Tenant, _: ThreadId, _: RunId) -> StoreFuture<bool> {
        never()
    }

    fn get(&self, _: RunKey) -> StoreFuture<RunRecord> {
        never()
    }

    fn claim(&self, _: RunRecord, _: Vec<Reply>, _: Duration) -> StoreFuture<RunRecord> {
        never()
    }

    fn claim_abandoned(&self, _: usize, _: Duration) -> StoreFuture<Vec<RunRecord>> {
        never()
    }

    fn amend(&self, _: RunKey, _: u64, _: RunChange) -> StoreFuture<u64> {
        never()
    }

    fn save(&self, _: RunKey, _: u64, _: RunChange, _: Duration) -> StoreFuture<()> {
        never()
    }

    fn renew(&self, _: RunKey, _: u64, _: Duration) -> StoreFuture<Renewed> {
        never()
    }

    fn cancel(&self, _: RunKey) -> StoreFuture<bool> {
        never()
    }

    fn suspend(&self, _: RunKey, _: u64, _: RunChange) -> StoreFuture<()> {
        never()
    }

    fn end(&self, _: RunKey, _: u64, _: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        never()
    }

    fn withdraw(&self, _: Tenant, _: ThreadId) -> StoreFuture<usize> {
        never()
    }

    fn release(&self, _: RunKey) -> StoreFuture<bool> {
        never()
    }

    fn purge(&self) -> StoreFuture<()> {
        never()
    }

    fn find_by_interrupt(
        &self,
        _: Tenant,
        _: ThreadId,
        _: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        never()
    }

    fn find_by_client_id(&self, _: Tenant, _: ThreadId, _: RunId) -> StoreFuture<RunSummary> {
        never()
    }

    fn list_by_thread(
        &self,
        _: Tenant,
        _: ThreadId,
        _: Option<MessageId>,
        _: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        never()
    }

    fn list_waiting(&self, _: Tenant, _: usize) -> StoreFuture<Vec<RunSummary>> {
        never()
    }
}

// The clock advances when all tasks wait.
#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_holds_the_head_for_a_limited_time() {
    let agent = agent(Arc::new(Never), ScriptedModel::new().text("never"));
    let mut service = AgUiLayer::new().layer(agent);
    let mut call = tokio_test::task::spawn(service.call(post(&json!([]))));
    assert!(call.poll().is_pending());
    let response = call.await.unwrap();
    assert_eq!(response.status(), 200);
    let mut body = Box::pin(response.into_body());
    let frame = body.frame().await.unwrap().unwrap();
    assert!(
        frame
            .data_ref()
            .unwrap()
            .starts_with(b"data: {\"type\":\"RUN_STARTED\"")
    );
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_request_whose_head_is_held() {
    let agent = agent(Arc::new(Never), ScriptedModel::new().text("never"));
    let shutdown = Shutdown::new();
    let mut service = AgUiLayer::new().shutdown(shutdown.clone()).layer(agent);
    let mut call = tokio_test::task::spawn(service.call(post(&json!([]))));
    assert!(call.poll().is_pending());
    shutdown.begin(Duration::ZERO);
    let response = call.await.unwrap();
    assert_eq!(response.status(), 200);
    let answer = response.into_body().collect().await.unwrap().to_bytes();
    let answer = String::from_utf8(answer.to_vec()).unwrap();
    assert!(answer.contains("\"cancelled\""), "{answer}");
    shutdown.drained().await;
}
