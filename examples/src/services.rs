//! Stand-ins for the HTTP services of model providers, each with its wire format, so that an
//! example runs offline.
//!
//! Each calls `list_files` if the conversation has no such call yet, and otherwise describes its
//! input. As with the real services, each response has reasoning, and two of the services sign it.

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::convert::Infallible;
use tower::{Service, service_fn};

/// The reasoning of all stand-ins.
const THOUGHT: &str = "Checking the conversation so far.";

/// Creates a service that responds like Anthropic, Gemini or Ollama, depending on the path.
pub fn stand_in() -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future: Send + 'static,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(async |request: Request<Full<Bytes>>| {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let mut response = Response::new(Full::default());
        match answer(head.uri.path(), &body) {
            Some((media_type, answer)) => {
                let media_type = header::HeaderValue::from_static(media_type);
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, media_type);
                *response.body_mut() = answer.into();
            }
            None => *response.status_mut() = StatusCode::NOT_FOUND,
        }
        Ok::<_, Infallible>(response)
    })
}

/// Returns the media type and the response stream for a request to `path`; `None` for unknown
/// paths.
pub fn answer(path: &str, body: &[u8]) -> Option<(&'static str, String)> {
    const SSE: &str = "text/event-stream";
    let body: Value = serde_json::from_slice(body).ok()?;
    if path.ends_with("/v1/messages") {
        let answer = Answer::to(body.get("messages")?, "tool_use", "tool_result");
        Some((SSE, anthropic(&answer)))
    } else if path.ends_with(":streamGenerateContent") {
        let answer = Answer::to(body.get("contents")?, "functionCall", "functionResponse");
        Some((SSE, gemini(&answer)))
    } else if path.ends_with("/api/chat") {
        let answer = Answer::to(body.get("messages")?, "tool_calls", "tool_name");
        Some(("application/x-ndjson", ollama(&answer)))
    } else {
        None
    }
}

/// The content of a stand-in's response.
enum Answer {
    /// A call of `list_files`.
    Call,
    Text(String),
}

impl Answer {
    /// `call` and `result` are the service's names for tool calls and results.
    fn to(messages: &Value, call: &str, result: &str) -> Self {
        let messages = messages.as_array().map_or(&[][..], Vec::as_slice);
        let quoted = |word: &str| format!("\"{word}\"");
        let holds = |message: &Value, word| message.to_string().contains(&quoted(word));
        match messages.last() {
            Some(last) if holds(last, result) => {
                let files: Vec<&str> = longest(last).lines().collect();
                Self::Text(format!("The folder contains {}.", files.join(", ")))
            }
            _ if !messages.iter().any(|message| holds(message, call)) => Self::Call,
            _ => Self::Text(format!(
                "The request has {} messages, with a call of list_files among them.",
                messages.len()
            )),
        }
    }
}

/// Returns the longest string in a message.
fn longest(value: &Value) -> &str {
    let texts: &mut dyn Iterator<Item = &str> = match value {
        Value::String(text) => return text,
        Value::Array(values) => &mut values.iter().map(longest),
        Value::Object(fields) => &mut fields.values().map(longest),
        _ => return "",
    };
    texts.max_by_key(|text| text.len()).unwrap_or_default()
}

fn anthropic(answer: &Answer) -> String {
    let (block, delta, reason) = match answer {
        Answer::Call => (
            json!({"type": "tool_use", "id": "toolu_1", "name": "list_files", "input": {}}),
            json!({"type": "input_json_delta", "partial_json": "{}"}),
            "tool_use",
        ),
        Answer::Text(text) => (
            json!({"type": "text", "text": ""}),
            json!({"type": "text_delta", "text": text}),
            "end_turn",
        ),
    };
    let signature = "c2lnbmVkIGJ5IHRoZSBzdGFuZC1pbiBvZiBBbnRocm9waWM=";
    [
        json!({"type": "message_start", "message": {"type": "message", "id": "msg_1",
            "role": "assistant", "model": "stand-in", "content": [],
            "usage": {"input_tokens": 10, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "thinking_delta", "thinking": THOUGHT}}),
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "signature_delta", "signature": signature}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": block}),
        json!({"type": "content_block_delta", "index": 1, "delta": delta}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null},
            "usage": {"output_tokens": 20}}),
        json!({"type": "message_stop"}),
    ]
    .iter()
    .map(|event| {
        let name = event.get("type").and_then(Value::as_str);
        format!("event: {}\ndata: {event}\n\n", name.unwrap_or_default())
    })
    .collect()
}

fn gemini(answer: &Answer) -> String {
    let signature = "c2lnbmVkIGJ5IHRoZSBzdGFuZC1pbiBvZiBHZW1pbmk=";
    let part = match answer {
        Answer::Call => json!({"functionCall": {"name": "list_files", "args": {}},
            "thoughtSignature": signature}),
        Answer::Text(text) => json!({"text": text, "thoughtSignature": signature}),
    };
    let chunk = |part: Value, reason: Value| {
        let candidate = json!({"index": 0, "finishReason": reason,
            "content": {"role": "model", "parts": [part]}});
        let usage = json!({"promptTokenCount": 10, "candidatesTokenCount": 20,
            "totalTokenCount": 30});
        let chunk = json!({"responseId": "r1", "modelVersion": "stand-in",
            "candidates": [candidate], "usageMetadata": usage});
        format!("data: {chunk}\r\n\r\n")
    };
    let thought = json!({"text": THOUGHT, "thought": true});
    chunk(thought, Value::Null) + &chunk(part, json!("STOP"))
}

fn ollama(answer: &Answer) -> String {
    let message = match answer {
        Answer::Call => json!({"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "list_files", "arguments": {}}}]}),
        Answer::Text(text) => json!({"role": "assistant", "content": text}),
    };
    let thought = json!({"role": "assistant", "content": "", "thinking": THOUGHT});
    let end = json!({"model": "stand-in", "message": {"role": "assistant", "content": ""},
        "done": true, "done_reason": "stop", "prompt_eval_count": 10, "eval_count": 20});
    let line = |message: Value| json!({"model": "stand-in", "message": message, "done": false});
    [line(thought), line(message), end]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}
