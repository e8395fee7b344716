//! Streams of Responses.

mod body;
mod calls;
mod content;
mod errors;
mod text;

use crate::common::*;
use concentric_core::{
    ErrorKind, Event, Executor, FinishReason, MediaSource, Message, MessageBuilder, PartKind,
};
use concentric_providers::{ApiKey, Limits, OpenAiResponsesLayer};
use futures_util::{FutureExt, StreamExt};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::{Arc, atomic::Ordering};

fn layer() -> OpenAiResponsesLayer {
    OpenAiResponsesLayer::new("gpt-test", ApiKey::new(CANARY))
}

async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<concentric_core::Error>) {
    read_script(&layer(), Script::new([body], End::Clean)).await
}

fn event(value: &Value) -> String {
    format!(
        "event: {}\ndata: {value}\n\n",
        value["type"].as_str().unwrap()
    )
}

fn stream(events: &[Value]) -> String {
    events.iter().map(event).collect()
}

fn created() -> Value {
    json!({"type": "response.created", "sequence_number": 0, "response": {
        "id": "resp_1", "object": "response", "status": "in_progress", "model": "gpt-test-1", "output": [],
        "error": null, "incomplete_details": null, "usage": null,
    }})
}

fn added(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

fn done(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": index, "item": item})
}

fn text_delta(index: u64, delta: &str) -> Value {
    json!({"type": "response.output_text.delta", "output_index": index, "content_index": 0, "item_id": "msg_1",
        "delta": delta, "logprobs": [], "obfuscation": "xY7", "sequence_number": 4})
}

fn arguments(index: u64, delta: &str) -> Value {
    json!({"type": "response.function_call_arguments.delta", "output_index": index, "item_id": "fc_1", "delta": delta})
}

fn message(text: &str) -> Value {
    json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

fn function(id: &str, name: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name,
        "arguments": arguments, "status": "completed"})
}

fn ended(output: Value) -> Value {
    json!({"type": "response.completed", "response": {
        "id": "resp_1", "object": "response", "status": "completed", "model": "gpt-test-1", "output": output,
        "error": null, "incomplete_details": null,
        "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 14},
    }})
}

fn hello() -> Vec<Value> {
    vec![
        created(),
        added(
            0,
            json!({"type": "message", "id": "msg_1", "role": "assistant", "content": []}),
        ),
        text_delta(0, "Hel"),
        text_delta(0, "lo"),
        done(0, message("Hello")),
        ended(json!([message("Hello")])),
    ]
}

fn built(events: &[Event]) -> Message {
    let mut builder =
        MessageBuilder::new(&concentric_core::ResponseHead::new("openai", "gpt-test-1"));
    events.iter().for_each(|event| builder.push(event));
    builder.build()
}

fn finish_of(events: &[Event]) -> concentric_core::Finish {
    match events.last() {
        Some(Event::Finish(finish)) => (**finish).clone(),
        other => panic!("{other:?}"),
    }
}
