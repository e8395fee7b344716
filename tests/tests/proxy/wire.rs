//! The five APIs: a layer of each, and what its service writes.

use super::server::Server;
use concentric_core::{BoxModel, ErrorKind};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, HttpClient, Limits, OllamaLayer, OpenAiLayer,
    OpenAiResponsesLayer, Timeouts,
};
use serde_json::{Value, json};
use tower::Layer;

/// No output of ours may ever show it.
pub const CANARY: &str = "canary-7f3a9d51e0c84b26";

/// What the model says, in pieces; with characters of one to four bytes.
pub const TEXT: [&str; 4] = ["Let me ", "söe", " – 20 € ", "😀."];

/// The calls that it makes, and the pieces of their arguments.
pub const CALLS: [(&str, [&str; 3]); 2] = [
    ("weather", ["{\"ci", "ty\":\"Zür", "ich\"}"]),
    ("book", ["{\"seats\":", "1", "2}"]),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    Chat,
    Responses,
    Anthropic,
    Gemini,
    Ollama,
}

/// What a service writes of an answer.
#[derive(Clone, Debug)]
pub struct Frames {
    pub frames: Vec<String>,
    /// So many of them say all of the answer.
    terminal: usize,
}

impl Frames {
    pub fn bytes(&self) -> Vec<u8> {
        self.frames.concat().into_bytes()
    }

    /// Of so many bytes the answer can't be told: the last event's JSON is not whole in them.
    pub fn short_of_whole(&self) -> usize {
        self.frames[..self.terminal].concat().trim_end().len() - 1
    }

    /// Where the first tool call is begun.
    pub fn first_call(&self) -> usize {
        let name = CALLS[0].0.as_bytes();
        let bytes = self.bytes();
        bytes.windows(name.len()).position(|w| w == name).unwrap()
    }
}

impl Api {
    pub const ALL: [Self; 5] = [
        Self::Chat,
        Self::Responses,
        Self::Anthropic,
        Self::Gemini,
        Self::Ollama,
    ];

    /// A model over the client, at the server's address of that number.
    pub fn model(
        self,
        client: &HttpClient,
        server: &Server,
        number: u64,
        limits: Limits,
        timeouts: Timeouts,
    ) -> BoxModel {
        let key = || ApiKey::new(CANARY);
        let url = server.url(number);
        macro_rules! model {
            ($layer:expr) => {
                BoxModel::new(
                    $layer
                        .base_url(url)
                        .limits(limits)
                        .timeouts(timeouts)
                        .layer(client.clone()),
                )
            };
        }
        match self {
            Self::Chat => model!(OpenAiLayer::new("m", key())),
            Self::Responses => model!(OpenAiResponsesLayer::new("m", key())),
            Self::Anthropic => model!(AnthropicLayer::new("m", key())),
            Self::Gemini => model!(GeminiLayer::new("m", key())),
            Self::Ollama => model!(OllamaLayer::with_host("", "m", Some(key()))),
        }
    }

    pub fn provider(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gcp.gemini",
            Self::Ollama => "ollama",
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Ollama => "application/x-ndjson",
            _ => "text/event-stream; charset=utf-8",
        }
    }

    /// One message of the service's.
    pub fn frame(self, value: &Value) -> String {
        match self {
            Self::Ollama => format!("{value}\n"),
            Self::Gemini => format!("data: {value}\r\n\r\n"),
            Self::Chat => format!("data: {value}\n\n"),
            Self::Responses | Self::Anthropic => {
                let type_ = value["type"].as_str().unwrap();
                format!("event: {type_}\ndata: {value}\n\n")
            }
        }
    }

    /// A sign of life that says nothing.
    pub fn ping(self) -> String {
        match self {
            Self::Ollama => "\n".to_owned(),
            Self::Anthropic => self.frame(&json!({ "type": "ping" })),
            _ => ": ping\n\n".to_owned(),
        }
    }

    /// A whole answer, with `id` where the service gives one.
    pub fn answer(self, id: &str) -> Frames {
        let values = match self {
            Self::Chat => chat(id),
            Self::Responses => responses(id),
            Self::Anthropic => anthropic(id),
            Self::Gemini => gemini(id),
            Self::Ollama => ollama(),
        };
        let mut frames: Vec<_> = values.iter().map(|value| self.frame(value)).collect();
        let terminal = frames.len();
        if self == Self::Chat {
            frames.push("data: [DONE]\n\n".to_owned());
        }
        Frames { frames, terminal }
    }

    /// More text.
    pub fn text(self, text: &str) -> String {
        self.frame(&match self {
            Self::Chat => chunk("a", &json!({ "content": text }), None),
            Self::Responses => responses_text(text),
            Self::Anthropic => anthropic_text(text),
            Self::Gemini => gemini_chunk("a", &json!({ "text": text }), None),
            Self::Ollama => ollama_chunk(&json!({ "content": text }), false),
        })
    }

    /// The beginning of an answer, up to a place where [`text`](Self::text) may follow.
    pub fn before_text(self) -> String {
        let frames = self.answer("a").frames;
        let before = match self {
            Self::Chat => 1,
            Self::Responses | Self::Anthropic => 2,
            Self::Gemini | Self::Ollama => 0,
        };
        frames[..before].concat()
    }

    /// The service's own way to say within an answer that it failed: the event, and the code that
    /// the error then has.
    pub fn error(self) -> (String, Option<&'static str>) {
        let message = format!("no capacity, {CANARY}");
        let (value, code) = match self {
            Self::Chat => (
                json!({ "error": { "message": message, "type": "server_error", "code": 503 } }),
                Some("503"),
            ),
            Self::Responses => (
                json!({ "type": "error", "code": "overloaded", "message": message, "param": null }),
                Some("overloaded"),
            ),
            Self::Anthropic => (
                json!({ "type": "error",
                    "error": { "type": "overloaded_error", "message": message } }),
                None,
            ),
            Self::Gemini => (
                json!({ "error": { "code": 503, "message": message, "status": "UNAVAILABLE" } }),
                Some("503"),
            ),
            Self::Ollama => (json!({ "error": message }), None),
        };
        (self.frame(&value), code)
    }
}

impl Api {
    /// The kind of that error.
    pub fn error_kind(self) -> ErrorKind {
        match self {
            // It says no more than that it failed.
            Self::Ollama => ErrorKind::Server,
            _ => ErrorKind::Overloaded,
        }
    }

    /// The beginning of an answer that makes so many calls.
    pub fn calls(self, count: usize) -> String {
        let answer = self.answer("a").frames;
        let call = |at: usize| match self {
            Self::Chat => self.frame(&chunk(
                "a",
                &json!({ "tool_calls": [chat_call(at, "f")] }),
                None,
            )),
            Self::Responses => self.frame(&json!({ "type": "response.output_item.added",
                "output_index": at, "item": function(at, "f", "") })),
            Self::Anthropic => self.frame(&tool_use(at, at, "f")),
            // Nothing of a call says which it is.
            Self::Gemini | Self::Ollama => answer[TEXT.len()].clone(),
        };
        let before = match self {
            Self::Gemini | Self::Ollama => 0,
            _ => 1,
        };
        answer[..before]
            .iter()
            .cloned()
            .chain((0..count).map(call))
            .collect()
    }
}

fn chunk(id: &str, delta: &Value, reason: Option<&str>) -> Value {
    json!({ "id": id, "object": "chat.completion.chunk", "model": "m",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] })
}

fn chat_call(index: usize, name: &str) -> Value {
    json!({ "index": index, "id": format!("call_{index}"), "type": "function",
        "function": { "name": name, "arguments": "" } })
}

fn chat(id: &str) -> Vec<Value> {
    let mut values = vec![chunk(
        id,
        &json!({ "role": "assistant", "content": "" }),
        None,
    )];
    values.extend(TEXT.map(|text| chunk(id, &json!({ "content": text }), None)));
    for (index, (name, pieces)) in CALLS.iter().enumerate() {
        let call = chat_call(index, name);
        values.push(chunk(id, &json!({ "tool_calls": [call] }), None));
        values.extend(pieces.map(|piece| {
            let call = json!({ "index": index, "function": { "arguments": piece } });
            chunk(id, &json!({ "tool_calls": [call] }), None)
        }));
    }
    values.push(chunk(id, &json!({}), Some("tool_calls")));
    values
}

fn responses_text(text: &str) -> Value {
    json!({ "type": "response.output_text.delta", "output_index": 0, "content_index": 0,
        "item_id": "msg_1", "delta": text })
}

fn function(index: usize, name: &str, arguments: &str) -> Value {
    json!({ "type": "function_call", "id": format!("fc_{index}"),
        "call_id": format!("call_{index}"), "name": name, "arguments": arguments })
}

fn responses(id: &str) -> Vec<Value> {
    let mut values = vec![
        json!({ "type": "response.created",
            "response": { "id": id, "object": "response", "status": "in_progress", "output": [] } }),
        json!({ "type": "response.output_item.added", "output_index": 0,
            "item": { "type": "message", "id": "msg_1", "role": "assistant", "content": [] } }),
    ];
    values.extend(TEXT.map(responses_text));
    let mut output = vec![
        json!({ "type": "message", "id": "msg_1", "role": "assistant",
        "status": "completed",
        "content": [{ "type": "output_text", "text": TEXT.concat(), "annotations": [] }] }),
    ];
    values.push(
        json!({ "type": "response.output_item.done", "output_index": 0,
        "item": output[0] }),
    );
    for (index, (name, pieces)) in CALLS.iter().enumerate() {
        let at = index + 1;
        values.push(
            json!({ "type": "response.output_item.added", "output_index": at,
            "item": function(index, name, "") }),
        );
        values.extend(pieces.map(|piece| {
            json!({ "type": "response.function_call_arguments.delta", "output_index": at,
                "item_id": format!("fc_{index}"), "delta": piece })
        }));
        let item = function(index, name, &pieces.concat());
        values.push(
            json!({ "type": "response.output_item.done", "output_index": at,
            "item": item }),
        );
        output.push(item);
    }
    values.push(json!({ "type": "response.completed", "response": {
        "id": id, "object": "response", "status": "completed", "output": output,
        "usage": { "input_tokens": 9, "output_tokens": 5, "total_tokens": 14 } } }));
    values
}

fn anthropic_text(text: &str) -> Value {
    json!({ "type": "content_block_delta", "index": 0,
        "delta": { "type": "text_delta", "text": text } })
}

fn tool_use(at: usize, index: usize, name: &str) -> Value {
    json!({ "type": "content_block_start", "index": at,
        "content_block": { "type": "tool_use", "id": format!("call_{index}"), "name": name,
            "input": {} } })
}

fn anthropic(id: &str) -> Vec<Value> {
    let stop = |index: usize| json!({ "type": "content_block_stop", "index": index });
    let mut values = vec![
        json!({ "type": "message_start", "message": { "id": id, "type": "message",
            "role": "assistant", "model": "m", "content": [],
            "usage": { "input_tokens": 9, "output_tokens": 1 } } }),
        json!({ "type": "content_block_start", "index": 0,
            "content_block": { "type": "text", "text": "" } }),
    ];
    values.extend(TEXT.map(anthropic_text));
    values.push(stop(0));
    for (index, (name, pieces)) in CALLS.iter().enumerate() {
        let at = index + 1;
        values.push(tool_use(at, index, name));
        values.extend(pieces.map(|piece| {
            json!({ "type": "content_block_delta", "index": at,
                "delta": { "type": "input_json_delta", "partial_json": piece } })
        }));
        values.push(stop(at));
    }
    values.push(
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" },
        "usage": { "output_tokens": 5 } }),
    );
    values.push(json!({ "type": "message_stop" }));
    values
}

fn gemini_chunk(id: &str, part: &Value, reason: Option<&str>) -> Value {
    let mut candidate = json!({ "index": 0, "content": { "role": "model", "parts": [part] } });
    if let Some(reason) = reason {
        candidate["finishReason"] = reason.into();
    }
    json!({ "candidates": [candidate], "modelVersion": "m", "responseId": id })
}

fn gemini(id: &str) -> Vec<Value> {
    let mut values: Vec<_> = TEXT
        .map(|text| gemini_chunk(id, &json!({ "text": text }), None))
        .into();
    values.extend(CALLS.map(|(name, pieces)| {
        let args: Value = serde_json::from_str(&pieces.concat()).unwrap();
        let call = json!({ "functionCall": { "name": name, "args": args } });
        gemini_chunk(id, &call, None)
    }));
    values.push(gemini_chunk(id, &json!({ "text": "" }), Some("STOP")));
    values
}

fn ollama_chunk(message: &Value, done: bool) -> Value {
    let mut chunk = json!({ "model": "m", "created_at": "2026-01-01T00:00:00Z",
        "message": message, "done": done });
    chunk["message"]["role"] = "assistant".into();
    if done {
        chunk["done_reason"] = "stop".into();
    }
    chunk
}

fn ollama() -> Vec<Value> {
    let mut values: Vec<_> = TEXT
        .map(|text| ollama_chunk(&json!({ "content": text }), false))
        .into();
    values.extend(CALLS.map(|(name, pieces)| {
        let arguments: Value = serde_json::from_str(&pieces.concat()).unwrap();
        let call = json!({ "function": { "name": name, "arguments": arguments } });
        ollama_chunk(&json!({ "content": "", "tool_calls": [call] }), false)
    }));
    values.push(ollama_chunk(&json!({ "content": "" }), true));
    values
}
