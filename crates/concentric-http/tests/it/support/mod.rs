//! Scripted agents, and the responses of the layer around them.

pub mod client;
pub mod real;
pub mod verify;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use concentric_core::{
    ChatRequest, ChatResponse, Error, Event, Finish, FinishReason, MessageId, StepFinish,
    StepStart, Usage,
};
use concentric_http::{ClientPolicy, ag_ui::AgUiLayer};
use futures_util::stream;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::{BoxError, Service, ServiceExt, service_fn};
use tower_layer::Layer;
use verify::{Verifier, check_fields, is_terminal};

pub type Item = Result<Event, Error>;
pub type Script = stream::Iter<std::vec::IntoIter<Item>>;

/// An agent that emits `script` for every request.
pub fn agent(
    script: Vec<Item>,
) -> impl Service<ChatRequest, Response = ChatResponse<Script>, Error = Error, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |_: ChatRequest| {
        let script = script.clone();
        async move { Ok(ChatResponse::new(stream::iter(script))) }
    })
}

/// An agent without output that stores its request.
#[derive(Clone, Default)]
pub struct Asked(Arc<Mutex<Option<ChatRequest>>>);

impl Asked {
    pub fn take(&self) -> ChatRequest {
        self.0.lock().unwrap().take().expect("the agent is called")
    }

    pub fn is_called(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    pub fn agent(
        &self,
    ) -> impl Service<ChatRequest, Response = ChatResponse<Script>, Error = Error, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static {
        let asked = self.clone();
        service_fn(move |request: ChatRequest| {
            *asked.0.lock().unwrap() = Some(request);
            async { Ok(ChatResponse::new(stream::iter(vec![Ok(finish())]))) }
        })
    }
}

pub fn finish() -> Event {
    Event::finish(FinishReason::Stop, Usage::new(3, 2))
}

pub fn finish_with(outcome: concentric_core::Outcome) -> Event {
    Event::Finish(Box::new(
        Finish::new(FinishReason::Stop, Usage::new(3, 2)).with_outcome(outcome),
    ))
}

pub fn step(n: u32, message: &str) -> Event {
    Event::StepStart(Box::new(StepStart::new(n, MessageId::new(message))))
}

pub fn step_end(n: u32) -> Event {
    Event::StepFinish(Box::new(StepFinish::new(
        n,
        FinishReason::Stop,
        Usage::new(3, 2),
    )))
}

/// An input with one user message.
pub fn input() -> Value {
    json!({"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "hi"}]})
}

pub fn post(body: impl Into<Bytes>) -> http::Request<Full<Bytes>> {
    http::Request::post("/agent")
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The events, which must be a legal stream with one terminal event.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        legal(&self.body)
    }
}

/// The events of a body, which must be a legal stream with one terminal event.
#[track_caller]
pub fn legal(body: &str) -> Vec<Value> {
    assert!(body.ends_with("\n\n"), "cut off: {body:?}");
    let mut verifier = Verifier::default();
    let mut events = Vec::new();
    let mut ends = 0;
    for frame in body.split("\n\n").filter(|f| !f.is_empty()) {
        if frame.starts_with(':') {
            continue;
        }
        let frame = frame.strip_prefix("data: ").expect("a frame");
        let event: Value = serde_json::from_str(frame).unwrap();
        if let Err(error) = check_fields(&event).and_then(|()| verifier.verify(&event)) {
            panic!("{error}\n{body}");
        }
        ends += usize::from(is_terminal(&event));
        events.push(event);
    }
    verifier.finish().unwrap();
    assert_eq!(ends, 1);
    events
}

/// Sends `request` to the service and reads the response to its end.
pub async fn send<S, B>(service: S, request: http::Request<Full<Bytes>>) -> Answer
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// Runs `agent` for `input`.
pub async fn run<A, B>(agent: A, input: &Value) -> Vec<Value>
where
    A: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    A::Error: Into<BoxError>,
    B: futures_util::Stream<Item = Item>,
{
    let service = AgUiLayer::new().layer(agent);
    send(service, post(input.to_string())).await.events()
}

/// Runs a script, and returns its events.
pub async fn events(script: Vec<Item>) -> Vec<Value> {
    run(agent(script), &input()).await
}

/// The types of events.
pub fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|e| e["type"].as_str().unwrap()).collect()
}

/// Returns the agent's request for `input`.
pub async fn asked(input: &Value) -> ChatRequest {
    let asked = Asked::default();
    run(asked.agent(), input).await;
    asked.take()
}

/// A policy that accepts any input.
pub fn open_policy() -> ClientPolicy {
    ClientPolicy::new()
        .max_values(usize::MAX)
        .max_messages(usize::MAX)
        .max_tool_calls(usize::MAX)
        .max_parts(usize::MAX)
        .max_tools(usize::MAX)
        .max_tool_schema(usize::MAX)
        .max_id(usize::MAX)
        .max_client_results(usize::MAX)
        .max_replies(usize::MAX)
        .max_context(usize::MAX)
        .system_messages(true)
        .file_ids(true)
        .media_host("*")
}

/// Returns the agent's request for `input`, without limits on the input.
pub async fn asked_openly(input: &Value) -> ChatRequest {
    let asked = Asked::default();
    let layer = AgUiLayer::new()
        .body_limit(1 << 30)
        .client_policy(open_policy());
    let request = post(input.to_string());
    send(layer.layer(asked.agent()), request).await.events();
    asked.take()
}
