use crate::text::Str;
use serde::{Deserialize, Serialize};
use std::{fmt, ops::AddAssign};

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
// A run keeps several of these and moves them, so a bit marks a known count instead of an `Option`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Counts", into = "Counts")]
pub struct Usage {
    // Zero where unknown.
    counts: [u64; 9],
    known: u16,
}

impl Usage {
    /// Creates a count of input and output tokens.
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self {
            counts: [input_tokens, output_tokens, 0, 0, 0, 0, 0, 0, 0],
            known: 0b11,
        }
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $get:ident $set:ident $at:literal;)*) => {
        impl Usage {
            $($(#[$doc])*
            pub const fn $get(&self) -> Option<u64> {
                match self.known & 1 << $at {
                    0 => None,
                    _ => Some(self.counts[$at]),
                }
            }

            #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
            pub const fn $set(&mut self, count: Option<u64>) {
                (self.counts[$at], self.known) = match count {
                    Some(count) => (count, self.known | 1 << $at),
                    None => (0, self.known & !(1 << $at)),
                };
            })*
        }

        /// The serialized form of [`Usage`].
        #[derive(Default, Serialize, Deserialize)]
        #[serde(default)]
        struct Counts {
            $(#[serde(skip_serializing_if = "Option::is_none")]
            $get: Option<u64>,)*
        }

        impl From<Counts> for Usage {
            fn from(counts: Counts) -> Self {
                let mut usage = Self::default();
                $(usage.$set(counts.$get);)*
                usage
            }
        }

        impl From<Usage> for Counts {
            fn from(usage: Usage) -> Self {
                Self { $($get: usage.$get(),)* }
            }
        }

        impl fmt::Debug for Usage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct("Usage")$(.field(stringify!($get), &self.$get()))*.finish()
            }
        }
    };
}

counts! {
    /// Tokens in the request (`gen_ai.usage.input_tokens`).
    input_tokens set_input_tokens 0;
    /// Tokens in the response (`gen_ai.usage.output_tokens`).
    output_tokens set_output_tokens 1;
    /// The provider's own total, which may include tokens that the other two counts do not.
    total_tokens set_total_tokens 2;
    /// Input tokens read from the provider's cache (`gen_ai.usage.cache_read.input_tokens`).
    cached_input_tokens set_cached_input_tokens 3;
    /// Input tokens written to the provider's cache (`gen_ai.usage.cache_creation.input_tokens`).
    cache_write_tokens set_cache_write_tokens 4;
    /// The part of `cache_write_tokens` that is cached for one hour.
    cache_write_1h_tokens set_cache_write_1h_tokens 5;
    /// Audio tokens in the input.
    input_audio_tokens set_input_audio_tokens 6;
    /// Output tokens spent on reasoning (`gen_ai.usage.reasoning.output_tokens`).
    reasoning_tokens set_reasoning_tokens 7;
    /// Audio tokens in the output.
    output_audio_tokens set_output_audio_tokens 8;
}

impl AddAssign for Usage {
    #[expect(
        clippy::suspicious_op_assign_impl,
        reason = "a sum has the counts that either part has"
    )]
    #[inline]
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(more);
        }
        self.known |= other.known;
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

    #[test]
    fn a_count_that_is_unset_equals_one_never_set() {
        let mut usage = Usage::new(100, 20);
        usage.set_output_audio_tokens(Some(0));
        assert_eq!(usage.output_audio_tokens(), Some(0));
        assert_ne!(usage, Usage::new(100, 20));
        usage.set_output_audio_tokens(None);
        assert_eq!(usage, Usage::new(100, 20));
        assert_eq!(usage.output_audio_tokens(), None);
    }

    // A run keeps several, and moves them.
    #[test]
    fn a_usage_is_80_bytes() {
        assert_eq!(size_of::<Usage>(), 80);
    }
}
