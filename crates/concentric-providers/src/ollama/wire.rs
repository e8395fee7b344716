//! The server's response type: a line of a stream, or a complete response, which is a stream of one
//! line.

use crate::lenient::{Count, Flag, JsonText, List, Maybe, Text};
use concentric_core::Usage;
use serde::Deserialize;
use serde_json::Value;

#[doc(hidden)]
#[derive(Debug, Deserialize)]
pub struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) message: Maybe<Message<'a>>,
    // `/api/generate` has the fields of a message at the top level, and a different name for its
    // text.
    #[serde(borrow, default)]
    pub(super) response: Text<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: List<Call<'a>>,
    #[serde(default)]
    pub(super) done: Flag,
    #[serde(borrow, default)]
    pub(super) done_reason: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Value>,
    #[serde(default)]
    prompt_eval_count: Count,
    #[serde(default)]
    prompt_eval_cached_count: Count,
    #[serde(default)]
    eval_count: Count,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    pub(super) content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: List<Call<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Maybe<Function<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
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
