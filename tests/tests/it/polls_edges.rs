//! The futures and bodies of tools, servers and providers, polled without a wake and dropped wherever
//! they wait.

use bytes::Bytes;
use concentric_core::hooks::{self, BeforeCall, Flow, Hooks};
use concentric_core::{
    AgentLayer, Arguments, BoxError, BoxModel, CallId, ChatRequest, Context, Error, ErrorKind,
    Message, Part, PartKind, Role, ToolCall, ToolCallPart, ToolOutcome, ToolResult, ToolStatus,
};
use concentric_http::{Shutdown, admission::AdmissionLayer, ag_ui::AgUiLayer};
use concentric_layers::{NextTool, tool_from_fn};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, HttpClient, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use concentric_test::{
    Pace, ScriptedModel, ScriptedTools, Spurious,
    cassette::{RecordLayer, ReplayLayer},
    drop_at_each_wait, watched,
};
use concentric_tools::{
    Gate, LazyTools, NoArguments, RetryTool, RoundEnd, ScopedExt, ToolLifecycle, Toolset, Verdict,
    blocking_tool, gate::Decided, tool,
};
use futures_util::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::json;
use std::{
    cell::RefCell,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};

const HOUR: Duration = Duration::from_secs(3_600);

/// Takes a tick, and is woken once before it is ready.
async fn tick() {
    tokio::task::yield_now().await;
    Pace::NextTick.pass(&Context::new()).await;
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

// ---- tools ----

struct Slow;

impl Gate for Slow {
    fn policy(&self) -> concentric_core::Str {
        "slow".into()
    }

    fn decide(&self, _: &ToolCall) -> Decided {
        Decided::later(async {
            tick().await;
            Ok(Verdict::Pass)
        })
    }
}

impl Hooks for Slow {
    fn id(&self) -> &str {
        "slow"
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        tick().await;
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        tick().await;
        Ok(None)
    }
}

/// Tools that take ticks, as do their layers, hooks and gates. Each call that runs has a clone of
/// `live`.
fn slow_tools(live: &Arc<()>) -> Toolset {
    let slow = {
        let live = Arc::clone(live);
        move |NoArguments {}| {
            let live = Arc::clone(&live);
            async move {
                tick().await;
                drop(live);
                "seen"
            }
        }
    };
    let tries = AtomicUsize::new(0);
    let flaky = move |NoArguments {}| {
        let first = tries.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            tick().await;
            match first {
                true => ToolOutcome::failed("not yet"),
                false => ToolOutcome::done("seen"),
            }
        }
    };
    let retry = RetryTool::new(2).backoff(Duration::ZERO, Duration::ZERO);
    Toolset::new()
        .tool(
            tool("look", "Looks.", slow.clone())
                .read_only()
                .timeout(HOUR),
        )
        .tool(tool("flaky", "Fails once.", flaky).read_only())
        .tool(blocking_tool("count", "Counts.", |NoArguments {}| "3"))
        .tool(tool("hidden", "Is hidden.", slow))
        .layer(tool_from_fn(|call, mut next: NextTool| async move {
            tick().await;
            next.run(call).await
        }))
        .layer(RetryLayer::new(retry.failures_too()).scoped("flaky"))
        .layer(hooks::tool(Arc::new(Slow)))
        .hooks(hooks::tool(Arc::new(Slow)).scoped("look"))
        .prepare(async |call| {
            tick().await;
            Ok(call.arguments().clone())
        })
        .gate(Slow)
}

/// An agent with these tools.
fn worker(model: ScriptedModel, live: &Arc<()>) -> BoxModel {
    let (tools, lazy) = LazyTools::new("hidden").wrap(slow_tools(live));
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .layer(lazy)
        .service(model);
    BoxModel::new(agent)
}

fn works() -> ScriptedModel {
    ScriptedModel::new()
        .paced(Pace::NextTick)
        .tool_call("look", json!({}))
        .tool_call("count", json!({}))
        .then()
        .tool_call("flaky", json!({}))
        .then()
        .text("Done.")
}

#[test]
fn tools_that_are_polled_without_a_wake_run() {
    let (outcomes, text) = watched(async {
        let agent = worker(works(), &Arc::default());
        let answer = Spurious::new(agent.oneshot(ChatRequest::user("hi"))).await;
        let answer = answer
            .unwrap()
            .map_body(Spurious::new)
            .collect()
            .await
            .unwrap();
        let turns = answer.transcript().unwrap().iter();
        let results = turns.flat_map(concentric_core::Turn::results);
        let outcomes: Vec<_> = results.map(|it| it.outcome.content.clone()).collect();
        (format!("{outcomes:?}"), answer.text())
    });
    assert_eq!(text, "Done.");
    assert_eq!(outcomes.matches("seen").count(), 2, "{outcomes}");
}

#[tokio::test]
async fn tools_that_are_dropped_where_they_wait_leave_nothing() {
    let scene = RefCell::new(None);
    let run = || {
        let (model, live) = (works(), Arc::new(()));
        let agent = worker(model.clone(), &live);
        *scene.borrow_mut() = Some((model, live));
        async move { agent.oneshot(ChatRequest::user("hi")).await?.text().await }
    };
    let drops = drop_at_each_wait(run, async |polls| {
        let (model, live) = scene.take().unwrap();
        assert_eq!((model.live(), Arc::strong_count(&live)), (0, 1), "{polls}");
    });
    let drops = drops.await;
    assert!(drops > 15, "{drops}");
}

fn calls() -> Message {
    let call = |name: &str| {
        let call = ToolCallPart::new(CallId::new(name), name, Arguments::new("{}"));
        Part::new(PartKind::ToolCall(call))
    };
    Message::new(Role::Assistant, vec![call("look"), call("flaky")])
}

#[tokio::test]
async fn a_round_of_a_loop_of_ones_own_bears_polls_and_drops() {
    let live = Arc::new(());
    let round = || {
        let mut tools = ToolLifecycle::new(slow_tools(&live));
        async move {
            let round = std::pin::pin!(tools.execute_round(calls()));
            match Spurious::new(round).await.unwrap() {
                RoundEnd::Closed(round) => assert!(round.results().iter().all(is_done)),
                other => panic!("{other:?}"),
            }
        }
    };
    let drops = drop_at_each_wait(round, async |polls| {
        assert_eq!(Arc::strong_count(&live), 1, "{polls}");
    });
    let drops = drops.await;
    assert!(drops > 5, "{drops}");
}

fn is_done(result: &ToolResult) -> bool {
    result.outcome.status == ToolStatus::Done
}

// ---- servers ----

type Sent = StreamBody<stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// A body whose pieces take a tick each.
fn slow_body(text: &str, live: Arc<()>) -> Sent {
    let pieces: Vec<_> = text
        .as_bytes()
        .chunks(16)
        .map(Bytes::copy_from_slice)
        .collect();
    let frames = stream::iter(pieces).then(move |piece| {
        let live = Arc::clone(&live);
        async move {
            tick().await;
            drop(live);
            Ok(Frame::data(piece))
        }
    });
    StreamBody::new(frames.boxed())
}

fn post(live: Arc<()>) -> http::Request<Sent> {
    let input = json!({
        "threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "hi"}],
    });
    http::Request::post("/agent")
        .header("content-type", "application/json")
        .body(slow_body(&input.to_string(), live))
        .unwrap()
}

async fn told(body: impl Stream<Item = Result<Bytes, impl std::fmt::Debug>>) -> String {
    let bytes: Vec<_> = body.map(Result::unwrap).collect().await;
    String::from_utf8(bytes.concat()).unwrap()
}

struct Server {
    model: ScriptedModel,
    tools: ScriptedTools,
    admission: AdmissionLayer,
    shutdown: Shutdown,
    live: Arc<()>,
}

impl Server {
    fn new() -> Self {
        let model = ScriptedModel::new()
            .paced(Pace::NextTick)
            .tool_call("look", json!({}))
            .then()
            .text("Do")
            .pause()
            .text("ne.")
            .repeat();
        Self {
            model,
            tools: ScriptedTools::new()
                .paced(Pace::NextTick)
                .answers("look", "seen"),
            admission: AdmissionLayer::new(1).queue(8),
            shutdown: Shutdown::new(),
            live: Arc::new(()),
        }
    }

    /// Answers two requests, one of which waits for the other.
    fn answer_two(&self) -> impl Future<Output = [String; 2]> + use<> {
        let service = ServiceBuilder::new()
            .layer(self.admission.clone())
            .layer(
                AgUiLayer::new()
                    .shutdown(self.shutdown.clone())
                    .keep_alive(HOUR),
            )
            .layer(AgentLayer::new(self.tools.clone()))
            .service(self.model.clone());
        let live = Arc::clone(&self.live);
        async move {
            let one = async || {
                let call = service.clone().oneshot(post(Arc::clone(&live)));
                let response = Spurious::new(call).await.unwrap();
                told(Spurious::new(response.into_body().into_data_stream())).await
            };
            let (one, two) = tokio::join!(one(), one());
            [one, two]
        }
    }
}

#[test]
fn requests_that_are_polled_without_a_wake_are_answered() {
    let answers = watched(async { Server::new().answer_two().await });
    for answer in answers {
        assert!(answer.contains("RUN_FINISHED"), "{answer}");
    }
}

#[tokio::test]
async fn requests_that_are_dropped_where_they_wait_leave_nothing() {
    let server = Server::new();
    let drops = drop_at_each_wait(
        || server.answer_two(),
        async |polls| {
            settle().await;
            let work = (server.model.live(), server.tools.live());
            let places = (server.admission.running(), server.admission.waiting());
            assert_eq!((work, places), ((0, 0), (0, 0)), "{polls}");
            assert_eq!(server.shutdown.streams(), 0, "{polls}");
            assert_eq!(Arc::strong_count(&server.live), 1, "{polls}");
        },
    );
    let drops = drops.await;
    assert!(drops > 15, "{drops}");
}

// ---- providers ----

type Answered = Result<http::Response<Sent>, Infallible>;

/// An HTTP service whose head, and each piece of whose body, take a tick.
fn slow_http(
    status: u16,
    text: &'static str,
    live: &Arc<()>,
) -> impl Service<
    http::Request<Full<Bytes>>,
    Response = http::Response<Sent>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    let live = Arc::clone(live);
    service_fn(move |_: http::Request<Full<Bytes>>| {
        let live = Arc::clone(&live);
        async move {
            tick().await;
            let response = http::Response::builder().status(status);
            Answered::Ok(response.body(slow_body(text, live)).unwrap())
        }
    })
}

const OPENAI: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: [DONE]\n\n";
const RESPONSES: &str = r#"{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}"#;
const ANTHROPIC: &str = r#"{"type":"message","content":[{"type":"text","text":"a"}]}"#;
const GEMINI: &str =
    r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}"#;
const OLLAMA: &str =
    r#"{"message":{"role":"assistant","content":"a"},"done":true,"done_reason":"stop"}"#;

/// The models of all providers, which answer `a`, or fail with this status.
fn models(status: u16, live: &Arc<()>) -> Vec<BoxModel> {
    let key = || ApiKey::new("key");
    let http = |text| slow_http(status, text, live);
    vec![
        BoxModel::new(OpenAiLayer::new("m", key()).layer(http(OPENAI))),
        BoxModel::new(OpenAiResponsesLayer::new("m", key()).layer(http(RESPONSES))),
        BoxModel::new(AnthropicLayer::new("m", key()).layer(http(ANTHROPIC))),
        BoxModel::new(GeminiLayer::new("m", key()).layer(http(GEMINI))),
        BoxModel::new(OllamaLayer::new("m").layer(http(OLLAMA))),
    ]
}

async fn ask(model: BoxModel) -> Result<String, Error> {
    let answer = Spurious::new(model.oneshot(ChatRequest::user("hi"))).await?;
    Ok(answer.map_body(Spurious::new).collect().await?.text())
}

#[test]
fn providers_that_are_polled_without_a_wake_answer() {
    watched(async {
        for model in models(200, &Arc::default()) {
            assert_eq!(ask(model).await.unwrap(), "a");
        }
        for model in models(500, &Arc::default()) {
            assert_eq!(ask(model).await.unwrap_err().kind(), ErrorKind::Server);
        }
    });
}

#[tokio::test]
async fn providers_that_are_dropped_where_they_wait_leave_nothing() {
    for status in [200, 500] {
        for at in 0..5 {
            let live = Arc::new(());
            let run = || ask(models(status, &live).swap_remove(at));
            let drops = drop_at_each_wait(run, async |polls| {
                assert_eq!(Arc::strong_count(&live), 1, "{status} {at}: {polls}");
            });
            let drops = drops.await;
            assert!(drops > 2, "{drops}");
        }
    }
}

// ---- recordings ----

#[test]
fn recordings_that_are_polled_without_a_wake_are_whole() {
    let (recorded, replayed) = watched(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let recorder = RecordLayer::new(&path);
        let openai = || ServiceBuilder::new().layer(OpenAiLayer::new("m", ApiKey::new("key")));
        let http = slow_http(200, OPENAI, &Arc::default());
        let model = BoxModel::new(openai().layer(recorder.clone()).service(http));
        let recorded = ask(model).await.unwrap();
        recorder.save().unwrap();
        let replay = ReplayLayer::load(&path).unwrap().at_times().reuse();
        let model = BoxModel::new(openai().layer(replay).service(()));
        (recorded, ask(model).await.unwrap())
    });
    assert_eq!((recorded.as_str(), replayed.as_str()), ("a", "a"));
}

// ---- the client ----

/// A server on this machine that answers in pieces; its address.
async fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut read = Vec::new();
                while !read.ends_with(b"}") {
                    if stream.read_buf(&mut read).await? == 0 {
                        return Ok(());
                    }
                }
                let head = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\n";
                let length = format!("content-length: {}\r\n\r\n", OPENAI.len());
                for piece in (head.to_owned() + &length + OPENAI).as_bytes().chunks(64) {
                    stream.write_all(piece).await?;
                    stream.flush().await?;
                    tick().await;
                }
                std::io::Result::Ok(())
            });
        }
    });
    url
}

#[test]
fn a_client_that_is_polled_without_a_wake_answers() {
    let text = watched(async {
        let url = serve().await;
        let client = HttpClient::builder().read_timeout(HOUR).build().unwrap();
        let model = OpenAiLayer::compatible(url, "m", None).layer(client);
        ask(BoxModel::new(model)).await.unwrap()
    });
    assert_eq!(text, "a");
}

#[tokio::test]
async fn a_client_that_is_dropped_where_it_waits_can_be_used_again() {
    let url = serve().await;
    let client = HttpClient::builder().read_timeout(HOUR).build().unwrap();
    let model = OpenAiLayer::compatible(url, "m", None).layer(client);
    let model = BoxModel::new(model);
    let drops = drop_at_each_wait(|| ask(model.clone()), async |_| {});
    assert!(drops.await > 1);
    assert_eq!(ask(model).await.unwrap(), "a");
}
