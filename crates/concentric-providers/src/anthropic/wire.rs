//! The service's response types: a single type for the events of a stream and for a complete
//! message.
//!
//! The `message_start` event of a stream contains a message; without streaming, the response is
//! one. Fields that most events do not have are boxed, so that events are cheap to move.

use crate::lenient::{Count, Maybe, Rare, Text};
use concentric_core::Usage;
use serde::Deserialize;
use serde_json::Value;

#[doc(hidden)]
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct Chunk<'a> {
    #[serde(rename = "type")]
    pub(super) type_: Text<'a>,
    pub(super) index: Count,
    pub(super) delta: Maybe<Delta<'a>>,
    pub(super) content_block: Option<Box<Value>>,
    pub(super) message: Rare<Self>,
    pub(super) error: Option<Box<Value>>,
    pub(super) usage: Rare<Tokens>,
    pub(super) context_management: Option<Box<Value>>,
    // The fields of a message.
    pub(super) id: Text<'a>,
    pub(super) model: Text<'a>,
    pub(super) content: Option<Box<Value>>,
    pub(super) stop_reason: Text<'a>,
    pub(super) stop_sequence: Option<Box<Value>>,
    pub(super) stop_details: Option<Box<Value>>,
    pub(super) container: Option<Box<Value>>,
}

impl Chunk<'_> {
    /// Whether it only adds to a content block.
    pub(super) fn is_delta(&self) -> bool {
        self.type_.as_str() == Some("content_block_delta") && self.error.is_none()
    }
}

/// The new fields of a block or, in a `message_delta`, of the message.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Delta<'a> {
    pub(super) text: Text<'a>,
    pub(super) partial_json: Text<'a>,
    pub(super) thinking: Text<'a>,
    pub(super) signature: Text<'a>,
    pub(super) citation: Option<Box<Value>>,
    // The fields of a compaction.
    pub(super) content: Option<Box<Value>>,
    pub(super) encrypted_content: Option<Box<Value>>,
    // The fields of a message.
    pub(super) stop_reason: Text<'a>,
    pub(super) stop_sequence: Option<Box<Value>>,
    pub(super) stop_details: Option<Box<Value>>,
    pub(super) container: Option<Box<Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tokens {
    input_tokens: Count,
    output_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation_input_tokens: Count,
    cache_creation: Maybe<Details>,
    output_tokens_details: Maybe<Details>,
    pub(super) iterations: Option<Value>,
    pub(super) server_tool_use: Option<Value>,
}

/// The details of the tokens written to the cache or of the output.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    ephemeral_1h_input_tokens: Count,
    thinking_tokens: Count,
}

impl Tokens {
    /// Updates the counts from a later event, whose counts are cumulative.
    pub(super) fn update(&mut self, later: Self) {
        let Self {
            input_tokens,
            output_tokens,
            cache_read_input_tokens: read,
            cache_creation_input_tokens: written,
            ..
        } = self;
        for (old, new) in [
            (input_tokens, later.input_tokens),
            (output_tokens, later.output_tokens),
            (read, later.cache_read_input_tokens),
            (written, later.cache_creation_input_tokens),
        ] {
            old.0 = new.0.or(old.0);
        }
        let creation = later.cache_creation.0;
        self.cache_creation.0 = creation.or(self.cache_creation.0.take());
        let details = later.output_tokens_details.0;
        self.output_tokens_details.0 = details.or(self.output_tokens_details.0.take());
        self.iterations = later.iterations.or(self.iterations.take());
        self.server_tool_use = later.server_tool_use.or(self.server_tool_use.take());
    }

    /// Converts the counts to the common format: the service's input tokens do not include cache
    /// reads and writes.
    pub(super) fn usage(&self) -> Usage {
        let (read, written) = (
            self.cache_read_input_tokens.0,
            self.cache_creation_input_tokens.0,
        );
        let cached = read.unwrap_or(0).saturating_add(written.unwrap_or(0));
        let mut usage = Usage::default();
        usage.set_input_tokens(self.input_tokens.0.map(|n| n.saturating_add(cached)));
        usage.set_output_tokens(self.output_tokens.0);
        usage.set_cached_input_tokens(read);
        usage.set_cache_write_tokens(written);
        let creation = self.cache_creation.0.as_ref();
        usage.set_cache_write_1h_tokens(creation.and_then(|kept| kept.ephemeral_1h_input_tokens.0));
        let details = self.output_tokens_details.0.as_ref();
        usage.set_reasoning_tokens(details.and_then(|details| details.thinking_tokens.0));
        usage
    }
}
