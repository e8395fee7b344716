//! The service's response type, `GenerateContentResponse`; a stream is a sequence of them.

use crate::lenient::{Count, Few, Gathered, List, Maybe, Text};
use concentric_core::Usage;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};
use std::fmt;

#[doc(hidden)]
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) candidates: Few<Candidate<'a>>,
    #[serde(borrow, default)]
    pub(super) prompt_feedback: Maybe<Box<Feedback<'a>>>,
    #[serde(default)]
    pub(super) usage_metadata: Maybe<Tokens>,
    #[serde(borrow, default)]
    pub(super) model_version: Text<'a>,
    #[serde(borrow, default)]
    pub(super) response_id: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Candidate<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) content: Maybe<Content<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
    #[serde(default)]
    pub(super) finish_message: Option<Value>,
    #[serde(default)]
    pub(super) safety_ratings: Option<Value>,
    #[serde(default)]
    pub(super) grounding_metadata: Option<Value>,
    #[serde(default)]
    pub(super) citation_metadata: Option<Value>,
    #[serde(default)]
    pub(super) url_context_metadata: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Content<'a> {
    #[serde(borrow, default)]
    pub(super) parts: Few<Part<'a>>,
}

/// A part of a content, whose fields determine its kind.
#[derive(Debug, Default)]
pub(super) struct Part<'a> {
    pub(super) text: Text<'a>,
    /// Whether the part is a thought.
    pub(super) thought: bool,
    pub(super) signature: Text<'a>,
    pub(super) call: Maybe<Box<FunctionCall<'a>>>,
    pub(super) inline_data: Maybe<Box<Blob<'a>>>,
    pub(super) file_data: Maybe<Box<File<'a>>>,
    /// All other fields, unchanged.
    pub(super) rest: Map<String, Value>,
}

struct PartVisitor;

impl<'de> Visitor<'de> for PartVisitor {
    type Value = Part<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part")
    }

    // Not derived: `flatten` would copy the text.
    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part<'de>, A::Error> {
        let mut part = Part::default();
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

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PartVisitor)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FunctionCall<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    /// Raw JSON, since `Value` would not preserve the order of fields.
    #[serde(default)]
    pub(super) args: Option<Box<RawValue>>,
    #[serde(borrow, default)]
    pub(super) partial_args: List<PartialArg<'a>>,
    #[serde(default)]
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
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PartialArg<'a> {
    #[serde(borrow, default)]
    pub(super) json_path: Text<'a>,
    #[serde(borrow, default)]
    pub(super) string_value: Text<'a>,
    #[serde(default)]
    number_value: Option<Value>,
    #[serde(default)]
    bool_value: Option<Value>,
    #[serde(default)]
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

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Blob<'a> {
    #[serde(borrow, default)]
    pub(super) mime_type: Text<'a>,
    #[serde(borrow, default)]
    pub(super) data: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct File<'a> {
    #[serde(borrow, default)]
    pub(super) mime_type: Text<'a>,
    #[serde(borrow, default)]
    pub(super) file_uri: Text<'a>,
}

/// The feedback on the prompt.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Feedback<'a> {
    #[serde(borrow, default)]
    pub(super) block_reason: Text<'a>,
    #[serde(borrow, default)]
    pub(super) block_reason_message: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tokens {
    #[serde(default)]
    prompt_token_count: Count,
    #[serde(default)]
    candidates_token_count: Count,
    #[serde(default)]
    thoughts_token_count: Count,
    #[serde(default)]
    cached_content_token_count: Count,
    #[serde(default)]
    total_token_count: Count,
    #[serde(default)]
    prompt_tokens_details: Gathered<OfModality, AudioTokens>,
    #[serde(default)]
    candidates_tokens_details: Gathered<OfModality, AudioTokens>,
}

/// The token count of one modality.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfModality {
    #[serde(default)]
    modality: IsAudio,
    #[serde(default)]
    token_count: Count,
}

#[derive(Debug, Default)]
struct IsAudio(bool);

impl<'de> Deserialize<'de> for IsAudio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let modality = Text::deserialize(deserializer)?;
        Ok(Self(modality.as_str() == Some("AUDIO")))
    }
}

#[derive(Debug, Default)]
struct AudioTokens(Option<u64>);

impl Extend<OfModality> for AudioTokens {
    fn extend<I: IntoIterator<Item = OfModality>>(&mut self, counts: I) {
        let of_audio = counts.into_iter().filter(|count| count.modality.0);
        for count in of_audio.filter_map(|count| count.token_count.0) {
            self.0 = Some(self.0.unwrap_or(0).saturating_add(count));
        }
    }
}

impl Tokens {
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
        usage.set_input_audio_tokens(self.prompt_tokens_details.of.0);
        usage.set_reasoning_tokens(thought);
        usage.set_output_audio_tokens(self.candidates_tokens_details.of.0);
        usage
    }
}
