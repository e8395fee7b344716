//! Helpers for the tests of Anthropic's responses.

use crate::common::*;
use concentric_core::{Event, Finish, Message, MessageBuilder, ResponseHead};
use concentric_providers::{AnthropicLayer, ApiKey};
use serde_json::{Value, json};

pub fn layer() -> AnthropicLayer {
    AnthropicLayer::new("claude-opus-4-8", ApiKey::new(CANARY))
}

pub async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<concentric_core::Error>) {
    read_script(&layer(), Script::new([body], End::Clean)).await
}

pub fn event(data: &Value) -> String {
    let name = data["type"].as_str().unwrap();
    format!("event: {name}\ndata: {data}\n\n")
}

pub fn start() -> String {
    event(&json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [],
        "model": "claude-opus-4-8-20260528", "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 10, "cache_creation_input_tokens": 20,
            "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 15},
            "cache_read_input_tokens": 30, "output_tokens": 1},
    }}))
}

pub fn block(index: u64, begun: &Value, deltas: &[Value]) -> String {
    let mut out =
        event(&json!({"type": "content_block_start", "index": index, "content_block": begun}));
    for delta in deltas {
        let data = json!({"type": "content_block_delta", "index": index, "delta": delta});
        out += &event(&data);
    }
    out + &event(&json!({"type": "content_block_stop", "index": index}))
}

pub fn text_block(index: u64, texts: &[&str]) -> String {
    let deltas: Vec<Value> = texts
        .iter()
        .map(|text| json!({"type": "text_delta", "text": text}))
        .collect();
    block(index, &json!({"type": "text", "text": ""}), &deltas)
}

pub fn call_block(index: u64, begun: &Value, arguments: &[&str]) -> String {
    let deltas: Vec<Value> = arguments
        .iter()
        .map(|json| json!({"type": "input_json_delta", "partial_json": json}))
        .collect();
    block(index, begun, &deltas)
}

pub fn tool_use(index: u64, id: &str, arguments: &[&str]) -> String {
    let begun = json!({"type": "tool_use", "id": id, "name": "search", "input": {}});
    call_block(index, &begun, arguments)
}

pub fn stop(reason: &str) -> String {
    let delta = json!({"type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": null},
        "usage": {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 3}}});
    event(&delta) + &event(&json!({"type": "message_stop"}))
}

pub fn finish_of(events: &[Event]) -> &Finish {
    match events.last() {
        Some(Event::Finish(finish)) => finish,
        other => panic!("{other:?}"),
    }
}

/// The message built from the events.
pub fn message(events: &[Event]) -> Message {
    let mut builder = MessageBuilder::new(&ResponseHead::new("anthropic", "claude-opus-4-8"));
    events.iter().for_each(|event| builder.push(event));
    builder.build()
}
