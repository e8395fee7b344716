use crate::text::Str;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Why a model stopped (`gen_ai.response.finish_reasons`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model completed its answer or reached a stop sequence.
    Stop,
    /// The answer reached the limit on output tokens or the end of the context window.
    Length,
    /// The model made tool calls and waits for their results.
    ToolCalls,
    /// The provider's content filter withheld the rest of the answer.
    ContentFilter,
    /// Another reason, as the provider reported it.
    Other(Str),
}

/// The outcome of a run.
///
/// A run that failed has no `Outcome`: its body ends with an [`Error`](crate::Error).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The run completed normally.
    Completed,
    /// The run waits for replies: a decision, or the result of a client tool.
    Interrupted,
    /// A layer or a tool stopped the run deliberately.
    Halted {
        /// The reason for the halt.
        reason: Str,
    },
    /// The run was cancelled.
    Aborted {
        /// The reason for the cancellation.
        reason: CancelReason,
    },
    /// The run reached its limit on model calls, and the last answer made tool calls.
    StepLimit,
    /// The run exceeded its limit on tool calls.
    CallLimit,
}

/// Why a run was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelReason {
    /// The user cancelled it.
    User,
    /// The consumer of the response disconnected.
    Disconnected,
    /// The process is shutting down.
    Shutdown,
    /// Another reason.
    Other(Str),
}

/// Token counts.
///
/// `input_tokens` counts all input, cached or not; `output_tokens` counts all output, including
/// reasoning. The separate counts are parts of these: cached input, cache writes and audio input
/// are included in the input tokens; reasoning and audio output in the output tokens. A count that
/// the provider did not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens in the request (`gen_ai.usage.input_tokens`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens in the response (`gen_ai.usage.output_tokens`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// The provider's own total, which may include tokens that the other two counts do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// Input tokens read from the provider's cache (`gen_ai.usage.cache_read.input_tokens`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Input tokens written to the provider's cache (`gen_ai.usage.cache_creation.input_tokens`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// The part of `cache_write_tokens` that is cached for one hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_1h_tokens: Option<u64>,
    /// Audio tokens in the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_audio_tokens: Option<u64>,
    /// Output tokens spent on reasoning (`gen_ai.usage.reasoning.output_tokens`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Audio tokens in the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_audio_tokens: Option<u64>,
}

impl Usage {
    /// Creates a count of input and output tokens.
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self {
            input_tokens: Some(input_tokens),
            output_tokens: Some(output_tokens),
            total_tokens: None,
            cached_input_tokens: None,
            cache_write_tokens: None,
            cache_write_1h_tokens: None,
            input_audio_tokens: None,
            reasoning_tokens: None,
            output_audio_tokens: None,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        fn add(sum: &mut Option<u64>, more: Option<u64>) {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0).saturating_add(more));
            }
        }
        add(&mut self.input_tokens, other.input_tokens);
        add(&mut self.output_tokens, other.output_tokens);
        add(&mut self.total_tokens, other.total_tokens);
        add(&mut self.cached_input_tokens, other.cached_input_tokens);
        add(&mut self.cache_write_tokens, other.cache_write_tokens);
        add(&mut self.cache_write_1h_tokens, other.cache_write_1h_tokens);
        add(&mut self.input_audio_tokens, other.input_audio_tokens);
        add(&mut self.reasoning_tokens, other.reasoning_tokens);
        add(&mut self.output_audio_tokens, other.output_audio_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn counts_are_summed_separately_and_unknown_counts_stay_unknown() {
        let stored = json!({"input_tokens": 100, "output_tokens": 20});
        let mut sum: Usage = from_value(stored.clone()).expect("stored usage is valid");
        assert_eq!(sum, Usage::new(100, 20));
        assert_eq!(json!(sum), stored);
        let more = json!({
            "input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "cached_input_tokens": 4,
            "cache_write_tokens": 5, "cache_write_1h_tokens": 6, "input_audio_tokens": 7,
            "reasoning_tokens": 8, "output_audio_tokens": 9,
        });
        sum += from_value(more.clone()).expect("usage with all counts is valid");
        sum += Usage::default();
        let mut expected = more;
        expected["input_tokens"] = json!(101);
        expected["output_tokens"] = json!(22);
        assert_eq!(json!(sum), expected);
    }
}
