//! The endpoint for `useChat`.

mod approvals;
mod client;
mod real;
mod requests;
mod resume;
mod stream;

use crate::support::{Answer, Item, agent, send};
use bytes::Bytes;
use client::{Message, chunks};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use concentric_http::ui_messages::UiMessagesLayer;
use http_body_util::Full;
use serde_json::{Value, json};
use tower::{BoxError, Layer, Service};

type Request = http::Request<Full<Bytes>>;

fn post(input: &Value) -> Request {
    http::Request::post("/chat")
        .header("content-type", "application/json")
        .body(Full::new(input.to_string().into()))
        .unwrap()
}

/// The message of a user, with a text.
fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

/// A request as `DefaultChatTransport` sends it.
fn input(messages: &[Value]) -> Value {
    json!({"id": "chat", "messages": messages, "trigger": "submit-message"})
}

fn hi() -> Value {
    input(&[user("u", "hi")])
}

async fn ask<A, B>(layer: &UiMessagesLayer, agent: A, input: &Value) -> Answer
where
    A: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    A::Error: Into<BoxError>,
    B: futures_util::Stream<Item = Result<Event, Error>>,
{
    send(layer.layer(agent), post(input)).await
}

/// The chunks of a script, which must build a message.
async fn run_with(layer: &UiMessagesLayer, script: Vec<Item>) -> (Vec<Value>, Message) {
    let answer = ask(layer, agent(script), &hi()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let chunks = chunks(&answer.body);
    let message = Message::of(&chunks);
    assert!(message.end.is_some());
    (chunks, message)
}

async fn run(script: Vec<Item>) -> (Vec<Value>, Message) {
    run_with(&UiMessagesLayer::new(), script).await
}

/// The chunks without the first, which names the message.
fn rest(chunks: &[Value]) -> Value {
    assert_eq!(chunks[0]["type"], "start");
    chunks[1..].iter().cloned().collect()
}
