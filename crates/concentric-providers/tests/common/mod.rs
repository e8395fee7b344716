//! What the tests of a provider share.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

pub mod gemini;

use bytes::Bytes;
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use concentric_providers::{ApiKey, OpenAiLayer, model, openai::Chat};
use futures_util::{Stream, StreamExt};
use http_body::{Body, Frame};
use http_body_util::Full;
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};
use tower::{Layer, ServiceExt, service_fn};

/// No output of ours may ever show it.
pub const CANARY: &str = "canary-7f3a9d51e0c84b26";

/// A body in pieces; after them it ends, breaks, or stays silent.
pub struct Script {
    pub pieces: VecDeque<Bytes>,
    pub end: End,
    pub dropped: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
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

pub async fn call(
    layer: &OpenAiLayer,
    response: http::Response<Script>,
) -> Result<ChatResponse<model::Body<Script, Chat>>, Error> {
    let response = std::sync::Mutex::new(Some(response));
    let http = service_fn(|_: http::Request<Full<Bytes>>| {
        std::future::ready(Ok::<_, Infallible>(
            response.lock().unwrap().take().unwrap(),
        ))
    });
    layer.layer(http).oneshot(ChatRequest::user("hi")).await
}

/// All that comes of a body: the events, and the error that ended them.
pub async fn read_script(layer: &OpenAiLayer, script: Script) -> (Vec<Event>, Option<Error>) {
    let body = match call(layer, http::Response::new(script)).await {
        Ok(response) => response.body,
        Err(error) => return (Vec::new(), Some(error)),
    };
    read_body(body).await
}

/// All that comes of a body.
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

/// An event of a stream, whose choice has this delta.
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
