//! The response types of servers: `chat.completion`, `chat.completion.chunk`, and variants of them.
//!
//! A single type represents both: without streaming, the response is a stream of one chunk whose
//! delta is named `message`. Fields that most chunks do not have are boxed, so that chunks are
//! cheap to move.

use crate::lenient::{Count, Few, JsonText, List, Maybe, Text};
use concentric_core::Usage;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;
use std::fmt;

#[doc(hidden)]
#[derive(Debug, Deserialize)]
pub struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) choices: Few<Choice<'a>>,
    #[serde(default)]
    pub(super) usage: Maybe<Box<Tokens>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
    /// The usage of a stream, in Groq's format.
    #[serde(default)]
    pub(super) x_groq: Maybe<Box<Groq>>,
    // The fields of an error that is not wrapped in `error`.
    #[serde(borrow, default)]
    pub(super) object: Text<'a>,
    #[serde(default)]
    pub(super) message: Option<Box<Value>>,
    #[serde(default)]
    pub(super) detail: Option<Box<Value>>,
    #[serde(borrow, default)]
    pub(super) code: Text<'a>,
    #[serde(borrow, default, rename = "type")]
    pub(super) type_: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) delta: Maybe<Message<'a>>,
    #[serde(borrow, default)]
    pub(super) message: Maybe<Box<Message<'a>>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
    /// The finish reason of the upstream provider, as reported by OpenRouter.
    #[serde(borrow, default)]
    pub(super) native_finish_reason: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
    /// The usage in Moonshot's format.
    #[serde(default)]
    pub(super) usage: Maybe<Box<Tokens>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow, default)]
    pub(super) role: Text<'a>,
    #[serde(borrow, default)]
    pub(super) content: Content<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning: Text<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning_content: Text<'a>,
    #[serde(default)]
    pub(super) reasoning_details: Option<Box<Value>>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: List<Call<'a>>,
    #[serde(borrow, default)]
    pub(super) function_call: Maybe<Box<Function<'a>>>,
    #[serde(borrow, default)]
    pub(super) audio: Maybe<Box<Audio<'a>>>,
    #[serde(borrow, default)]
    pub(super) images: List<ContentPart<'a>>,
    #[serde(default)]
    pub(super) annotations: Option<Box<Value>>,
}

impl Message<'_> {
    /// Whether the message has no content.
    pub(super) fn is_empty(&self) -> bool {
        let empty = |text: &Text<'_>| text.as_str().is_none_or(str::is_empty);
        let content = match &self.content {
            Content::Text(text) => empty(text),
            Content::Parts(parts) => parts.is_empty(),
        };
        content
            && empty(&self.reasoning)
            && empty(&self.reasoning_content)
            && empty(&self.refusal)
            && self.reasoning_details.is_none()
            && self.tool_calls.0.is_empty()
            && self.function_call.0.is_none()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Maybe<Box<Function<'a>>>,
    #[serde(borrow, default)]
    pub(super) custom: Maybe<Box<CustomTool<'a>>>,
    /// Gemini's thought signature.
    #[serde(default)]
    pub(super) extra_content: Option<Box<Value>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: JsonText<'a>,
}

/// A call of a tool that accepts text instead of JSON.
#[derive(Debug, Deserialize)]
pub(super) struct CustomTool<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) input: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Audio<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) data: Text<'a>,
    #[serde(borrow, default)]
    pub(super) transcript: Text<'a>,
}

/// A message's content: text, or a list of parts.
#[derive(Debug)]
pub(super) enum Content<'a> {
    Text(Text<'a>),
    Parts(Vec<ContentPart<'a>>),
}

impl Default for Content<'_> {
    fn default() -> Self {
        Self::Text(Text::Absent)
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ContentPart<'a> {
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    /// Mistral's reasoning, which is itself a list of parts.
    #[serde(borrow, default)]
    pub(super) thinking: Content<'a>,
    #[serde(borrow, default)]
    pub(super) image_url: Maybe<Box<Url<'a>>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Url<'a> {
    #[serde(borrow, default)]
    pub(super) url: Text<'a>,
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    #[inline]
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Content<'de>, E> {
        Ok(Content::Text(Text::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Content<'de>, E> {
        Ok(Content::Text(Text::Owned(text.into())))
    }

    #[inline]
    fn visit_unit<E>(self) -> Result<Content<'de>, E> {
        Ok(Content::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Content<'de>, E> {
        Ok(Content::default())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Content<'de>, E> {
        Ok(Content::Text(Text::Owned(number.to_string().into())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Content<'de>, E> {
        Ok(Content::Text(Text::Owned(number.to_string().into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Content<'de>, E> {
        Ok(Content::Text(Text::Owned(number.to_string().into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content<'de>, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element::<PartOrText<'de>>()? {
            parts.push(part.0);
        }
        Ok(Content::Parts(parts))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Content<'de>, A::Error> {
        let part = ContentPart::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Content::Parts(vec![part]))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct PartOrText<'a>(ContentPart<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for PartOrText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Content::deserialize(deserializer)? {
            Content::Text(text) => ContentPart {
                text,
                ..ContentPart::default()
            },
            Content::Parts(parts) => parts.into_iter().next().unwrap_or_default(),
        }))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Groq {
    #[serde(default)]
    pub(super) usage: Maybe<Box<Tokens>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Tokens {
    #[serde(default)]
    prompt_tokens: Count,
    #[serde(default)]
    completion_tokens: Count,
    #[serde(default)]
    total_tokens: Count,
    #[serde(default)]
    prompt_tokens_details: Maybe<InputDetails>,
    #[serde(default)]
    completion_tokens_details: Maybe<OutputDetails>,
    /// DeepSeek's count of cached tokens.
    #[serde(default)]
    prompt_cache_hit_tokens: Count,
    /// Moonshot's count of cached tokens.
    #[serde(default)]
    cached_tokens: Count,
    /// Anthropic's count of cache writes, which gateways forward.
    #[serde(default)]
    cache_creation_input_tokens: Count,
    /// Perplexity's position of this count.
    #[serde(default)]
    reasoning_tokens: Count,
}

#[derive(Debug, Default, Deserialize)]
struct InputDetails {
    #[serde(default)]
    cached_tokens: Count,
    #[serde(default)]
    cache_write_tokens: Count,
    #[serde(default)]
    audio_tokens: Count,
}

#[derive(Debug, Default, Deserialize)]
struct OutputDetails {
    #[serde(default)]
    reasoning_tokens: Count,
    #[serde(default)]
    audio_tokens: Count,
}

impl Tokens {
    /// Converts the counts to the common format: all input, and all output including reasoning.
    ///
    /// If the total is the sum of all counts, it shows which ones are separate. `reasoning_apart`
    /// means that reasoning is separate, even though the total does not include it.
    pub(super) fn usage(self, reasoning_apart: bool) -> Usage {
        let input = self.prompt_tokens_details.0.unwrap_or_default();
        let output = self.completion_tokens_details.0.unwrap_or_default();
        let mut usage = Usage::default();
        usage.set_input_tokens(self.prompt_tokens.0);
        usage.set_output_tokens(self.completion_tokens.0);
        usage.set_total_tokens(self.total_tokens.0);
        usage.set_cached_input_tokens(
            (input.cached_tokens.0)
                .or(self.prompt_cache_hit_tokens.0)
                .or(self.cached_tokens.0),
        );
        usage.set_cache_write_tokens(
            (input.cache_write_tokens.0).or(self.cache_creation_input_tokens.0),
        );
        usage.set_input_audio_tokens(input.audio_tokens.0);
        usage.set_reasoning_tokens(output.reasoning_tokens.0.or(self.reasoning_tokens.0));
        usage.set_output_audio_tokens(output.audio_tokens.0);
        let counted = |input: u64, output: u64| input.checked_add(output);
        let (Some(read), Some(wrote)) = (usage.input_tokens(), usage.output_tokens()) else {
            return usage;
        };
        let left = usage
            .total_tokens()
            .zip(counted(read, wrote))
            .and_then(|(total, counted)| total.checked_sub(counted));
        if let Some(reasoning) = usage.reasoning_tokens()
            && (left == Some(reasoning) || reasoning_apart)
        {
            usage.set_output_tokens(counted(wrote, reasoning));
        } else if let Some(audio) = usage.input_audio_tokens()
            && left == Some(audio)
        {
            usage.set_input_tokens(counted(read, audio));
        }
        usage
    }
}
