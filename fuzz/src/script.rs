use arbitrary::Arbitrary;
use serde_json::{Value, json};
use std::fmt::Write;

/// How an API says something: the chunks of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's chat completions.
    Chat,
    /// Gemini's `generateContent`.
    Gemini,
    /// Ollama's own.
    Ollama,
    /// OpenAI's Responses.
    Responses,
}

impl Script {
    const ALL: [Self; 5] = [
        Self::Anthropic,
        Self::Chat,
        Self::Gemini,
        Self::Ollama,
        Self::Responses,
    ];

    /// The API.
    pub const fn api(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic-messages",
            Self::Chat => "openai-chat",
            Self::Gemini => "gemini-generate",
            Self::Ollama => "ollama-chat",
            Self::Responses => "openai-responses",
        }
    }

    /// One of them.
    pub fn pick(which: u8) -> Self {
        Self::ALL[usize::from(which) % Self::ALL.len()]
    }

    /// An answer that is `texts`.
    pub fn texts<'a>(self, texts: impl IntoIterator<Item = &'a str>) -> Vec<Value> {
        let mut chunks = self.begin();
        match self {
            Self::Anthropic => chunks.push(json!({
                "type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""},
            })),
            Self::Responses => {
                chunks.push(json!({
                    "type": "response.output_item.added", "output_index": 0,
                    "item": {"type": "message", "id": "m", "role": "assistant", "content": []},
                }));
                chunks.push(json!({
                    "type": "response.content_part.added", "item_id": "m", "output_index": 0,
                    "content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []},
                }));
            }
            Self::Chat | Self::Gemini | Self::Ollama => {}
        }
        let mut all = String::new();
        for text in texts {
            all.push_str(text);
            chunks.push(match self {
                Self::Anthropic => json!({
                    "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text},
                }),
                Self::Chat => json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
                Self::Gemini => {
                    json!({"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}]})
                }
                Self::Ollama => json!({"message": {"content": text}, "done": false}),
                Self::Responses => json!({
                    "type": "response.output_text.delta", "item_id": "m", "output_index": 0,
                    "content_index": 0, "delta": text,
                }),
            });
        }
        let item = json!({
            "type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": all, "annotations": []}],
        });
        match self {
            Self::Anthropic => chunks.push(json!({"type": "content_block_stop", "index": 0})),
            Self::Responses => chunks.push(json!({
                "type": "response.output_item.done", "output_index": 0, "item": item,
            })),
            Self::Chat | Self::Gemini | Self::Ollama => {}
        }
        chunks.extend(self.end(false, &[item]));
        chunks
    }

    /// An answer that makes calls, each a name and the pieces of its arguments. `order` says which
    /// call's next piece comes next, where the API lets several be written at once.
    pub fn calls(self, calls: &[(String, Vec<String>)], order: &[u8]) -> Vec<Value> {
        let mut chunks = self.begin();
        let item = |index: usize, arguments: &str| {
            json!({
                "type": "function_call", "id": format!("fc_{index}"), "call_id": format!("id_{index}"),
                "name": calls[index].0, "arguments": arguments,
            })
        };
        let start = |index: usize| {
            let (id, name) = (format!("id_{index}"), &calls[index].0);
            match self {
                Self::Anthropic => json!({
                    "type": "content_block_start", "index": index,
                    "content_block": {"type": "tool_use", "id": id, "name": name, "input": {}},
                }),
                Self::Chat => chat(json!({
                    "index": index, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""},
                })),
                Self::Gemini | Self::Ollama => Value::Null,
                Self::Responses => json!({
                    "type": "response.output_item.added", "output_index": index, "item": item(index, ""),
                }),
            }
        };
        let stop = |index: usize| match self {
            Self::Anthropic => json!({"type": "content_block_stop", "index": index}),
            Self::Responses => json!({
                "type": "response.output_item.done", "output_index": index,
                "item": item(index, &calls[index].1.concat()),
            }),
            Self::Chat | Self::Gemini | Self::Ollama => Value::Null,
        };
        let delta = |index: usize, piece: &str| match self {
            Self::Anthropic => json!({
                "type": "content_block_delta", "index": index,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }),
            Self::Chat => chat(json!({"index": index, "function": {"arguments": piece}})),
            Self::Gemini | Self::Ollama => Value::Null,
            Self::Responses => json!({
                "type": "response.function_call_arguments.delta", "output_index": index,
                "item_id": format!("fc_{index}"), "delta": piece,
            }),
        };
        let said = if self == Self::Anthropic {
            // One block after the other.
            let mut said = Vec::new();
            for (index, (_, pieces)) in calls.iter().enumerate() {
                said.push(start(index));
                said.extend(pieces.iter().map(|piece| delta(index, piece)));
                said.push(stop(index));
            }
            said
        } else {
            let mut said: Vec<Value> = (0..calls.len()).map(start).collect();
            let interleaved = interleaved(calls, order);
            said.extend(interleaved.map(|(index, piece)| delta(index, piece)));
            said.extend((0..calls.len()).map(stop));
            said
        };
        chunks.extend(said.into_iter().filter(|chunk| !chunk.is_null()));
        let items: Vec<Value> = (calls.iter().enumerate())
            .map(|(index, (_, pieces))| item(index, &pieces.concat()))
            .collect();
        chunks.extend(self.end(true, &items));
        chunks
    }

    /// Whether it writes the arguments of a call in pieces of text.
    pub fn streams_arguments(self) -> bool {
        !matches!(self, Self::Gemini | Self::Ollama)
    }

    fn begin(self) -> Vec<Value> {
        match self {
            Self::Anthropic => vec![json!({
                "type": "message_start",
                "message": {"type": "message", "id": "m", "role": "assistant", "model": "m", "content": [], "usage": {}},
            })],
            Self::Responses => vec![json!({
                "type": "response.created",
                "response": {"id": "r", "object": "response", "status": "in_progress", "output": []},
            })],
            Self::Chat | Self::Gemini | Self::Ollama => Vec::new(),
        }
    }

    fn end(self, calls: bool, items: &[Value]) -> Vec<Value> {
        match self {
            Self::Anthropic => {
                let reason = if calls { "tool_use" } else { "end_turn" };
                vec![
                    json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}}),
                    json!({"type": "message_stop"}),
                ]
            }
            Self::Chat => {
                let reason = if calls { "tool_calls" } else { "stop" };
                vec![json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})]
            }
            Self::Gemini => vec![json!({"candidates": [{"finishReason": "STOP"}]})],
            Self::Ollama => {
                vec![json!({"message": {"content": ""}, "done": true, "done_reason": "stop"})]
            }
            Self::Responses => vec![json!({
                "type": "response.completed",
                "response": {"id": "r", "object": "response", "status": "completed", "output": items},
            })],
        }
    }
}

fn chat(call: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
}

/// The pieces of calls, each call's in their order.
fn interleaved<'a>(
    calls: &'a [(String, Vec<String>)],
    order: &[u8],
) -> impl Iterator<Item = (usize, &'a str)> {
    let mut left: Vec<_> = (calls.iter().enumerate())
        .map(|(index, (_, pieces))| (index, pieces.iter()))
        .collect();
    let mut order = order.iter().map(|byte| usize::from(*byte));
    std::iter::from_fn(move || {
        left.retain(|(_, pieces)| pieces.len() > 0);
        let at = order.next().unwrap_or(0) % left.len().max(1);
        let (index, pieces) = left.get_mut(at)?;
        Some((*index, pieces.next()?.as_str()))
    })
}

/// How JSON is written.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Style {
    /// In one line.
    Compact,
    /// In several.
    Pretty,
    /// In one line of ASCII.
    Ascii,
}

impl Style {
    /// Writes `value`.
    pub fn write(self, value: &Value) -> String {
        match self {
            Self::Compact => value.to_string(),
            Self::Pretty => format!("{value:#}"),
            Self::Ascii => {
                let mut ascii = String::new();
                for c in value.to_string().chars() {
                    if c.is_ascii() {
                        ascii.push(c);
                        continue;
                    }
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(ascii, "\\u{unit:04x}");
                    }
                }
                ascii
            }
        }
    }
}
