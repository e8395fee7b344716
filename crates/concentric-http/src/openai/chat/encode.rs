use bytes::{BufMut, Bytes, BytesMut};
use concentric_core::Str;
use serde::Serialize;

use super::super::{
    answer::{Answer, Call, Ending, Kind, Message as Text},
    encode::{Encode, Tokens, data, json},
    failure::Failure,
    input::Opening,
};
use crate::sse;

/// The separator between the texts of two steps, and between two pieces of reasoning.
const BREAK: &str = "\n\n";

/// The encoding of chat completions.
pub(super) struct Chat {
    id: Str,
    created: u64,
    model: Str,
    with_usage: bool,
    // What is before and after the delta in each chunk of a stream, and before and after its text.
    around: [String; 2],
    around_text: [String; 2],
    // Whether the stream has text and reasoning, and whether a separator precedes the next text.
    has_text: bool,
    has_reasoning: bool,
    is_separate: bool,
}

#[derive(Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    service_tier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    concentric: Option<Extension>,
}

/// Data that other servers do not send.
#[derive(Serialize)]
struct Extension {
    outcome: &'static str,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    refusal: Option<String>,
    annotations: [(); 0],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCall<'a>; 1]>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Serialize)]
struct PromptDetails {
    audio_tokens: u64,
    cache_write_tokens: u64,
    cached_tokens: u64,
}

#[derive(Serialize)]
struct CompletionDetails {
    audio_tokens: u64,
    reasoning_tokens: u64,
}

impl Usage {
    fn of(ending: &Ending) -> Option<Self> {
        let tokens = Tokens::of(&ending.usage)?;
        Some(Self {
            prompt_tokens: tokens.input,
            completion_tokens: tokens.output,
            total_tokens: tokens.total,
            prompt_tokens_details: PromptDetails {
                audio_tokens: tokens.input_audio,
                cache_write_tokens: tokens.cache_write,
                cached_tokens: tokens.cached,
            },
            completion_tokens_details: CompletionDetails {
                audio_tokens: tokens.output_audio,
                reasoning_tokens: tokens.reasoning,
            },
        })
    }
}

impl Chat {
    pub(super) fn new(opening: Opening, with_usage: bool) -> Self {
        Self {
            id: Str::concat(["chatcmpl-", &opening.run]),
            created: opening.created,
            model: opening.model,
            with_usage,
            around: [const { String::new() }; 2],
            around_text: [const { String::new() }; 2],
            has_text: false,
            has_reasoning: false,
            is_separate: false,
        }
    }

    fn object<'a, C>(&'a self, object: &'static str, choices: &'a [C]) -> Object<'a, C> {
        Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage: None,
            service_tier: "default",
            concentric: None,
        }
    }

    fn chunk<'a>(&'a self, choices: &'a [ChunkChoice<'a>]) -> Object<'a, ChunkChoice<'a>> {
        Object {
            // The clients of a stream with usage expect the field in each chunk.
            usage: self.with_usage.then_some(None),
            ..self.object("chat.completion.chunk", choices)
        }
    }

    /// Prepares what stands around the deltas.
    fn open(&mut self) {
        let choices = [ChunkChoice {
            index: 0,
            delta: Delta::default(),
            logprobs: None,
            finish_reason: None,
        }];
        let chunk = serde_json::to_string(&self.chunk(&choices)).unwrap_or_default();
        // Only the field has this form, since the quotes of a text are escaped.
        let (before, after) = chunk.split_once(r#""delta":{}"#).unwrap_or_default();
        let before = ["data: ", before, r#""delta":"#].concat();
        let after = [after, "\n\n"].concat();
        self.around_text = [
            [&before, r#"{"content":""#].concat(),
            [r#""}"#, &after].concat(),
        ];
        self.around = [before, after];
    }

    fn write(&self, delta: &Delta<'_>, out: &mut BytesMut) {
        let [before, after] = &self.around;
        out.put_slice(before.as_bytes());
        sse::json(delta, out);
        out.put_slice(after.as_bytes());
    }

    fn text(&self, kind: Kind, text: &str, out: &mut BytesMut) {
        let mut delta = Delta::default();
        let field = match kind {
            // Most chunks of a stream: without serde, and in three pieces.
            Kind::Text => {
                let [before, after] = &self.around_text;
                out.put_slice(before.as_bytes());
                sse::escape(text, out);
                return out.put_slice(after.as_bytes());
            }
            Kind::Refusal => &mut delta.refusal,
            Kind::Reasoning => &mut delta.reasoning_content,
        };
        *field = Some(text);
        self.write(&delta, out);
    }
}

impl Encode for Chat {
    fn whole(&self, answer: &Answer, ending: &Ending) -> Bytes {
        let calls = answer.calls().map(|call| ToolCall {
            index: None,
            id: Some(&call.id),
            r#type: Some("function"),
            function: Function {
                name: Some(&call.name),
                arguments: &call.arguments,
            },
        });
        let calls: Vec<ToolCall<'_>> = calls.collect();
        let (mut text, mut refusal, mut reasoning) = (String::new(), String::new(), String::new());
        for message in answer.messages() {
            let mut is_new = !message.is_continued;
            for piece in &message.parts {
                let all = match piece.kind {
                    Kind::Text => &mut text,
                    Kind::Refusal => &mut refusal,
                    Kind::Reasoning => &mut reasoning,
                };
                if piece.kind != Kind::Refusal && std::mem::take(&mut is_new) && !all.is_empty() {
                    all.push_str(BREAK);
                }
                all.push_str(&piece.text);
            }
        }
        let has_content = !text.is_empty() || (calls.is_empty() && refusal.is_empty());
        let choices = [Choice {
            index: 0,
            message: Message {
                role: "assistant",
                content: has_content.then_some(text),
                reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
                refusal: (!refusal.is_empty()).then_some(refusal),
                annotations: [],
                tool_calls: calls,
            },
            logprobs: None,
            finish_reason: ending.reason.as_str(),
        }];
        json(&Object {
            usage: Usage::of(ending).map(Some),
            concentric: ending.stopped.map(|outcome| Extension { outcome }),
            ..self.object("chat.completion", &choices)
        })
    }

    fn begin(&mut self, out: &mut BytesMut) {
        let delta = Delta {
            role: Some("assistant"),
            content: Some(""),
            ..Delta::default()
        };
        self.open();
        self.write(&delta, out);
    }

    fn message_start(&mut self, _: usize, message: &Text, _: &mut BytesMut) {
        self.is_separate = match message.is_reasoning {
            true => self.has_reasoning,
            false => self.has_text && !message.is_continued,
        };
    }

    fn delta(&mut self, _: usize, _: usize, kind: Kind, text: &str, out: &mut BytesMut) {
        match kind {
            Kind::Text => self.has_text = true,
            Kind::Reasoning => self.has_reasoning = true,
            Kind::Refusal => return self.text(kind, text, out),
        }
        if std::mem::take(&mut self.is_separate) {
            self.text(kind, BREAK, out);
        }
        self.text(kind, text, out);
    }

    fn call_start(&mut self, _: usize, call: &Call, out: &mut BytesMut) {
        let call = ToolCall {
            index: Some(call.number),
            id: Some(&call.id),
            r#type: Some("function"),
            function: Function {
                name: Some(&call.name),
                arguments: "",
            },
        };
        let tool_calls = Some([call]);
        self.write(
            &Delta {
                tool_calls,
                ..Delta::default()
            },
            out,
        );
    }

    fn call_delta(&mut self, _: usize, call: &Call, more: &str, out: &mut BytesMut) {
        let call = ToolCall {
            index: Some(call.number),
            id: None,
            r#type: None,
            function: Function {
                name: None,
                arguments: more,
            },
        };
        let tool_calls = Some([call]);
        self.write(
            &Delta {
                tool_calls,
                ..Delta::default()
            },
            out,
        );
    }

    fn finish(&mut self, _: &Answer, ending: &Ending, out: &mut BytesMut) {
        let choices = [ChunkChoice {
            index: 0,
            delta: Delta::default(),
            logprobs: None,
            finish_reason: Some(ending.reason.as_str()),
        }];
        let last = Object {
            concentric: ending.stopped.map(|outcome| Extension { outcome }),
            ..self.chunk(&choices)
        };
        data(&last, out);
        if self.with_usage {
            let usage = Object {
                usage: Some(Usage::of(ending)),
                ..self.chunk(&[])
            };
            data(&usage, out);
        }
        out.put_slice(b"data: [DONE]\n\n");
    }

    fn fail(&mut self, _: &Answer, failure: &Failure, out: &mut BytesMut) {
        #[derive(Serialize)]
        struct Event {
            error: serde_json::Value,
        }

        let error = failure.json();
        data(&Event { error }, out);
    }
}
