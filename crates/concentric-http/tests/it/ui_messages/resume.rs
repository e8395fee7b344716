//! Clients that resume the stream of a run.

use super::*;
use crate::{
    ag_ui_approvals::{Ran, agent as approving, refund, with_tokens},
    ag_ui_threads::{events::Stream, shared::Faulty},
};
use concentric_core::{AgentLayer, BoxModel, store::Tenant};
use concentric_http::{
    Shutdown,
    ag_ui::{AgUiLayer, EventLogLayer, Threads},
    ui_messages::Sdk,
};
use concentric_layers::DetachLayer;
use concentric_store::{MemoryStore, Options};
use concentric_test::{Gate, ScriptedModel, ScriptedTools, TestEnvironment};
use std::time::Duration;
use tower::{ServiceBuilder, ServiceExt};

/// A server whose runs are kept in a log.
struct Server {
    agent: BoxModel,
    layer: UiMessagesLayer,
}

impl Server {
    fn of(log: &EventLogLayer, agent: BoxModel) -> Self {
        let agent = ServiceBuilder::new()
            .layer(DetachLayer::new())
            .layer(log.clone())
            .service(agent);
        Self {
            agent: BoxModel::new(agent),
            layer: UiMessagesLayer::new().events(log),
        }
    }

    fn new(log: &EventLogLayer, model: ScriptedModel) -> Self {
        let agent = AgentLayer::new(ScriptedTools::new()).layer(model);
        Self::of(log, BoxModel::new(agent))
    }

    async fn request(&self, request: Request) -> Stream {
        let service = self.layer.layer(self.agent.clone());
        Stream::new(service.oneshot(request).await.unwrap())
    }

    async fn start(&self) -> Stream {
        self.request(post(&hi())).await
    }

    async fn stream(&self, method: &str, chat: &str) -> Stream {
        let path = format!("/chat/{chat}/stream");
        let request = http::Request::builder().method(method).uri(path);
        self.request(request.body(Full::default()).unwrap()).await
    }

    async fn resume(&self) -> Stream {
        self.stream("GET", "chat").await
    }
}

/// The chunks of frames, which have ids.
fn message(frames: &[String]) -> Message {
    Message::of(&chunks(&format!("{}\n\n", frames.join("\n\n"))))
}

fn pieces(gates: &[Gate]) -> ScriptedModel {
    let mut model = ScriptedModel::new();
    for (n, gate) in gates.iter().enumerate() {
        model = model.deltas([format!("piece {n} ")]).wait(gate);
    }
    model.deltas(["end"])
}

#[tokio::test]
async fn a_stream_that_was_cut_anywhere_is_replayed_whole() {
    const PIECES: usize = 8;
    for cut in 0..PIECES {
        let gates: Vec<Gate> = (0..PIECES).map(|_| Gate::new()).collect();
        let server = Server::new(&EventLogLayer::new(), pieces(&gates));
        let mut first = server.start().await;
        for (n, gate) in gates.iter().enumerate().take(cut) {
            first.until(&format!("piece {n} ")).await;
            gate.open();
        }
        first.until(&format!("piece {cut} ")).await;
        drop(first);
        let mut again = server.resume().await;
        gates.iter().for_each(Gate::open);
        let message = message(&again.end().await);
        let expected: String = (0..PIECES).map(|n| format!("piece {n} ")).collect();
        assert_eq!(message.text(), format!("{expected}end"));
        assert_eq!(message.end.unwrap()["finishReason"], "stop");
    }
}

#[tokio::test]
async fn two_tabs_receive_the_same_answer() {
    let gate = Gate::new();
    let server = Server::new(&EventLogLayer::new(), pieces(std::slice::from_ref(&gate)));
    let mut first = server.start().await;
    first.until("piece 0 ").await;
    let mut second = server.resume().await;
    gate.open();
    let all = first.end().await;
    assert_eq!(second.end().await, all);
    assert_eq!(message(&all).text(), "piece 0 end");
    // The run has ended.
    assert_eq!(server.resume().await.status(), 204);
    assert_eq!(server.stream("DELETE", "chat").await.status(), 204);
}

#[tokio::test]
async fn a_stream_belongs_to_one_tenant_and_chat() {
    let gate = Gate::new();
    let server = Server::new(&EventLogLayer::new(), pieces(std::slice::from_ref(&gate)));
    let mut first = server.start().await;
    first.until("piece 0 ").await;
    for chat in ["other", "chat%2Fx", "%63hat2"] {
        assert_eq!(server.stream("GET", chat).await.status(), 204);
    }
    assert_eq!(server.stream("GET", "%63hat").await.status(), 200);
    assert_eq!(server.stream("GET", "%zz").await.status(), 404);
    assert_eq!(server.stream("PUT", "chat").await.status(), 405);
    for method in ["GET", "DELETE"] {
        let request = http::Request::builder().method(method).uri("/chat/stream");
        let mut request = request.body(Full::default()).unwrap();
        request.extensions_mut().insert(Tenant("eve".into()));
        assert_eq!(server.request(request).await.status(), 204);
    }
    // A layer without logs resumes nothing.
    let plain = UiMessagesLayer::new().layer(server.agent.clone());
    let request = http::Request::get("/chat/stream");
    let answer = send(plain, request.body(Full::default()).unwrap()).await;
    assert_eq!(answer.status, 204);
    gate.open();
    first.end().await;
}

#[tokio::test]
async fn a_run_is_stopped_by_its_chat() {
    let gate = Gate::new();
    let server = Server::new(&EventLogLayer::new(), pieces(std::slice::from_ref(&gate)));
    let mut first = server.start().await;
    first.until("piece 0 ").await;
    assert_eq!(server.stream("DELETE", "chat").await.status(), 202);
    let message = message(&first.end().await);
    assert_eq!(
        message.end.unwrap(),
        json!({"type": "abort", "reason": "user"})
    );
    assert_eq!(server.resume().await.status(), 204);
}

#[tokio::test]
async fn a_run_in_another_format_is_stopped_by_its_chat() {
    let gate = Gate::new();
    let server = Server::new(&EventLogLayer::new(), pieces(std::slice::from_ref(&gate)));
    let input = json!({"threadId": "chat", "runId": "r",
        "messages": [{"id": "u", "role": "user", "content": "hi"}]});
    let other = AgUiLayer::new().layer(server.agent.clone());
    let mut run = Stream::new(other.oneshot(post(&input)).await.unwrap());
    run.until("piece 0 ").await;
    assert_eq!(server.resume().await.status(), 204);
    assert_eq!(server.stream("DELETE", "chat").await.status(), 202);
    assert!(run.end().await.join("").contains("cancelled"));
}

#[tokio::test]
async fn chunks_that_are_not_kept_are_gone() {
    let gates: Vec<Gate> = (0..12).map(|_| Gate::new()).collect();
    let server = Server::new(&EventLogLayer::new().events(4), pieces(&gates));
    let mut first = server.start().await;
    for (n, gate) in gates.iter().enumerate().take(11) {
        first.until(&format!("piece {n} ")).await;
        gate.open();
    }
    first.until("piece 11 ").await;
    let mut gone = server.resume().await;
    assert_eq!(gone.status(), 410);
    let body = gone.body().await;
    assert!(body.contains("events_gone"), "{body}");
    gates.iter().for_each(Gate::open);
    first.end().await;
}

#[tokio::test]
async fn an_earlier_answer_that_is_too_large_is_gone() {
    let text = json!({"type": "text", "text": "x".repeat(10_000)});
    let answer = json!({"id": "m", "role": "assistant", "parts": [text]});
    let body = input(&[user("u", "hi"), answer]);
    for (bytes, status) in [(1 << 20, 200), (8 << 10, 410)] {
        let gate = Gate::new();
        let log = EventLogLayer::new().bytes(bytes);
        let server = Server::new(&log, pieces(std::slice::from_ref(&gate)));
        let mut first = server.request(post(&body)).await;
        first.until("piece 0 ").await;
        assert_eq!(server.resume().await.status(), status);
        gate.open();
        first.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_replayed_by_another_process() {
    let store = MemoryStore::new();
    let log = || EventLogLayer::new().shared(store.clone());
    let gate = Gate::new();
    let here = Server::new(&log(), pieces(std::slice::from_ref(&gate)));
    let there = Server::new(&log(), ScriptedModel::new());
    assert_eq!(there.resume().await.status(), 204);
    let mut first = here.start().await;
    first.until("piece 0 ").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for chat in ["other", "chat%2Fx", "cha", "chat%00"] {
        assert_eq!(there.stream("GET", chat).await.status(), 204);
    }
    let mut second = there.resume().await;
    assert_eq!(second.status(), 200);
    gate.open();
    let all = first.end().await;
    assert_eq!(second.end().await, all);
    // The run has ended; before, it is stopped by its process.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(there.resume().await.status(), 204);
}

#[tokio::test(start_paused = true)]
async fn a_chat_without_a_live_run_does_not_need_the_store() {
    let store = Faulty::new();
    let there = Server::new(
        &EventLogLayer::new().shared(store.clone()),
        ScriptedModel::new(),
    );
    for fault in ["fails", "panics", "panics later", "stalls"] {
        store.set(fault);
        let began = tokio::time::Instant::now();
        assert_eq!(there.resume().await.status(), 204, "{fault}");
        assert!(began.elapsed() <= Duration::from_secs(2), "{fault}");
    }
}

#[tokio::test(start_paused = true)]
async fn chunks_that_the_store_does_not_keep_are_gone() {
    let world = TestEnvironment::new();
    let options = Options::new()
        .max_log_events(8)
        .clock(world.clock().clone());
    let store = MemoryStore::with_options(options);
    let log = || EventLogLayer::new().shared(store.clone());
    let gates: Vec<Gate> = (0..12).map(|_| Gate::new()).collect();
    let here = Server::new(&log(), pieces(&gates));
    let there = Server::new(&log(), ScriptedModel::new());
    let mut first = here.start().await;
    for (n, gate) in gates.iter().enumerate() {
        first.until(&format!("piece {n} ")).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let status = there.resume().await.status();
        assert!(
            !matches!((n, status), (0, 410) | (11, 200)),
            "{n}: {status}"
        );
        // Events are kept for a while, for readers that are behind.
        world.advance(Duration::from_secs(3));
        gate.open();
    }
    first.end().await;
}

#[tokio::test]
async fn a_continued_answer_is_replayed_with_its_earlier_parts() {
    let log = EventLogLayer::new();
    replay_a_continued_answer(Sdk::V7, &log, &log).await;
}

#[tokio::test]
async fn a_client_of_version_6_replays_a_continued_answer() {
    let log = EventLogLayer::new();
    replay_a_continued_answer(Sdk::V6, &log, &log).await;
}

#[tokio::test(start_paused = true)]
async fn a_continued_answer_is_replayed_by_another_process() {
    let store = MemoryStore::new();
    let log = || EventLogLayer::new().shared(store.clone());
    replay_a_continued_answer(Sdk::V7, &log(), &log()).await;
}

async fn replay_a_continued_answer(sdk: Sdk, log: &EventLogLayer, other: &EventLogLayer) {
    let gate = Gate::new();
    let ran = Ran::default();
    let waits = gate.clone();
    let agent = approving(with_tokens(&ran), refund());
    let waiting = tower::service_fn(move |request: ChatRequest| {
        let (agent, gate) = (agent.clone(), waits.clone());
        async move {
            let is_first = request.resume.is_none();
            let response = agent.oneshot(request).await?;
            Ok::<_, Error>(response.map_body(|body| {
                use futures_util::StreamExt;
                concentric_core::EventStream::new(body.then(move |item| {
                    let gate = gate.clone();
                    async move {
                        if !is_first {
                            gate.pass().await;
                        }
                        item
                    }
                }))
            }))
        }
    });
    let mut server = Server::of(log, BoxModel::new(waiting));
    server.layer = server.layer.clone().sdk(sdk);
    let mut there = Server::new(other, ScriptedModel::new());
    there.layer = there.layer.clone().sdk(sdk);
    let asked = message(&server.start().await.end().await);
    let mut answer = asked.json();
    answer["metadata"] = json!({"shown": true});
    let part = answer["parts"].as_array_mut().unwrap();
    let part = part
        .iter_mut()
        .find(|part| part["toolCallId"] == "call_0")
        .unwrap();
    part["state"] = "approval-responded".into();
    part["approval"]["approved"] = true.into();
    let body = input(&[user("u", "hi"), answer.clone()]);
    let mut first = server.request(post(&body)).await;
    first.until("start").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut second = there.resume().await;
    gate.open();
    let rest = first.end().await;
    let mut whole = Message::continue_from(&answer);
    whole.apply_all(&chunks(&format!("{}\n\n", rest.join("\n\n"))));
    let replayed = message(&second.end().await);
    assert_eq!(replayed.id, asked.id);
    assert_eq!(replayed.text(), whole.text());
    assert_eq!(replayed.parts.len(), whole.parts.len());
    assert_eq!(replayed.metadata["shown"], true);
    assert_eq!(replayed.metadata, whole.metadata);
    let call = replayed.tool("call_0");
    assert_eq!(call["output"], "refund is done");
    // Version 6 has no chunk for the decision, and asks its user until the result follows.
    let approved = (sdk == Sdk::V7).then_some(true);
    assert_eq!(call["approval"]["approved"], json!(approved));
    assert_eq!(ran.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn streams_end_at_a_shutdown() {
    let gate = Gate::new();
    let log = EventLogLayer::new();
    let mut server = Server::new(&log, pieces(std::slice::from_ref(&gate)));
    let shutdown = Shutdown::new();
    server.layer = server.layer.clone().shutdown(shutdown.clone());
    let mut first = server.start().await;
    first.until("piece 0 ").await;
    let mut second = server.resume().await;
    shutdown.begin(Duration::ZERO);
    assert_eq!(server.start().await.status(), 503);
    assert_eq!(server.resume().await.status(), 503);
    let end = message(&first.end().await).end.unwrap();
    assert_eq!(end, json!({"type": "abort", "reason": "shutdown"}));
    let end = message(&second.end().await).end.unwrap();
    assert!(
        ["abort", "error"].contains(&end["type"].as_str().unwrap()),
        "{end}"
    );
    drop((first, second));
    shutdown.drained().await;
}

#[tokio::test]
async fn threads_do_not_serve_the_events_of_another_protocol() {
    let gate = Gate::new();
    let log = EventLogLayer::new();
    let server = Server::new(&log, pieces(std::slice::from_ref(&gate)));
    let mut first = server.start().await;
    first.until("piece 0 ").await;
    let threads = Threads::new().events(&log);
    let get = |path: String| {
        let request = http::Request::get(path).body(Full::<Bytes>::default());
        send(threads.clone(), request.unwrap())
    };
    let runs = get("/chat/runs".to_owned()).await.json();
    let run = runs["runs"][0]["runId"].as_str().unwrap().to_owned();
    let events = get(format!("/chat/runs/{run}/events")).await;
    assert_eq!(events.json()["error"]["code"], "other_protocol");
    gate.open();
    first.end().await;
    let status = get(format!("/chat/runs/{run}")).await.json();
    assert_eq!(status["status"], "ended");
    assert!(
        status["error"].is_null() && status["outcome"].is_null(),
        "{status}"
    );
}
