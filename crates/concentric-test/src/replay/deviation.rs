use super::Recording;
use serde_json::Value;

/// An expectation that is not met on purpose.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Deviation {
    /// Names it.
    pub name: &'static str,
    /// Why ours is right.
    pub reason: &'static str,
    applies: fn(&Recording, &Value, field: &str) -> bool,
}

impl Deviation {
    /// Whether it says why `field` is not as `expected`.
    pub fn applies(&self, recording: &Recording, expected: &Value, field: &str) -> bool {
        (self.applies)(recording, expected, field)
    }
}

/// All expectations that are not met on purpose. They are rules, and name no recording.
pub const DEVIATIONS: &[Deviation] = &[
    Deviation {
        name: "reasoning-details",
        reason: "the oracle reads `reasoning` and `reasoning_content`; where a service has its \
                 reasoning in `reasoning_details` alone, ours reads it there",
        applies: |recording, expected, field| {
            field == "reasoning"
                && recording.has("reasoning_details")
                && expected.get(field).and_then(Value::as_str) == Some("")
        },
    },
    Deviation {
        name: "cached-tokens",
        reason: "the oracle knows cached tokens of `prompt_tokens_details` alone; Hugging Face, \
                 Moonshot and Together report them as `cached_tokens`, DeepSeek as \
                 `prompt_cache_hit_tokens`",
        applies: |_, expected, field| {
            let raw = expected.get("usage").and_then(|usage| usage.get("raw"));
            let said = |name| raw.is_some_and(|raw| raw.get(name).is_some_and(Value::is_number));
            field == "usage.cached_input"
                && expected
                    .pointer("/usage/cached_input")
                    .is_none_or(Value::is_null)
                && (said("cached_tokens") || said("prompt_cache_hit_tokens"))
        },
    },
    Deviation {
        name: "ollama-call-id",
        reason: "the oracle does not read the ids of calls, which newer servers give",
        applies: |recording, expected, field| {
            let calls = expected.get("tool_calls").and_then(Value::as_array);
            field == "tool_calls.id"
                && recording.has("ollama-call-id")
                && calls.is_some_and(|calls| calls.iter().all(|call| call["id"].is_null()))
        },
    },
    Deviation {
        name: "reasoning-apart",
        reason: "the oracle passes on the service's counts; where output, input and reasoning \
                 make the total, reasoning is counted apart (xAI), and ours adds it to the output",
        applies: |_, _, field| field == "usage.output.apart",
    },
    Deviation {
        name: "audio-apart",
        reason: "the oracle passes on the service's counts; where output, input and the input's \
                 audio make the total, audio is counted apart (Mistral), and ours adds it to the \
                 input",
        applies: |_, _, field| field == "usage.input.apart",
    },
    Deviation {
        name: "prompt-blocked",
        reason: "a prompt that Gemini refused is, to the oracle, an answer in which nothing is \
                 said; to us an error, as of any provider that refuses one",
        applies: |_, expected, field| {
            let reason = expected.get("prompt_block_reason");
            field == "outcome" && reason.is_some_and(Value::is_string)
        },
    },
    Deviation {
        name: "error-in-choice",
        reason: "a choice that holds an error is, to the oracle, an answer with an unknown field; \
                 to us an answer that failed",
        applies: |recording, _, field| field == "outcome" && recording.has("error-in-choice"),
    },
    Deviation {
        name: "first-name",
        reason: "the oracle takes the id and the model from the last event of a response; ours are \
                 known when the answer begins, and some services (Copilot) name it anew in each event",
        applies: |recording, expected, field| {
            let name = match field {
                "response_id" => "id",
                "model" => "model",
                _ => return false,
            };
            let first = first_response(&recording.body);
            let first = first.as_ref().and_then(|response| response.get(name));
            first.is_some_and(|first| first.is_string() && expected.get(field) != Some(first))
        },
    },
];

/// The input or output of an answer, if the service counts some of it apart: its total has that
/// besides.
pub(super) fn with_apart(expected: &Value, name: &str) -> Option<Value> {
    let raw = |path: &str| expected.pointer(&format!("/usage/raw/{path}"))?.as_u64();
    let (input, output) = (raw("prompt_tokens")?, raw("completion_tokens")?);
    let (counted, apart) = match name {
        "input" => (input, raw("prompt_tokens_details/audio_tokens")?),
        "output" => (output, raw("completion_tokens_details/reasoning_tokens")?),
        _ => return None,
    };
    let is_apart = apart > 0 && raw("total_tokens")? == input + output + apart;
    is_apart.then(|| Value::from(counted + apart))
}

/// The response in the first event of a stream that has one.
fn first_response(body: &[u8]) -> Option<Value> {
    let body = String::from_utf8_lossy(body);
    let mut events = body
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok());
    events.find_map(|event| event.get("response").cloned())
}
