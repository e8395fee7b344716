//! The server's response type: a line of a stream, or a complete response, which is a stream of one
//! line.

use crate::lenient::{Count, Few, Flag, JsonText, Maybe, Text};
use concentric_core::Usage;
use serde::Deserialize;
use serde_json::Value;

#[doc(hidden)]
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Chunk<'a> {
    pub(super) model: Text<'a>,
    pub(super) message: Maybe<Message<'a>>,
    // `/api/generate` has the fields of a message at the top level, and a different name for its
    // text.
    pub(super) response: Text<'a>,
    pub(super) thinking: Text<'a>,
    pub(super) tool_calls: Few<Call<'a>>,
    pub(super) done: Flag,
    pub(super) done_reason: Text<'a>,
    pub(super) error: Option<Value>,
    prompt_eval_count: Count,
    prompt_eval_cached_count: Count,
    eval_count: Count,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Message<'a> {
    pub(super) content: Text<'a>,
    pub(super) thinking: Text<'a>,
    pub(super) tool_calls: Few<Call<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Call<'a> {
    pub(super) id: Text<'a>,
    pub(super) function: Maybe<Function<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Function<'a> {
    pub(super) name: Text<'a>,
    pub(super) arguments: JsonText<'a>,
}

impl Chunk<'_> {
    /// The counts, which are in the last line.
    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        usage.set_input_tokens(self.prompt_eval_count.0);
        usage.set_cached_input_tokens(self.prompt_eval_cached_count.0);
        usage.set_output_tokens(self.eval_count.0);
        usage
    }
}
