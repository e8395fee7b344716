//! Helpers for the tests of providers.

pub mod gemini;
pub mod strict;

use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use concentric_providers::{ApiKey, OpenAiLayer};
use futures_util::{Stream, StreamExt};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};
use tower::{Layer, Service, ServiceExt};

/// A secret that must never appear in any output.
pub const CANARY: &str = "canary-7f3a9d51e0c84b26";

/// A body of several chunks, after which it ends, fails or stays silent.
#[derive(Debug)]
pub struct Script {
    pub pieces: VecDeque<Bytes>,
    pub end: End,
    pub dropped: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Clean,
    Broken,
    Silent,
}

impl Script {
    pub fn new<T: AsRef<[u8]>>(pieces: impl IntoIterator<Item = T>, end: End) -> Self {
        Self {
            pieces: pieces
                .into_iter()
                .map(|p| Bytes::copy_from_slice(p.as_ref()))
                .collect(),
            end,
            dropped: Arc::default(),
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match (self.pieces.pop_front(), self.end) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            (None, End::Clean) => Poll::Ready(None),
            (None, End::Broken) => {
                Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())))
            }
            (None, End::Silent) => Poll::Pending,
        }
    }
}

pub fn layer() -> OpenAiLayer {
    OpenAiLayer::new("gpt-test", ApiKey::new(CANARY))
}

/// A response with a single chunk.
pub fn response(
    status: u16,
    headers: &[(&'static str, &str)],
    body: &str,
) -> http::Response<Script> {
    let mut response = http::Response::new(Script::new([body], End::Clean));
    *response.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

/// An HTTP service with a single response.
#[derive(Debug)]
pub struct Once(pub Option<http::Response<Script>>);

impl Service<http::Request<Full<Bytes>>> for Once {
    type Response = http::Response<Script>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Script>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Full<Bytes>>) -> Self::Future {
        ready(Ok(self.0.take().unwrap()))
    }
}

/// The response of the model that `layer` creates over a service with `response`.
pub async fn call<L, S, B>(
    layer: &L,
    response: http::Response<Script>,
) -> Result<ChatResponse<B>, Error>
where
    L: Layer<Once, Service = S>,
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    let http = Once(Some(response));
    layer.layer(http).oneshot(ChatRequest::user("hi")).await
}

/// Asserts that the text of `body` is "Hello", for any content type and any split of the bytes.
pub async fn assert_hello<L, S, B>(layer: &L, body: &str)
where
    L: Layer<Once, Service = S>,
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
    B: Stream<Item = Result<Event, Error>>,
{
    for content_type in ["text/event-stream", "application/json", ""] {
        for size in [1, 7, body.len()] {
            let script = Script::new(body.as_bytes().chunks(size), End::Clean);
            let mut response = http::Response::new(script);
            let content_type = content_type.parse().unwrap();
            response.headers_mut().insert("content-type", content_type);
            let answer = call(layer, response).await.unwrap().collect().await;
            assert_eq!(answer.unwrap().text(), "Hello", "{body:?}");
        }
    }
}

/// An HTTP service that responds once, and records the request.
#[derive(Clone)]
pub struct Http {
    response: Arc<Mutex<Option<http::Response<Script>>>>,
    pub asked: Arc<Mutex<Option<http::Request<Full<Bytes>>>>>,
}

impl Http {
    pub fn new(response: http::Response<Script>) -> Self {
        Self {
            response: Arc::new(Mutex::new(Some(response))),
            asked: Arc::default(),
        }
    }
}

impl Service<http::Request<Full<Bytes>>> for Http {
    type Response = http::Response<Script>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Full<Bytes>>) -> Self::Future {
        *self.asked.lock().unwrap() = Some(request);
        ready(Ok(self.response.lock().unwrap().take().unwrap()))
    }
}

/// The request that is sent for `request`, or the error.
pub async fn try_sent_by<L, B>(
    layer: &L,
    request: ChatRequest,
) -> Result<(http::request::Parts, Value), Error>
where
    L: Layer<Http>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    let http = Http::new(http::Response::new(Script::new([""], End::Clean)));
    let asked = Arc::clone(&http.asked);
    let answer = layer.layer(http).oneshot(request).await;
    let Some(asked) = asked.lock().unwrap().take() else {
        return Err(answer.err().unwrap());
    };
    let (parts, body) = asked.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Ok((parts, serde_json::from_slice(&body).unwrap()))
}

/// The request that is sent for `request`.
pub async fn sent_by<L, B>(layer: &L, request: ChatRequest) -> (http::request::Parts, Value)
where
    L: Layer<Http>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    try_sent_by(layer, request).await.unwrap()
}

/// The events of a body, and the error that ended it.
pub async fn read_script<L, S, B>(layer: &L, script: Script) -> (Vec<Event>, Option<Error>)
where
    L: Layer<Once, Service = S>,
    S: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
    B: Stream<Item = Result<Event, Error>>,
{
    drain(call(layer, http::Response::new(script)).await).await
}

/// The model's response to `request` if its service responds with `response`.
pub async fn ask<L, B>(
    layer: &L,
    request: ChatRequest,
    response: http::Response<Script>,
) -> Result<ChatResponse<B>, Error>
where
    L: Layer<Http>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    layer.layer(Http::new(response)).oneshot(request).await
}

/// The events of a response, and the error that ended it.
pub async fn drain<B>(answer: Result<ChatResponse<B>, Error>) -> (Vec<Event>, Option<Error>)
where
    B: Stream<Item = Result<Event, Error>>,
{
    let body = match answer {
        Ok(response) => response.body,
        Err(error) => return (Vec::new(), Some(error)),
    };
    read_body(body).await
}

/// The events of a body, and the error that ended it.
pub async fn read_body(
    body: impl Stream<Item = Result<Event, Error>>,
) -> (Vec<Event>, Option<Error>) {
    let mut events = Vec::new();
    let mut error = None;
    let mut body = std::pin::pin!(body);
    while let Some(item) = body.next().await {
        assert!(error.is_none(), "an item after the error");
        match item {
            Ok(event) => events.push(event),
            Err(e) => error = Some(e),
        }
    }
    assert!(body.next().await.is_none());
    let finishes = events.iter().filter(|event| event.is_finish()).count();
    assert_eq!(
        finishes + usize::from(error.is_some()),
        1,
        "one terminal item: {events:?}"
    );
    if error.is_none() {
        assert!(events.last().is_some_and(Event::is_finish));
    }
    (events, error)
}

pub async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<Error>) {
    read_script(&layer(), Script::new([body], End::Clean)).await
}

/// An event of a stream whose choice has this delta.
pub fn delta(delta: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n")
}

pub fn finish(reason: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n"
    )
}

pub const DONE: &str = "data: [DONE]\n\n";

pub fn text(events: &[Event]) -> String {
    events
        .iter()
        .filter_map(|event| match event {
            Event::TextDelta(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

/// The calls, as `provider id, name, arguments`.
pub fn calls(events: &[Event]) -> Vec<(Option<String>, String, String)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall(event) => Some((
                event.call.provider_id.as_ref().map(|id| id.to_string()),
                event.call.name.to_string(),
                event.call.arguments.as_str().to_owned(),
            )),
            _ => None,
        })
        .collect()
}
