//! Tests over real sockets: axum, layers of tower-http around the endpoint, clients that
//! disconnect, and the unmodified clients of `tests/clients`, if node and their packages are
//! installed.

use crate::support::{
    Item, Script, agent, finish, input, legal,
    real::{clients, node, serve},
    step, step_end, types,
};
use axum::Router;
use concentric_core::{
    AgentLayer, CallId, ChatRequest, ChatResponse, Error, ErrorKind, Event, FinishReason, Media,
    MediaSource, Part, PartKind, RoundEvent, ToolCallDelta, ToolCallPart, ToolCallStart,
    ToolOutcome, ToolRound, ToolSpec, ToolSpecs, Usage, agent::ToolSource,
};
use concentric_http::{Shutdown, ag_ui::AgUiLayer};
use concentric_store::MemoryStore;
use concentric_tools::{Approval, ApprovalTokens, ToolError, Toolset, token::TokenKeys, tool};
use futures_util::stream;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::timeout,
};
use tower::{Layer, Service, service_fn};
use tower_http::{
    sensitive_headers::SetSensitiveHeadersLayer, timeout::TimeoutLayer, trace::TraceLayer,
};

const LONG: Duration = Duration::from_secs(20);

fn request(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST /agent HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: secret\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

async fn connect(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(&request(&input())).await.unwrap();
    socket
}

/// Reads until the received text contains `needle`.
async fn read_until(socket: &mut TcpStream, needle: &str) -> String {
    let mut all = Vec::new();
    timeout(LONG, async {
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&all).contains(needle) {
            let n = socket.read(&mut piece).await.unwrap();
            assert_ne!(n, 0, "{}", String::from_utf8_lossy(&all));
            all.extend_from_slice(&piece[..n]);
        }
    })
    .await
    .unwrap();
    String::from_utf8(all).unwrap()
}

/// Reads a chunked response to its end, and returns its body.
async fn read_body(socket: &mut TcpStream, before: &str) -> String {
    let mut rest = String::new();
    timeout(LONG, socket.read_to_string(&mut rest))
        .await
        .unwrap()
        .unwrap();
    let all = format!("{before}{rest}");
    let (head, mut chunks) = all.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let mut body = String::new();
    loop {
        let (len, rest) = chunks.split_once("\r\n").unwrap();
        let len = usize::from_str_radix(len, 16).unwrap();
        if len == 0 {
            return body;
        }
        body.push_str(&rest[..len]);
        chunks = rest[len..].strip_prefix("\r\n").unwrap();
    }
}

#[tokio::test]
async fn an_outer_timeout_does_not_end_a_started_run() {
    let go = Arc::new(Notify::new());
    let wait = go.clone();
    let slow = service_fn(move |_: ChatRequest| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            let body = vec![Ok(step(0, "m")), Ok(Event::text("x")), Ok(finish())];
            Ok::<_, Error>(ChatResponse::new(stream::iter(body)))
        }
    });
    let limit = Duration::from_millis(50);
    let app = Router::new()
        .route_service("/agent", AgUiLayer::new().layer(slow))
        .layer(TimeoutLayer::with_status_code(
            http::StatusCode::REQUEST_TIMEOUT,
            limit,
        ))
        .layer(TraceLayer::new_for_http())
        .layer(SetSensitiveHeadersLayer::new([http::header::AUTHORIZATION]));
    let mut socket = connect(serve(app).await).await;
    let head = read_until(&mut socket, "RUN_STARTED").await;
    tokio::time::sleep(4 * limit).await;
    go.notify_one();
    let body = read_body(&mut socket, &head).await;
    assert_eq!(types(&legal(&body)).last(), Some(&"RUN_FINISHED"));
}

/// A guard that notifies when it is dropped.
struct Gone(Arc<Notify>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn a_disconnected_client_ends_the_run() {
    let gone = Arc::new(Notify::new());
    let notify = gone.clone();
    let model = service_fn(move |_: ChatRequest| {
        let gone = Gone(notify.clone());
        let mut first = true;
        let body = stream::poll_fn(move |_| {
            let _ = &gone;
            match std::mem::take(&mut first) {
                true => Poll::Ready(Some(Ok::<_, Error>(Event::text("x")))),
                false => Poll::Pending,
            }
        });
        async move { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let agent = AgentLayer::new(Folder).layer(model);
    let app = Router::new().route_service("/agent", AgUiLayer::new().layer(agent));
    let mut socket = connect(serve(app).await).await;
    read_until(&mut socket, "TEXT_MESSAGE_CONTENT").await;
    drop(socket);
    timeout(LONG, gone.notified()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_stops_reading_pauses_the_run() {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let endless = service_fn(move |_: ChatRequest| {
        let count = count.clone();
        let body = stream::repeat_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Error>(Event::text("twenty bytes of text"))
        });
        async move { Ok::<_, Error>(ChatResponse::new(body)) }
    });
    let app = Router::new().route_service("/agent", AgUiLayer::new().layer(endless));
    let _socket = connect(serve(app).await).await;
    // The socket buffers fill up, and then the run stops.
    timeout(LONG, async {
        let mut before = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = taken.load(Ordering::Relaxed);
            if now == before && now > 0 {
                break;
            }
            before = now;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_graceful_shutdown_of_axum_ends_its_streams() {
    let model = service_fn(async |_: ChatRequest| {
        Ok::<_, Error>(ChatResponse::new(stream::pending::<Item>()))
    });
    let shutdown = Shutdown::new();
    let agent = AgUiLayer::new()
        .shutdown(shutdown.clone())
        .layer(AgentLayer::new(Folder).layer(model));
    let app = Router::new().route_service("/agent", agent);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let signal = Arc::new(Notify::new());
    let server = {
        let (shutdown, signal) = (shutdown.clone(), signal.clone());
        tokio::spawn(async move {
            axum::serve(listener, app)
                .with_graceful_shutdown(async move {
                    signal.notified().await;
                    shutdown.begin(Duration::from_millis(50));
                })
                .await
        })
    };
    let mut socket = connect(address).await;
    let head = read_until(&mut socket, "RUN_STARTED").await;
    signal.notify_one();
    let body = read_body(&mut socket, &head).await;
    let events = legal(&body);
    assert_eq!(events.last().unwrap()["outcome"]["type"], "cancelled");
    timeout(LONG, shutdown.drained()).await.unwrap();
    timeout(LONG, server).await.unwrap().unwrap().unwrap();
}

// ---- the clients ----

/// A tool that lists a folder.
#[derive(Clone)]
struct Folder;

impl ToolSource for Folder {
    fn specs(&self) -> ToolSpecs {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        ToolSpecs::new([Arc::new(ToolSpec::new("list", "Lists a folder.", schema))])
    }
}

impl Service<ToolRound> for Folder {
    type Response = stream::Iter<std::vec::IntoIter<Result<RoundEvent, Error>>>;
    type Error = Error;
    type Future = std::future::Ready<Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, round: ToolRound) -> Self::Future {
        let outcome = |(at, _)| Ok(RoundEvent::settled(at, ToolOutcome::done("README.md")));
        let outcomes: Vec<_> = round.calls.into_iter().enumerate().map(outcome).collect();
        std::future::ready(Ok(stream::iter(outcomes)))
    }
}

/// A model that greets, or first lists the folder; its call always has the same id.
fn model(request: &ChatRequest) -> Vec<Event> {
    let last = request.transcript.last().unwrap();
    if !last.results().is_empty() {
        let text = format!("There is {}.", last.results()[0].outcome.content.text());
        return vec![
            Event::text(text),
            Event::finish(FinishReason::Stop, Usage::new(9, 3)),
        ];
    }
    if !last.as_message().text().contains("files") {
        return vec![
            Event::ReasoningDelta("A greeting.".into()),
            Event::text("Hel"),
            Event::text("lo!"),
            Event::finish(FinishReason::Stop, Usage::new(3, 2)),
        ];
    }
    let id = || CallId::new("call_0");
    vec![
        Event::text("Let me look."),
        Event::ToolCallStart(Box::new(ToolCallStart::new(0, id(), "list"))),
        Event::ToolCallDelta(ToolCallDelta::new(0, "{\"path\":")),
        Event::ToolCallDelta(ToolCallDelta::new(0, "\".\"}")),
        Event::tool_call(ToolCallPart::new(id(), "list", "{\"path\":\".\"}")),
        Event::finish(FinishReason::ToolCalls, Usage::new(5, 5)),
    ]
}

#[tokio::test]
async fn unmodified_clients_read_the_streams() {
    let Some(dir) = clients() else { return };
    let talks = service_fn(async |request: ChatRequest| {
        let events: Vec<Item> = model(&request).into_iter().map(Ok).collect();
        Ok::<_, Error>(ChatResponse::new(stream::iter(events)))
    });
    let fails = service_fn(async |_: ChatRequest| {
        Err::<ChatResponse<Script>, _>(Error::new(ErrorKind::Overloaded, "busy"))
    });
    let layer = AgUiLayer::new();
    let app = Router::new()
        .route_service("/agent", layer.layer(AgentLayer::new(Folder).layer(talks)))
        .route_service("/fails", layer.layer(AgentLayer::new(Folder).layer(fails)));
    let address = serve(app).await;
    let url = format!("http://{address}/agent");
    node(&dir, &["ag_ui.mjs", &url]).await;
    node(&dir, &["tanstack.mjs", &url]).await;
    let url = format!("http://{address}/fails");
    node(&dir, &["ag_ui.mjs", "--expect-error", &url]).await;
}

/// A model that first lists the folder, and then makes a call that requires approval; its calls
/// always have the same ids.
fn cautious(request: &ChatRequest) -> Vec<Event> {
    let last = request.transcript.last().unwrap();
    let call = |id: &str, name: &str| {
        Event::tool_call(ToolCallPart::new(CallId::new(id), name, r#"{"order":7}"#))
    };
    let text = match last.results() {
        [] => call("call_0", "look"),
        [result] if result.name == *"look" => call("call_1", "refund"),
        [result, ..] => Event::text(format!("It is {:?}.", result.outcome.status)),
    };
    vec![text, Event::finish(FinishReason::Stop, Usage::new(1, 1))]
}

#[tokio::test]
async fn unmodified_clients_reply_to_interrupts() {
    let Some(dir) = clients() else { return };
    let model = service_fn(async |request: ChatRequest| {
        let events: Vec<Item> = cautious(&request).into_iter().map(Ok).collect();
        Ok::<_, Error>(ChatResponse::new(stream::iter(events)))
    });
    let done = |_: serde_json::Map<String, Value>| async { Ok::<_, ToolError>("done") };
    let keys = TokenKeys::new("k", vec![7; 32]).unwrap();
    let tools = Toolset::new()
        .tool(tool("look", "Looks.", done).read_only())
        .tool(tool("refund", "Pays the money back.", done))
        .gate(Approval::for_tools("refund"))
        .tokens(ApprovalTokens::new(keys, "test", MemoryStore::new()));
    let agent = AgUiLayer::new().layer(AgentLayer::new(tools).layer(model));
    let address = serve(Router::new().route_service("/agent", agent)).await;
    let url = format!("http://{address}/agent");
    node(&dir, &["approval.mjs", &url]).await;
    node(&dir, &["tanstack.mjs", "--approval", &url]).await;
}

#[tokio::test]
async fn the_reference_verifier_agrees_with_ours() {
    let Some(dir) = clients() else { return };
    let call = || ToolCallPart::new(CallId::new("c"), "f", "");
    let result = || {
        let image = Media::new(MediaSource::Base64("AA==".into()));
        let parts = vec![Part::text("x"), Part::new(PartKind::Image(image))];
        let outcome = ToolOutcome::done(parts).with_data(json!({"n": null}));
        Event::ToolResult(Box::new(concentric_core::ToolResult::new(
            CallId::new("c"),
            "f",
            outcome,
        )))
    };
    let image = Media::new(MediaSource::Id("file".into())).with_name("a.png");
    let all: Vec<Item> = vec![
        Ok(Event::State(Arc::new(json!({"a": null, "b": [1]})))),
        Ok(step(0, "m")),
        Ok(Event::ReasoningDelta("hm".into())),
        Ok(Event::text("\u{2028}\r\n\"")),
        Ok(Event::tool_call(call())),
        Ok(Event::State(Arc::new(json!({"a": 1, "b": [null]})))),
        Ok(Event::Reset),
        Ok(Event::text("again")),
        Ok(Event::ToolCallStart(Box::new(ToolCallStart::new(
            0,
            CallId::new("d"),
            "f",
        )))),
        Ok(Event::tool_call(call())),
        Ok(step_end(0)),
        Ok(result()),
        Ok(step(1, "m")),
        Ok(Event::Part(Box::new(Part::new(PartKind::Image(image))))),
        Ok(Event::Custom(Box::new(
            concentric_core::CustomEvent::new("n", Value::Null).for_call(CallId::new("c")),
        ))),
    ];
    let ends: [(&str, Option<Item>); 5] = [
        ("finished", Some(Ok(finish()))),
        ("truncated", None),
        ("failed", Some(Err(Error::new(ErrorKind::Server, "x")))),
        (
            "limit",
            Some(Ok(crate::support::finish_with(
                concentric_core::Outcome::StepLimit,
            ))),
        ),
        (
            "aborted",
            Some(Ok(crate::support::finish_with(
                concentric_core::Outcome::Aborted {
                    reason: concentric_core::CancelReason::User,
                },
            ))),
        ),
    ];
    let mut args = vec!["verify.mjs".to_owned()];
    for (name, end) in ends {
        let script = all.iter().cloned().chain(end).collect();
        let service = AgUiLayer::new().layer(agent(script));
        let answer = crate::support::send(service, crate::support::post(input().to_string())).await;
        answer.events();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ag_ui_{name}.sse"));
        std::fs::write(&path, answer.body).unwrap();
        args.push(path.to_str().unwrap().to_owned());
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    node(&dir, &args).await;
}
