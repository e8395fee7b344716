//! How a run ended, after its events and its process are gone.

use super::{events::Stream, *};
use crate::support::{input, post};
use concentric_core::{Error, ErrorKind, ToolOutcome};
use concentric_http::ag_ui::{AgUiLayer, EventLogLayer};
use concentric_layers::{DetachLayer, SuspendLayer};
use concentric_store::{Options, SqliteStore};
use concentric_test::TestEnvironment;
use std::{future::ready, path::Path, time::Duration};
use tower::Layer;

/// A process with an agent whose runs are stored.
struct Process {
    agent: BoxModel,
    threads: Threads,
}

impl Process {
    fn new(
        store: &Arc<dyn RunStore>,
        log: &EventLogLayer,
        agent: AgentLayer<ScriptedTools>,
        model: ScriptedModel,
    ) -> Self {
        let agent = ServiceBuilder::new()
            .layer(log.clone())
            .layer(SuspendLayer::new(Arc::clone(store)))
            .layer(agent)
            .service(model);
        Self {
            agent: BoxModel::new(agent),
            threads: Threads::new().runs(Arc::clone(store)).events(log),
        }
    }

    /// Starts a run, which ends with its stream.
    async fn start(&self, mut input: Value, run: &str) -> Stream {
        input["runId"] = json!(run);
        let service = AgUiLayer::new().layer(self.agent.clone());
        let response = service.oneshot(by("ada", post(input.to_string())));
        Stream::new(response.await.unwrap())
    }

    async fn status(&self, run: &str) -> Answer {
        show(&self.threads, run).await
    }
}

async fn show(threads: &Threads, run: &str) -> Answer {
    send(threads.clone(), by("ada", get(&format!("/t/runs/{run}")))).await
}

fn sqlite(path: &Path) -> Arc<dyn RunStore> {
    Arc::new(SqliteStore::open(path).unwrap())
}

/// The status of a run that ended in this way.
fn ended(run: &str, end: &Value) -> Value {
    let mut all = json!({"threadId": "t", "runId": run, "status": "ended"});
    for (name, value) in end.as_object().unwrap() {
        all[name] = value.clone();
    }
    all
}

/// Checks what a process without events knows of an ended run, and what another tenant knows of it.
async fn check(threads: &Threads, run: &str, end: &Value) {
    let answer = show(threads, run).await;
    assert_eq!(answer.json(), ended(run, end));
    let path = |rest: &str| format!("/t/runs/{run}{rest}");
    let events = send(threads.clone(), by("ada", get(&path("/events")))).await;
    assert_eq!(
        (events.status, events.headers.get("retry-after")),
        (204, None)
    );
    let cancelled = send(threads.clone(), by("ada", cancel(&path("/cancel")))).await;
    assert_eq!(code(&cancelled), (409, "run_ended".to_owned()));
    for request in [
        get(&path("")),
        get(&path("/events")),
        cancel(&path("/cancel")),
    ] {
        let answer = send(threads.clone(), by("bob", request)).await;
        assert_eq!(code(&answer), (404, "run_not_found".to_owned()));
    }
}

fn looks() -> ScriptedModel {
    ScriptedModel::new().tool_call("look", json!({})).then()
}

#[tokio::test]
async fn another_process_tells_how_a_run_ended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    let agent = || {
        let tools = ScriptedTools::new().answers("look", "nothing");
        let stopped = || ready(ToolOutcome::done("stopped").and_halt("enough"));
        AgentLayer::new(tools.tool("stop", move |_| stopped()))
    };
    let secret = Error::new(ErrorKind::RateLimited, "secret of the provider");
    let success = |outcome: Value| json!({"outcome": {"type": "success"}, "metadata": outcome});
    for (run, agent, model, end) in [
        (
            "completed",
            agent(),
            looks().text("There is nothing."),
            json!({"outcome": {"type": "success"}}),
        ),
        (
            "halted",
            agent(),
            ScriptedModel::new().tool_call("stop", json!({})),
            success(json!({"outcome": "halted", "reason": "enough"})),
        ),
        (
            "step limit",
            agent().step_limit(2),
            looks().tool_call("look", json!({})),
            success(json!({"outcome": "step_limit"})),
        ),
        (
            "call limit",
            agent().call_limit(1),
            looks().tool_call("look", json!({})),
            success(json!({"outcome": "call_limit"})),
        ),
        (
            "failed",
            agent(),
            looks().error(secret),
            json!({"error": {"code": "rate_limited"}}),
        ),
        (
            "truncated",
            agent(),
            looks().end_early(),
            json!({"error": {"code": "truncated"}}),
        ),
    ] {
        let run = run.replace(' ', "_");
        let log = EventLogLayer::new();
        let process = Process::new(&sqlite(&path), &log, agent, model);
        process.start(input(), &run).await.end().await;
        // With its events, an error has a message, too.
        let mut status = process.status(&run).await.json();
        if let Some(Value::Object(error)) = status.get_mut("error") {
            assert!(error.remove("message").is_some());
        }
        assert_eq!(status, ended(&run, &end));
        drop(process);

        let threads = Threads::new().runs(sqlite(&path));
        check(&threads, &run, &end).await;
        let body = show(&threads, &run).await.body;
        assert!(!body.contains("secret"), "{body}");
        let runs = send(threads, by("ada", get("/t/runs"))).await;
        assert_eq!(runs.json()["runs"], json!([]));
    }
}

#[tokio::test]
async fn another_process_tells_why_a_run_was_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    for (run, reason) in [("cancelled", "user"), ("dropped", "disconnected")] {
        let agent = AgentLayer::new(ScriptedTools::new().never("look"));
        let process = Process::new(&sqlite(&path), &EventLogLayer::new(), agent, looks());
        let mut stream = process.start(input(), run).await;
        stream.until("TOOL_CALL_END").await;
        let threads = Threads::new().runs(sqlite(&path));
        while show(&threads, run).await.status == 404 {
            // The run is stored before its tools are called.
            tokio::task::yield_now().await;
        }
        if reason == "user" {
            let path = format!("/t/runs/{run}/cancel");
            let cancelled = send(process.threads.clone(), by("ada", cancel(&path))).await;
            assert_eq!(cancelled.status, 202);
            stream.end().await;
        }
        drop(stream);
        while show(&threads, run).await.json()["status"] == "running" {
            tokio::task::yield_now().await;
        }
        let end = json!({"outcome": {"type": "cancelled"}, "metadata": {"reason": reason}});
        check(&threads, run, &end).await;
    }
}

#[tokio::test]
async fn the_outcome_of_a_run_is_kept_longer_than_its_events() {
    let world = TestEnvironment::new();
    let hour = Duration::from_secs(3600);
    let options = Options::new().clock(world.clock().clone()).keep_ended(hour);
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::with_options(options));
    let log = EventLogLayer::new().environment(world.environment());
    let agent = AgentLayer::new(ScriptedTools::new().answers("look", "nothing"));
    let model = looks().text("There is nothing.");
    let process = Process::new(&store, &log, agent, model);
    process.start(input(), "r").await.end().await;
    assert!(format!("{log:?}").contains("logs: 1"), "{log:?}");
    world.advance(Duration::from_secs(300));
    let end = json!({"outcome": {"type": "success"}});
    check(&process.threads, "r", &end).await;
    assert!(format!("{log:?}").contains("logs: 0"), "{log:?}");
    world.advance(hour);
    store.purge().await.unwrap();
    let gone = process.status("r").await;
    assert_eq!(code(&gone), (404, "run_not_found".to_owned()));
}

#[tokio::test]
async fn a_run_that_a_reply_has_resumed_has_the_outcome_of_its_end() {
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    let log = EventLogLayer::new();
    let agent = AgentLayer::new(ScriptedTools::new().asks("pay", "paid"));
    let model = ScriptedModel::new().tool_call("pay", json!({})).then();
    let process = Process::new(&store, &log, agent, model.text("Paid."));
    process.start(input(), "r1").await.end().await;
    let waiting = process.status("r1").await.json();
    assert_eq!(waiting["status"], "waiting");
    let asked = waiting["outcome"]["interrupts"][0]["id"].clone();
    let reply = json!({"interruptId": asked, "status": "resolved", "payload": {"approved": true}});
    let mut resumed = input();
    resumed["messages"] = json!([]);
    resumed["resume"] = json!([reply]);
    process.start(resumed, "r2").await.end().await;
    // The log of the first request ends with the interrupt.
    let end = json!({"outcome": {"type": "success"}});
    for run in ["r1", "r2"] {
        assert_eq!(process.status(run).await.json(), ended(run, &end));
    }
    // Without the logs, the run has the id of the request that started it.
    let threads = Threads::new().runs(store);
    check(&threads, "r1", &end).await;
    let other = show(&threads, "r2").await;
    assert_eq!(code(&other), (404, "run_not_found".to_owned()));
}

#[tokio::test]
async fn a_run_continues_without_its_client_and_tells_how_it_ended() {
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    let agent = AgentLayer::new(ScriptedTools::new().answers("look", "nothing"));
    let model = looks().text("There is nothing.");
    let mut process = Process::new(&store, &EventLogLayer::new(), agent, model);
    let detach = DetachLayer::new();
    process.agent = BoxModel::new(detach.layer(process.agent));
    let mut stream = process.start(input(), "r").await;
    stream.until("RUN_STARTED").await;
    drop(stream);
    let threads = Threads::new().runs(store);
    while show(&threads, "r").await.json()["status"] != "ended" {
        tokio::task::yield_now().await;
    }
    check(&threads, "r", &json!({"outcome": {"type": "success"}})).await;
}
