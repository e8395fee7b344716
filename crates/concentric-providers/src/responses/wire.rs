//! The service's response types: the events of a response, and the response itself.
//!
//! A single type represents all of them, since without streaming, the response is the content of a
//! stream's last event. Fields that few events have are boxed, or kept as JSON if they are sent
//! back unchanged.

use crate::lenient::{Count, JsonText, Maybe, Text};
use concentric_core::Usage;
use serde::Deserialize;
use serde_json::Value;

#[doc(hidden)]
#[derive(Debug, Deserialize)]
pub struct Chunk<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(super) type_: Text<'a>,
    #[serde(borrow, default)]
    pub(super) delta: Text<'a>,
    #[serde(default)]
    pub(super) output_index: Count,
    #[serde(borrow, default)]
    pub(super) item_id: Text<'a>,
    #[serde(default)]
    pub(super) content_index: Count,
    #[serde(default)]
    pub(super) summary_index: Count,
    #[serde(borrow, default)]
    pub(super) partial_image_b64: Text<'a>,
    #[serde(default)]
    pub(super) item: Option<Value>,
    #[serde(default)]
    pub(super) annotation: Option<Value>,
    #[serde(borrow, default)]
    pub(super) response: Maybe<Box<Response<'a>>>,
    // The complete text of a `done` event.
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: JsonText<'a>,
    #[serde(borrow, default)]
    pub(super) input: Text<'a>,
    // The fields of a response that is the body.
    #[serde(borrow, default)]
    pub(super) object: Text<'a>,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) status: Text<'a>,
    #[serde(default)]
    pub(super) output: Option<Value>,
    #[serde(default)]
    pub(super) usage: Maybe<Box<Tokens>>,
    #[serde(borrow, default)]
    pub(super) incomplete_details: Maybe<Incomplete<'a>>,
    #[serde(default)]
    pub(super) error: Option<Value>,
    // The fields of an error that is not wrapped in `error`.
    #[serde(default)]
    pub(super) message: Option<Value>,
    #[serde(default)]
    pub(super) detail: Option<Value>,
    #[serde(default)]
    pub(super) code: Option<Value>,
}

impl<'a> Chunk<'a> {
    /// Whether this is a response, not an event, which may also have an output.
    pub(super) fn is_response(&self) -> bool {
        let is_event = self.type_.filled().is_some();
        self.object.as_str() == Some("response") || (self.output.is_some() && !is_event)
    }

    pub(super) fn into_response(self) -> Response<'a> {
        Response {
            id: self.id,
            model: self.model,
            status: self.status,
            output: self.output,
            usage: self.usage,
            incomplete_details: self.incomplete_details,
            error: self.error,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Response<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) status: Text<'a>,
    #[serde(default)]
    pub(super) output: Option<Value>,
    #[serde(default)]
    pub(super) usage: Maybe<Box<Tokens>>,
    #[serde(borrow, default)]
    pub(super) incomplete_details: Maybe<Incomplete<'a>>,
    #[serde(default)]
    pub(super) error: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Incomplete<'a> {
    #[serde(borrow, default)]
    pub(super) reason: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Tokens {
    #[serde(default)]
    input_tokens: Count,
    #[serde(default)]
    output_tokens: Count,
    #[serde(default)]
    total_tokens: Count,
    #[serde(default)]
    input_tokens_details: Maybe<InputDetails>,
    #[serde(default)]
    output_tokens_details: Maybe<OutputDetails>,
}

#[derive(Debug, Default, Deserialize)]
struct InputDetails {
    #[serde(default)]
    cached_tokens: Count,
    #[serde(default)]
    cache_write_tokens: Count,
}

#[derive(Debug, Default, Deserialize)]
struct OutputDetails {
    #[serde(default)]
    reasoning_tokens: Count,
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
