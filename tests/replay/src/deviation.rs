use crate::Recording;
use serde_json::Value;

/// An expectation that the provider layers do not meet on purpose.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Deviation {
    /// The name.
    pub name: &'static str,
    /// The reason why our reading is right.
    pub reason: &'static str,
    applies: fn(&Recording, &Value, field: &str) -> bool,
}

impl Deviation {
    /// Returns `true` if this deviation explains a value of `field` that is not as `expected`.
    pub fn applies(&self, recording: &Recording, expected: &Value, field: &str) -> bool {
        (self.applies)(recording, expected, field)
    }
}

/// All expected deviations. They are general rules, not specific to a recording.
pub const DEVIATIONS: &[Deviation] = &[
    Deviation {
        name: "reasoning-details",
        reason: "the reference parser reads `reasoning` and `reasoning_content`; if a service \
                 sends its reasoning only in `reasoning_details`, ours reads it there",
        applies: |recording, expected, field| {
            field == "reasoning"
                && recording.has("reasoning_details")
                && expected.get(field).and_then(Value::as_str) == Some("")
        },
    },
    Deviation {
        name: "cached-tokens",
        reason: "the reference parser reads cached tokens only from `prompt_tokens_details`; \
                 Hugging Face, Moonshot and Together report them as `cached_tokens`, DeepSeek as \
                 `prompt_cache_hit_tokens`",
        applies: |_, expected, field| {
            let raw = expected.get("usage").and_then(|usage| usage.get("raw"));
            let has_count =
                |name| raw.is_some_and(|raw| raw.get(name).is_some_and(Value::is_number));
            field == "usage.cached_input"
                && expected
                    .pointer("/usage/cached_input")
                    .is_none_or(Value::is_null)
                && (has_count("cached_tokens") || has_count("prompt_cache_hit_tokens"))
        },
    },
    Deviation {
        name: "ollama-call-id",
        reason: "the reference parser does not read the ids of calls, which newer servers send",
        applies: |recording, expected, field| {
            let calls = expected.get("tool_calls").and_then(Value::as_array);
            field == "tool_calls.id"
                && recording.has("ollama-call-id")
                && calls.is_some_and(|calls| calls.iter().all(|call| call["id"].is_null()))
        },
    },
    Deviation {
        name: "reasoning-apart",
        reason: "the reference parser passes on the service's counts; if output, input and \
                 reasoning sum up to the total, reasoning is counted separately (xAI), and ours \
                 adds it to the output",
        applies: |_, _, field| field == "usage.output.apart",
    },
    Deviation {
        name: "audio-apart",
        reason: "the reference parser passes on the service's counts; if output, input and the \
                 audio of the input sum up to the total, audio is counted separately (Mistral), \
                 and ours adds it to the input",
        applies: |_, _, field| field == "usage.input.apart",
    },
    Deviation {
        name: "prompt-blocked",
        reason: "the reference parser reads a prompt that Gemini refused as an empty response; \
                 ours is an error, as for any provider that refuses a prompt",
        applies: |_, expected, field| {
            let reason = expected.get("prompt_block_reason");
            field == "outcome" && reason.is_some_and(Value::is_string)
        },
    },
    Deviation {
        name: "error-in-choice",
        reason: "the reference parser reads a choice that contains an error as a response with an \
                 unknown field; ours is a response that failed",
        applies: |recording, _, field| field == "outcome" && recording.has("error-in-choice"),
    },
    Deviation {
        name: "first-name",
        reason: "the reference parser takes the id and the model from the last event of a \
                 response; ours are known when the response begins, and some services (Copilot) \
                 change them in each event",
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

/// Returns the input or output tokens including those that the service counts separately, according
/// to its total; `None` if it counts none separately.
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

/// Returns the `response` of the first event that has one.
fn first_response(body: &[u8]) -> Option<Value> {
    let body = String::from_utf8_lossy(body);
    let mut events = body
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok());
    events.find_map(|event| event.get("response").cloned())
}
