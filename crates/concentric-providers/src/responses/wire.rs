//! The service's response types: the events of a response, and the response itself.
//!
//! A single type represents all of them, since without streaming, the response is the content of a
//! stream's last event. Fields that few events have are boxed, or kept as JSON if they are sent
//! back unchanged.

use crate::{
    lenient::{Count, JsonText, Maybe, Rare, Text},
    openai::Details,
};
use concentric_core::Usage;
use serde::Deserialize;
use serde_json::Value;

#[doc(hidden)]
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Chunk<'a> {
    #[serde(rename = "type")]
    pub(super) type_: Text<'a>,
    pub(super) delta: Text<'a>,
    pub(super) output_index: Count,
    pub(super) item_id: Text<'a>,
    pub(super) content_index: Count,
    pub(super) summary_index: Count,
    pub(super) partial_image_b64: Text<'a>,
    pub(super) item: Option<Value>,
    pub(super) annotation: Option<Value>,
    pub(super) response: Rare<Self>,
    // The complete text of a `done` event.
    pub(super) text: Text<'a>,
    pub(super) refusal: Text<'a>,
    pub(super) arguments: JsonText<'a>,
    pub(super) input: Text<'a>,
    // The fields of a response, in an event or as the body.
    pub(super) object: Text<'a>,
    pub(super) id: Text<'a>,
    pub(super) model: Text<'a>,
    pub(super) status: Text<'a>,
    pub(super) output: Option<Value>,
    pub(super) usage: Rare<Tokens>,
    pub(super) incomplete_details: Maybe<Incomplete<'a>>,
    pub(super) error: Option<Value>,
    // The fields of an error that is not wrapped in `error`.
    pub(super) message: Option<Value>,
    pub(super) detail: Option<Value>,
    pub(super) code: Option<Value>,
}

impl Chunk<'_> {
    /// Whether this is a response, not an event, which may also have an output.
    pub(super) fn is_response(&self) -> bool {
        let is_event = self.type_.filled().is_some();
        self.object.as_str() == Some("response") || (self.output.is_some() && !is_event)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Incomplete<'a> {
    pub(super) reason: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tokens {
    input_tokens: Count,
    output_tokens: Count,
    total_tokens: Count,
    input_tokens_details: Maybe<Details>,
    output_tokens_details: Maybe<Details>,
}

impl Tokens {
    pub(super) fn usage(&self) -> Usage {
        let input = self.input_tokens_details.0.as_ref();
        let output = self.output_tokens_details.0.as_ref();
        let mut usage = Usage::default();
        usage.set_input_tokens(self.input_tokens.0);
        usage.set_output_tokens(self.output_tokens.0);
        usage.set_total_tokens(self.total_tokens.0);
        usage.set_cached_input_tokens(input.and_then(|input| input.cached_tokens.0));
        usage.set_cache_write_tokens(input.and_then(|input| input.cache_write_tokens.0));
        usage.set_reasoning_tokens(output.and_then(|output| output.reasoning_tokens.0));
        usage
    }
}
