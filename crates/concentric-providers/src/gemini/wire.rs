//! The service's response type, `GenerateContentResponse`; a stream is a sequence of them.

use crate::lenient::{Count, Few, Lenient, Maybe, Rare, Text, deserialize};
use concentric_core::Usage;
use serde::{
    Deserialize,
    de::{IgnoredAny, MapAccess},
};
use serde_json::{Map, Value, value::RawValue};

#[doc(hidden)]
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub struct Chunk<'a> {
    pub(super) candidates: Few<Candidate<'a>>,
    pub(super) prompt_feedback: Rare<Feedback<'a>>,
    pub(super) usage_metadata: Maybe<Tokens<'a>>,
    pub(super) model_version: Text<'a>,
    pub(super) response_id: Text<'a>,
    pub(super) error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct Candidate<'a> {
    pub(super) index: Count,
    pub(super) content: Maybe<Content<'a>>,
    pub(super) finish_reason: Text<'a>,
    pub(super) finish_message: Option<Value>,
    pub(super) safety_ratings: Option<Value>,
    pub(super) grounding_metadata: Option<Value>,
    pub(super) citation_metadata: Option<Value>,
    pub(super) url_context_metadata: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Content<'a> {
    pub(super) parts: Few<Part<'a>>,
}

/// A part of a content, whose fields determine its kind.
#[derive(Debug, Default)]
pub(super) struct Part<'a> {
    pub(super) text: Text<'a>,
    /// Whether the part is a thought.
    pub(super) thought: bool,
    pub(super) signature: Text<'a>,
    pub(super) call: Rare<FunctionCall<'a>>,
    pub(super) inline_data: Rare<Blob<'a>>,
    pub(super) file_data: Rare<Blob<'a>>,
    /// All other fields, unchanged.
    pub(super) rest: Map<String, Value>,
}

impl<'de: 'a, 'a> Lenient<'de> for Part<'a> {
    // Not derived: `flatten` would copy the text.
    #[inline]
    fn map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut part = Self::default();
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match key.as_str().unwrap_or_default() {
                "text" => part.text = map.next_value()?,
                "thought" => part.thought = map.next_value::<Value>()? == Value::Bool(true),
                "thoughtSignature" => part.signature = map.next_value()?,
                "functionCall" => part.call = map.next_value()?,
                "inlineData" => part.inline_data = map.next_value()?,
                "fileData" => part.file_data = map.next_value()?,
                "" => {
                    map.next_value::<IgnoredAny>()?;
                }
                other => {
                    part.rest.insert(other.to_owned(), map.next_value()?);
                }
            }
        }
        Ok(part)
    }
}

deserialize!(['a] Part<'a>);

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct FunctionCall<'a> {
    pub(super) id: Text<'a>,
    pub(super) name: Text<'a>,
    /// Raw JSON, since `Value` would not preserve the order of fields.
    pub(super) args: Option<Box<RawValue>>,
    pub(super) partial_args: Few<PartialArg<'a>>,
    will_continue: Option<Value>,
}

impl FunctionCall<'_> {
    /// Whether more of the call follows.
    pub(super) fn will_continue(&self) -> bool {
        self.will_continue == Some(Value::Bool(true))
    }

    /// The arguments without insignificant white space, if there are any.
    pub(super) fn arguments(&self) -> Option<String> {
        let raw = self.args.as_deref()?.get();
        if matches!(raw, "null" | "{}") {
            return None;
        }
        let mut compact = String::with_capacity(raw.len());
        let (mut string, mut escaped) = (false, false);
        for c in raw.chars() {
            if !string && c.is_ascii_whitespace() {
                continue;
            }
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => string = !string,
                _ => {}
            }
            compact.push(c);
        }
        (compact != "{}").then_some(compact)
    }
}

/// A fragment of a call's arguments: a value or part of a string, and its path.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct PartialArg<'a> {
    pub(super) json_path: Text<'a>,
    pub(super) string_value: Text<'a>,
    number_value: Option<Value>,
    bool_value: Option<Value>,
    will_continue: Option<Value>,
}

impl PartialArg<'_> {
    /// Whether more of the string follows.
    pub(super) fn will_continue(&self) -> bool {
        self.will_continue == Some(Value::Bool(true))
    }

    /// The value, unless it is a string.
    pub(super) fn scalar(&self) -> Value {
        let value = self.number_value.as_ref().or(self.bool_value.as_ref());
        value.cloned().unwrap_or_default()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct Blob<'a> {
    pub(super) mime_type: Text<'a>,
    pub(super) data: Text<'a>,
    pub(super) file_uri: Text<'a>,
}

/// The feedback on the prompt.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct Feedback<'a> {
    pub(super) block_reason: Text<'a>,
    pub(super) block_reason_message: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct Tokens<'a> {
    prompt_token_count: Count,
    candidates_token_count: Count,
    thoughts_token_count: Count,
    cached_content_token_count: Count,
    total_token_count: Count,
    prompt_tokens_details: Few<OfModality<'a>>,
    candidates_tokens_details: Few<OfModality<'a>>,
}

/// The token count of one modality.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct OfModality<'a> {
    modality: Text<'a>,
    token_count: Count,
}

/// The number of audio tokens in `counts`.
fn audio(counts: &Few<OfModality<'_>>) -> Option<u64> {
    let audio = counts
        .iter()
        .filter(|count| count.modality.as_str() == Some("AUDIO"));
    audio
        .filter_map(|count| count.token_count.0)
        .reduce(u64::saturating_add)
}

impl Tokens<'_> {
    /// Converts the counts to the common format; see the module docs.
    pub(super) fn usage(&self) -> Usage {
        let (output, thought) = (self.candidates_token_count.0, self.thoughts_token_count.0);
        let mut usage = Usage::default();
        usage.set_input_tokens(self.prompt_token_count.0);
        usage.set_output_tokens(match (output, thought) {
            (None, None) => None,
            (output, thought) => Some(output.unwrap_or(0).saturating_add(thought.unwrap_or(0))),
        });
        usage.set_total_tokens(self.total_token_count.0);
        usage.set_cached_input_tokens(self.cached_content_token_count.0);
        usage.set_input_audio_tokens(audio(&self.prompt_tokens_details));
        usage.set_reasoning_tokens(thought);
        usage.set_output_audio_tokens(audio(&self.candidates_tokens_details));
        usage
    }
}
