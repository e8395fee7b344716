//! Clients that join a run.

use super::*;
use crate::support::{input, legal, post, types};
use concentric_core::{Error, ErrorKind};
use concentric_http::{
    Shutdown,
    ag_ui::{AgUiLayer, EventLogLayer},
};
use concentric_layers::{DetachLayer, SuspendLayer};
use concentric_store::Options;
use concentric_test::{Gate, TestEnvironment};
use http_body_util::BodyExt;
use std::time::Duration;
use tower::Layer;

/// A server whose runs are kept in a log.
pub(super) struct Server {
    pub(super) agent: BoxModel,
    pub(super) suspend: SuspendLayer<MemoryStore>,
    detach: DetachLayer,
    pub(super) threads: Threads,
}

impl Server {
    pub(super) fn new(
        log: &EventLogLayer,
        store: &Arc<MemoryStore>,
        tools: ScriptedTools,
        model: ScriptedModel,
    ) -> Self {
        let suspend = SuspendLayer::new(Arc::clone(store));
        let detach = DetachLayer::new();
        let agent = ServiceBuilder::new()
            .layer(detach.clone())
            .layer(log.clone())
            .layer(suspend.clone())
            .layer(AgentLayer::new(tools))
            .service(model);
        Self {
            agent: BoxModel::new(agent),
            suspend,
            detach,
            threads: Threads::new().runs(Arc::clone(store)).events(log),
        }
    }

    pub(super) fn of(log: &EventLogLayer, model: ScriptedModel) -> Self {
        let store = Arc::new(MemoryStore::new());
        Self::new(log, &store, ScriptedTools::new(), model)
    }

    /// Starts the run `r` of the thread `t`.
    pub(super) async fn start(&self) -> Stream {
        let service = AgUiLayer::new().layer(self.agent.clone());
        let response = service.oneshot(by("ada", post(input().to_string())));
        Stream::new(response.await.unwrap())
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        send(self.threads.clone(), by("ada", get(path))).await
    }

    pub(super) async fn join(&self, query: &str) -> Stream {
        let path = format!("/t/runs/r/events{query}");
        let response = self.threads.clone().oneshot(by("ada", get(&path)));
        Stream::new(response.await.unwrap())
    }

    pub(super) async fn status(&self) -> Value {
        self.get("/t/runs/r").await.json()
    }
}

/// A response that is read step by step.
pub struct Stream {
    status: u16,
    body: std::pin::Pin<
        Box<dyn http_body::Body<Data = Bytes, Error = std::convert::Infallible> + Send>,
    >,
    pub(super) read: String,
}

impl Stream {
    pub fn new<B>(response: http::Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes, Error = std::convert::Infallible> + Send + 'static,
    {
        Self {
            status: response.status().as_u16(),
            body: Box::pin(response.into_body()),
            read: String::new(),
        }
    }

    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Reads until `text` was received.
    pub async fn until(&mut self, text: &str) {
        while !self.read.contains(text) {
            let frame = self.body.frame().await.expect("no end").unwrap();
            let bytes = frame.into_data().unwrap();
            self.read.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// Reads to the end, and returns the frames.
    pub async fn end(&mut self) -> Vec<String> {
        frames(&self.body().await)
    }

    /// Reads to the end.
    pub async fn body(&mut self) -> String {
        while let Some(frame) = self.body.frame().await {
            let bytes = frame.unwrap().into_data().unwrap();
            self.read.push_str(std::str::from_utf8(&bytes).unwrap());
        }
        self.read.clone()
    }
}

/// The frames of a body, without comments.
pub(super) fn frames(body: &str) -> Vec<String> {
    assert!(body.is_empty() || body.ends_with("\n\n"), "{body}");
    let frames = body.split("\n\n").map(str::to_owned);
    frames
        .filter(|it| !it.is_empty() && !it.starts_with(':'))
        .collect()
}

/// The id of a frame, and its event.
pub(super) fn parse(frame: &str) -> (Option<&str>, Value) {
    let (id, data) = match frame.split_once('\n') {
        Some((id, data)) => (Some(id.strip_prefix("id: ").unwrap()), data),
        None => (None, frame),
    };
    let data = data.strip_prefix("data: ").unwrap();
    (id, serde_json::from_str(data).unwrap())
}

pub(super) fn events(frames: &[String]) -> Vec<Value> {
    frames.iter().map(|frame| parse(frame).1).collect()
}

/// The events of a whole stream, which must be legal.
pub(super) fn whole(frames: &[String]) -> Vec<Value> {
    let events = events(frames);
    let plain: String = events
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    legal(&plain)
}

pub(super) fn last_type(frames: &[String]) -> String {
    let (_, last) = parse(frames.last().unwrap());
    last["type"].as_str().unwrap().to_owned()
}

/// Waits until other tasks have done their work.
pub(super) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A model that answers with `Hello`, and then waits for the gate.
pub(super) fn greeting(gate: &Gate) -> ScriptedModel {
    ScriptedModel::new()
        .deltas(["Hel", "lo", ", "])
        .wait(gate)
        .deltas(["wor", "ld", "."])
}

#[tokio::test]
async fn a_client_joins_a_live_run_after_any_event() {
    let gate = Gate::new();
    let server = Server::of(&EventLogLayer::new(), greeting(&gate));
    let mut first = server.start().await;
    first.until("\", \"").await;
    let known = frames(&first.read);
    let mut joined = Vec::new();
    for n in 0..=known.len() {
        joined.push(server.join(&format!("?after={n}")).await);
    }
    let status = server.status().await;
    assert_eq!(status["status"], "running");
    let (last, _) = parse(known.last().unwrap());
    assert_eq!(status["lastEventId"], last.unwrap());
    gate.open();
    let all = first.end().await;
    assert_eq!(types(&whole(&all)).last(), Some(&"RUN_FINISHED"));
    for (n, frame) in all.iter().enumerate() {
        let (id, _) = parse(frame);
        assert!(id.unwrap().starts_with(&format!("{}-", n + 1)), "{frame}");
    }
    for (n, mut stream) in joined.into_iter().enumerate() {
        assert_eq!(stream.status, 200);
        assert_eq!(stream.end().await, all[n..], "after {n}");
    }
    // The events are kept for a while.
    for n in 0..all.len() {
        let (id, _) = parse(&all[n]);
        let rest = server
            .join(&format!("?after={}", id.unwrap()))
            .await
            .end()
            .await;
        assert_eq!(rest, all[n + 1..]);
    }
    let over = server
        .get(&format!("/t/runs/r/events?after={}", all.len()))
        .await;
    assert_eq!((over.status, over.body.as_str()), (204, ""));
    let status = server.status().await;
    assert_eq!(
        (&status["status"], &status["outcome"]),
        (&json!("ended"), &json!({"type": "success"}))
    );
}

#[tokio::test]
async fn a_run_is_joined_after_its_client_has_left() {
    let gate = Gate::new();
    let server = Server::of(&EventLogLayer::new(), greeting(&gate));
    let mut first = server.start().await;
    first.until("Hel").await;
    let known = frames(&first.read).len();
    drop(first);
    let mut joined = server.join(&format!("?after={known}")).await;
    let mut from_start = server.join("").await;
    settle().await;
    gate.open();
    let rest = joined.end().await;
    let all = from_start.end().await;
    assert_eq!(all[known..], rest);
    assert_eq!(types(&whole(&all)).last(), Some(&"RUN_FINISHED"));
    server.detach.shutdown().await;
}

#[tokio::test]
async fn without_a_detach_layer_the_run_ends_with_its_client() {
    let log = EventLogLayer::new();
    let agent = ServiceBuilder::new()
        .layer(log.clone())
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(greeting(&Gate::new()));
    let mut server = Server::of(&log, ScriptedModel::new());
    server.agent = BoxModel::new(agent);
    let mut first = server.start().await;
    first.until("Hel").await;
    let mut joined = server.join("").await;
    drop(first);
    let (_, end) = parse(joined.end().await.last().unwrap());
    assert_eq!(end["outcome"]["type"], "cancelled");
    assert_eq!(end["metadata"]["reason"], "disconnected");
    assert_eq!(server.status().await["status"], "ended");
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_no_run() {
    let model = ScriptedModel::new().deltas((0..500).map(|n| format!("piece {n} ")));
    let server = Server::of(&EventLogLayer::new(), model);
    let mut first = server.start().await;
    let mut joined = server.join("").await;
    let all = joined.end().await;
    assert_eq!(last_type(&all), "RUN_FINISHED");
    assert_eq!(first.end().await, all);
}

#[tokio::test]
async fn a_reader_that_is_too_far_behind_learns_it() {
    let gate = Gate::new();
    let pieces = |from: usize| (from..from + 100).map(|n| format!("piece {n} "));
    let model = ScriptedModel::new()
        .text("Hello")
        .wait(&gate)
        .deltas(pieces(0));
    let log = EventLogLayer::new().events(4);
    let server = Server::of(&log, model);
    let mut first = server.start().await;
    first.until("Hello").await;
    let mut slow = server.join("").await;
    gate.open();
    // It is driven without the first client, too.
    while server.status().await["status"] == "running" {
        tokio::task::yield_now().await;
    }
    for stream in [&mut slow, &mut first] {
        let frames = stream.end().await;
        let (id, last) = parse(frames.last().unwrap());
        assert_eq!((id, last["code"].as_str()), (None, Some("events_lost")));
    }
    let gone = server.get("/t/runs/r/events?after=0").await;
    assert_eq!(code(&gone), (410, "events_gone".to_owned()));
    assert_eq!(server.status().await["outcome"]["type"], "success");
}

#[tokio::test]
async fn a_reader_that_keeps_up_receives_more_than_is_kept() {
    let model = ScriptedModel::new().deltas((0..500).map(|n| format!("piece {n} ")));
    let server = Server::of(&EventLogLayer::new().events(100), model);
    let mut first = server.start().await;
    let all = first.end().await;
    assert!(all.len() > 500);
    assert_eq!(last_type(&all), "RUN_FINISHED");
    let gone = server.get("/t/runs/r/events").await;
    assert_eq!(code(&gone), (410, "events_gone".to_owned()));
    let kept = format!("?after={}", all.len() - 3);
    assert_eq!(server.join(&kept).await.end().await, all[all.len() - 3..]);
}

#[tokio::test]
async fn positions_are_checked() {
    let server = Server::of(&EventLogLayer::new(), ScriptedModel::new().text("Hello."));
    let all = server.start().await.end().await;
    for (after, status) in [
        ("x", 400),
        ("-1", 400),
        ("+1", 400),
        ("", 400),
        ("1&after=2", 400),
        ("99999999999999999999", 400),
        ("18446744073709551615", 410),
        ("99", 410),
    ] {
        let answer = server.get(&format!("/t/runs/r/events?after={after}")).await;
        assert_eq!(answer.status, status, "{after}: {}", answer.body);
    }
    // The id of another log: the client needs all events.
    assert_eq!(server.join("?after=99-other").await.end().await, all);
    // A header is newer than the query.
    let (id, _) = parse(&all[1]);
    for (header, expected) in [(id.unwrap(), Some(&all[2..])), ("x", None)] {
        let mut request = by("ada", get("/t/runs/r/events?after=0"));
        request
            .headers_mut()
            .insert("last-event-id", header.parse().unwrap());
        let response = server.threads.clone().oneshot(request).await.unwrap();
        let mut stream = Stream::new(response);
        match expected {
            Some(expected) => assert_eq!(stream.end().await, expected),
            None => assert_eq!(stream.status, 400),
        }
    }
    let head = send(
        server.threads.clone(),
        by("ada", request("HEAD", "/t/runs/r/events")),
    )
    .await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(head.headers["content-type"], "text/event-stream");
    let other = send(server.threads.clone(), by("bob", get("/t/runs/r/events"))).await;
    assert_eq!(code(&other), (404, "run_not_found".to_owned()));
}

#[tokio::test]
async fn a_cancellation_ends_a_run_of_this_process_at_once() {
    let server = Server::of(&EventLogLayer::new(), greeting(&Gate::new()));
    let mut first = server.start().await;
    first.until("Hel").await;
    let stop = || {
        send(
            server.threads.clone(),
            by("ada", cancel("/t/runs/r/cancel")),
        )
    };
    let other = send(
        server.threads.clone(),
        by("bob", cancel("/t/runs/r/cancel")),
    )
    .await;
    assert_eq!(other.status, 404);
    assert_eq!(stop().await.status, 202);
    let (_, end) = parse(first.end().await.last().unwrap());
    assert_eq!(end["outcome"]["type"], "cancelled");
    assert_eq!(end["metadata"]["reason"], "user");
    assert_eq!(code(&stop().await), (409, "run_ended".to_owned()));
    assert_eq!(server.status().await["outcome"]["type"], "cancelled");
}

#[tokio::test]
async fn a_second_request_for_a_live_run_changes_nothing() {
    let gate = Gate::new();
    let server = Server::of(&EventLogLayer::new(), greeting(&gate));
    let mut first = server.start().await;
    first.until("Hel").await;
    assert_eq!(server.start().await.status, 409);
    let mut joined = server.join("").await;
    gate.open();
    assert_eq!(joined.end().await, first.end().await);
    let runs = server.get("/t/runs").await.json();
    assert_eq!(runs, json!({"threadId": "t", "runs": []}));
}

#[tokio::test]
async fn failures_and_panics_are_in_the_log() {
    let error = Error::new(ErrorKind::Overloaded, "secret of the provider");
    let models = [
        ScriptedModel::new().error(error.clone()),
        ScriptedModel::new().text("Hello").error(error),
    ];
    for model in models {
        let server = Server::of(&EventLogLayer::new(), model);
        let frames = server.start().await.end().await;
        assert_eq!(types(&whole(&frames)).last(), Some(&"RUN_ERROR"));
        assert_eq!(server.join("").await.end().await, frames);
        let status = server.status().await;
        assert_eq!(status["status"], "ended");
        assert_eq!(status["error"]["code"], "overloaded");
        assert!(!status.to_string().contains("secret"));
    }

    let log = EventLogLayer::new();
    let mut server = Server::of(&log, ScriptedModel::new());
    let panics = log.layer(tower::service_fn(async |_: ChatRequest| {
        let events = futures_util::stream::iter([Ok(concentric_core::Event::text("Hello"))]);
        let panics = futures_util::stream::once(async { panic!("secret") });
        let body = futures_util::StreamExt::chain(events, panics);
        Ok::<_, Error>(concentric_core::ChatResponse::new(body))
    }));
    server.agent = BoxModel::new(panics);
    let frames = server.start().await.end().await;
    assert_eq!(types(&whole(&frames)).last(), Some(&"RUN_ERROR"));
    assert!(!frames.concat().contains("secret"));
    assert_eq!(server.join("").await.end().await, frames);
}

#[tokio::test]
async fn logs_are_removed_after_a_while_and_the_oldest_above_the_total() {
    let world = TestEnvironment::new();
    let text = "x".repeat(2000);
    let run = async |log: &EventLogLayer, id: &str| {
        let server = Server::of(log, ScriptedModel::new().text(text.as_str()));
        let mut input = input();
        input["runId"] = json!(id);
        let service = AgUiLayer::new().layer(server.agent.clone());
        let response = service.oneshot(by("ada", post(input.to_string()))).await;
        Stream::new(response.unwrap()).end().await;
        server
    };
    let log = EventLogLayer::new()
        .environment(world.environment())
        .total(9000);
    let mut server = run(&log, "r0").await;
    for id in ["r1", "r2"] {
        server = run(&log, id).await;
    }
    for (id, status) in [("r0", 404), ("r1", 200), ("r2", 200)] {
        let answer = server.get(&format!("/t/runs/{id}/events")).await;
        assert_eq!(answer.status, status, "{id}");
    }
    world.advance(Duration::from_secs(299));
    assert_eq!(server.get("/t/runs/r2").await.status, 200);
    world.advance(Duration::from_secs(1));
    assert_eq!(server.get("/t/runs/r2").await.status, 404);
    assert!(format!("{log:?}").contains("logs: 0, bytes: 0"), "{log:?}");
}

#[tokio::test]
async fn a_run_that_is_resumed_after_a_crash_begins_with_a_snapshot() {
    let world = TestEnvironment::new();
    let options = Options::new().clock(world.clock().clone());
    let store = Arc::new(MemoryStore::with_options(options));
    let tools = ScriptedTools::new().never("look");
    let model = ScriptedModel::new()
        .text("I will look. ")
        .tool_call("look", json!({}));
    let died = Server::new(&EventLogLayer::new(), &store, tools, model);
    let mut first = died.start().await;
    first.until("TOOL_CALL_END").await;
    settle().await;
    // The process dies: its lease is not renewed.
    let read = frames(&first.read);
    let (lost, _) = parse(read.last().unwrap());
    let lost = lost.unwrap();

    let tools = ScriptedTools::new().answers("look", "nothing");
    let model = ScriptedModel::new().text("There is nothing.");
    let server = Server::new(&EventLogLayer::new(), &store, tools, model);
    let answer = server.get("/t/runs/r/events").await;
    assert_eq!(
        (answer.status, &answer.headers["retry-after"]),
        (204, &"1".parse().unwrap())
    );
    world.advance(Duration::from_secs(30));
    assert_eq!(server.status().await["status"], "abandoned");
    let environment = world.environment();
    let claimed = server
        .suspend
        .claim_abandoned(&environment, 1)
        .await
        .unwrap();
    let request = claimed.into_iter().next().unwrap();
    let body = server.agent.clone().oneshot(request).await.unwrap();
    let mut joined = server.join(&format!("?after={lost}")).await;
    body.collect().await.unwrap();
    let events = whole(&joined.end().await);
    assert_eq!(
        types(&events)[..2],
        ["RUN_STARTED", "MESSAGES_SNAPSHOT"],
        "{events:?}"
    );
    assert_eq!(events[0]["runId"], "r");
    assert_eq!(events[1]["messages"][0]["content"], "hi");
    let of = |wanted: &str| events.iter().filter(|it| it["type"] == wanted).count();
    assert_eq!((of("TOOL_CALL_START"), of("TOOL_CALL_RESULT")), (1, 1));
    let text: String = events
        .iter()
        .filter_map(|it| it["delta"].as_str())
        .collect();
    assert!(
        text.contains("I will look. ") && text.ends_with("There is nothing."),
        "{text}"
    );
    assert_eq!(types(&events).last(), Some(&"RUN_FINISHED"));
    drop(first);
}

/// A process that loses its run does not know how it ends.
#[tokio::test]
async fn a_run_that_another_process_has_taken_over_is_not_over() {
    let world = TestEnvironment::new();
    let options = Options::new().clock(world.clock().clone());
    let store = Arc::new(MemoryStore::with_options(options));
    let gate = Gate::new();
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .wait(&gate)
        .tool_call("look", json!({}));
    let tools = ScriptedTools::new().answers("look", "nothing");
    let server = Server::new(&EventLogLayer::new(), &store, tools, model);
    let mut first = server.start().await;
    first.until("TOOL_CALL_RESULT").await;
    // Its lease ends, and another process claims it.
    world.advance(Duration::from_secs(30));
    let lease = Duration::from_secs(30);
    assert_eq!(store.claim_abandoned(1, lease).await.unwrap().len(), 1);
    gate.open();
    let all = first.end().await;
    let (_, end) = parse(all.last().unwrap());
    assert_eq!(
        (&end["type"], &end["code"]),
        (&json!("RUN_ERROR"), &json!("stale_claim"))
    );
    settle().await;

    assert_eq!(server.status().await["status"], "running");
    for query in [String::new(), format!("?after={}", all.len())] {
        let answer = server.get(&format!("/t/runs/r/events{query}")).await;
        let retry = answer.headers.get("retry-after");
        assert_eq!((answer.status, retry), (204, Some(&"1".parse().unwrap())));
    }
    world.advance(lease);
    assert_eq!(server.status().await["status"], "abandoned");
    assert_eq!(server.get("/t/runs/r/events").await.status, 204);
    // The log is all that is left of a run that the store does not have any more.
    let thread = ThreadId::new("t");
    ThreadStore::delete(&*store, Tenant("ada".into()), thread)
        .await
        .unwrap();
    assert_eq!(server.join("").await.end().await, all);
}

#[tokio::test]
async fn a_log_has_a_limited_number_of_readers() {
    let gate = Gate::new();
    let server = Server::of(&EventLogLayer::new(), greeting(&gate));
    let mut first = server.start().await;
    first.until("Hel").await;
    let mut readers = Vec::new();
    for _ in 1..256 {
        let reader = server.join("").await;
        assert_eq!(reader.status, 200);
        readers.push(reader);
    }
    let answer = server.get("/t/runs/r/events").await;
    assert_eq!(code(&answer), (429, "too_many_readers".to_owned()));
    readers.pop();
    readers.push(server.join("").await);
    gate.open();
    let all = first.end().await;
    assert_eq!(readers.pop().unwrap().end().await, all);
}

#[tokio::test]
async fn a_thread_that_is_not_deleted_keeps_its_runs() {
    let gate = Gate::new();
    let mut server = Server::of(&EventLogLayer::new(), greeting(&gate));
    server.threads = server.threads.threads(super::requests::Broken(false));
    let mut first = server.start().await;
    first.until("Hel").await;
    let answer = send(server.threads.clone(), by("ada", request("DELETE", "/t"))).await;
    assert_eq!(answer.status, 500);
    gate.open();
    let all = first.end().await;
    assert_eq!(last_type(&all), "RUN_FINISHED");
    assert_eq!(server.join("").await.end().await, all);
}

#[tokio::test]
async fn a_deleted_thread_has_no_events() {
    let gate = Gate::new();
    let log = EventLogLayer::new();
    let store = Arc::new(MemoryStore::new());
    let mut server = Server::new(&log, &store, ScriptedTools::new(), greeting(&gate));
    server.threads = server.threads.threads(store);
    let mut first = server.start().await;
    first.until("Hel").await;
    let mut joined = server.join("").await;
    send(server.threads.clone(), by("ada", request("DELETE", "/t"))).await;
    assert_eq!(server.get("/t/runs/r/events").await.status, 404);
    for stream in [&mut joined, &mut first] {
        assert_eq!(last_type(&stream.end().await), "RUN_ERROR");
    }
}

#[tokio::test]
async fn a_shutdown_ends_the_streams_of_readers() {
    let shutdown = Shutdown::new();
    let mut server = Server::of(&EventLogLayer::new(), greeting(&Gate::new()));
    server.threads = server.threads.shutdown(shutdown.clone());
    let mut first = server.start().await;
    first.until("Hel").await;
    let mut joined = server.join("").await;
    tokio::time::pause();
    shutdown.begin(Duration::ZERO);
    let frames = joined.end().await;
    let (id, end) = parse(frames.last().unwrap());
    assert_eq!((id, end["code"].as_str()), (None, Some("shutting_down")));
    drop(joined);
    shutdown.drained().await;
    assert_eq!(server.get("/t/runs/r/events").await.status, 503);
    assert_eq!(server.status().await["status"], "running");
}

#[tokio::test]
async fn the_layer_rejects_wrong_places() {
    let log = EventLogLayer::new;
    let suspend = || SuspendLayer::new(Arc::new(MemoryStore::new()));
    let agent = || AgentLayer::new(ScriptedTools::new()).layer(ScriptedModel::new());
    let inside = BoxModel::new(suspend().layer(log().layer(agent())));
    let twice = BoxModel::new(log().layer(log().layer(agent())));
    let looped = AgentLayer::new(ScriptedTools::new());
    let looped = BoxModel::new(looped.layer(log().layer(ScriptedModel::new())));
    for agent in [inside, twice, looped] {
        let request = ChatRequest::user("hi").with_context(context("ada", "t", "r"));
        let error = agent.oneshot(request).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains("EventLogLayer"), "{error}");
    }
}
