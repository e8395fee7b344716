//! Helpers for the tests of chat completions.

use crate::common::*;
use concentric_core::{
    Author, CallId, ChatRequest, Event, Message, Part, PartKind, Role, Round, ToolCallPart,
    ToolOutcome, ToolResult, Turn,
};
use concentric_providers::{ApiKey, OpenAiLayer, openai::Profile};
use serde_json::Value;

pub fn of(profile: Profile) -> OpenAiLayer {
    let layer = OpenAiLayer::profile(profile, "m", Some(ApiKey::new("k")));
    match profile.base_url {
        "" => layer.base_url("https://mine.test/v1"),
        _ => layer,
    }
}

pub async fn messages(profile: Profile, request: ChatRequest) -> Value {
    let sent = try_sent_by(&of(profile), request).await;
    sent.unwrap().1["messages"].take()
}

pub fn thought(text: &str, provider: &str) -> Part {
    Part::new(PartKind::Reasoning(text.into())).by(Author::Model {
        provider: provider.into(),
        model: "m".into(),
    })
}

/// A call and its result, followed by a user message.
pub fn round() -> ChatRequest {
    round_of(Vec::new())
}

/// The same, with `parts` before the call.
pub fn round_of(mut parts: Vec<Part>) -> ChatRequest {
    let call = ToolCallPart::new(CallId::new("call_1"), "t", "{}");
    parts.push(Part::new(PartKind::ToolCall(call)));
    let message = Message::new(Role::Assistant, parts);
    let result = ToolResult::new(CallId::new("call_1"), "t", ToolOutcome::done("ok"));
    let mut request = ChatRequest::user("hi");
    let round = Round::new(message, vec![result]).unwrap();
    request.transcript.push(round);
    request.transcript.push_user("and?");
    request
}

pub fn assistant(text: &str) -> Turn {
    Turn::message(Message::assistant(text)).unwrap()
}

pub async fn answer(profile: Profile, body: &Value) -> Vec<Event> {
    let script = Script::new([body.to_string()], End::Clean);
    let answer = ask(
        &of(profile),
        ChatRequest::user("hi"),
        http::Response::new(script),
    )
    .await;
    let (events, error) = drain(answer).await;
    assert!(error.is_none(), "{error:?}");
    events
}
