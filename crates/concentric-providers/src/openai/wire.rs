//! The response types of servers: `chat.completion`, `chat.completion.chunk`, and variants of them.
//!
//! A single type represents both: without streaming, the response is a stream of one chunk whose
//! delta is named `message`. Fields that most chunks do not have are boxed, and what each chunk has is
//! read in place, since to move it would cost as much as to read it.

use crate::lenient::{
    Count, Few, InPlace, JsonText, Lenient, Maybe, Number, Place, Rare, Text, deserialize, in_place,
};
use concentric_core::Usage;
use serde::{
    Deserialize,
    de::{IgnoredAny, MapAccess, SeqAccess, value::MapAccessDeserializer},
};
use serde_json::Value;

/// Implements `Deserialize` for an object whose fields are read in place, from their names in JSON. Other fields
/// are ignored.
macro_rules! object {
    ($type:ident<$a:lifetime> { $($name:literal => $field:ident),+ $(,)? }) => {
        impl<'de: $a, $a> InPlace<'de> for $type<$a> {
            #[inline]
            fn read_map<A: MapAccess<'de>>(
                &mut self,
                mut map: A,
            ) -> Result<(), A::Error> {
                while let Some(name) = map.next_key::<Text<'de>>()? {
                    match name.as_str().unwrap_or_default() {
                        $($name => map.next_value_seed(Place(&mut self.$field))?,)+
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(())
            }
        }

        in_place! { [$a] $type<$a> }
    };
}

#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Chunk<'a> {
    pub(super) id: Text<'a>,
    pub(super) model: Text<'a>,
    pub(super) choices: Few<Choice<'a>>,
    pub(super) usage: Rare<Tokens>,
    pub(super) error: Option<Box<Value>>,
    /// The usage of a stream, in Groq's format.
    pub(super) x_groq: Rare<Groq>,
    // The fields of an error that is not wrapped in `error`.
    pub(super) object: Text<'a>,
    pub(super) message: Option<Box<Value>>,
    pub(super) detail: Option<Box<Value>>,
    pub(super) code: Text<'a>,
    pub(super) type_: Text<'a>,
}

object! {
    Chunk<'a> {
        "id" => id,
        "model" => model,
        "choices" => choices,
        "usage" => usage,
        "error" => error,
        "x_groq" => x_groq,
        "object" => object,
        "message" => message,
        "detail" => detail,
        "code" => code,
        "type" => type_,
    }
}

#[derive(Debug, Default)]
pub(super) struct Choice<'a> {
    pub(super) index: Count,
    pub(super) delta: Maybe<Message<'a>>,
    pub(super) message: Rare<Message<'a>>,
    pub(super) finish_reason: Text<'a>,
    /// The finish reason of the upstream provider, as reported by OpenRouter.
    pub(super) native_finish_reason: Text<'a>,
    pub(super) error: Option<Box<Value>>,
    /// The usage in Moonshot's format.
    pub(super) usage: Rare<Tokens>,
}

object! {
    Choice<'a> {
        "index" => index,
        "delta" => delta,
        "message" => message,
        "finish_reason" => finish_reason,
        "native_finish_reason" => native_finish_reason,
        "error" => error,
        "usage" => usage,
    }
}

#[derive(Debug, Default)]
pub(super) struct Message<'a> {
    pub(super) role: Text<'a>,
    pub(super) content: Content<'a>,
    pub(super) reasoning: Text<'a>,
    pub(super) reasoning_content: Text<'a>,
    pub(super) reasoning_details: Option<Box<Value>>,
    pub(super) refusal: Text<'a>,
    pub(super) tool_calls: Few<Call<'a>>,
    pub(super) function_call: Rare<Function<'a>>,
    pub(super) audio: Rare<Audio<'a>>,
    pub(super) images: Few<Box<ContentPart<'a>>>,
    pub(super) annotations: Option<Box<Value>>,
}

object! {
    Message<'a> {
        "role" => role,
        "content" => content,
        "reasoning" => reasoning,
        "reasoning_content" => reasoning_content,
        "reasoning_details" => reasoning_details,
        "refusal" => refusal,
        "tool_calls" => tool_calls,
        "function_call" => function_call,
        "audio" => audio,
        "images" => images,
        "annotations" => annotations,
    }
}

impl Chunk<'_> {
    /// The text of a chunk that has nothing else but names.
    pub(super) fn only_text(&self) -> Option<&str> {
        let mut choices = self.choices.iter();
        let choice = choices
            .next()
            .filter(|choice| choice.index.0.unwrap_or(0) == 0)?;
        let is_only = choices.next().is_none()
            && self.usage.0.is_none()
            && self.error.is_none()
            && self.x_groq.0.is_none()
            && choice.message.0.is_none()
            && choice.finish_reason.as_str().is_none()
            && choice.native_finish_reason.as_str().is_none()
            && choice.error.is_none()
            && choice.usage.0.is_none();
        choice.delta.0.as_ref().filter(|_| is_only)?.only_text()
    }
}

impl Message<'_> {
    /// The text of a message that has nothing else but a role.
    fn only_text(&self) -> Option<&str> {
        let Content::Text(text) = &self.content else {
            return None;
        };
        let is_only = self.reasoning.filled().is_none()
            && self.reasoning_content.filled().is_none()
            && self.reasoning_details.is_none()
            && self.refusal.filled().is_none()
            && self.tool_calls.is_empty()
            && self.function_call.0.is_none()
            && self.audio.0.is_none()
            && self.images.is_empty()
            && self.annotations.is_none();
        text.filled().filter(|_| is_only)
    }

    /// Whether the message has no content.
    pub(super) fn is_empty(&self) -> bool {
        let empty = |text: &Text<'_>| text.filled().is_none();
        let content = match &self.content {
            Content::Text(text) => empty(text),
            Content::Parts(parts) => parts.is_empty(),
        };
        content
            && empty(&self.reasoning)
            && empty(&self.reasoning_content)
            && empty(&self.refusal)
            && self.reasoning_details.is_none()
            && self.tool_calls.is_empty()
            && self.function_call.0.is_none()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Call<'a> {
    pub(super) index: Count,
    pub(super) id: Text<'a>,
    pub(super) function: Rare<Function<'a>>,
    /// A call of a tool that accepts text instead of JSON.
    pub(super) custom: Rare<Function<'a>>,
    /// Gemini's thought signature.
    pub(super) extra_content: Option<Box<Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Function<'a> {
    pub(super) name: Text<'a>,
    pub(super) arguments: JsonText<'a>,
    /// The input of a custom tool.
    pub(super) input: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Audio<'a> {
    pub(super) id: Text<'a>,
    pub(super) data: Text<'a>,
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
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct ContentPart<'a> {
    pub(super) text: Text<'a>,
    pub(super) refusal: Text<'a>,
    /// Mistral's reasoning, which is itself a list of parts.
    pub(super) thinking: Content<'a>,
    pub(super) image_url: Rare<Url<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(super) struct Url<'a> {
    pub(super) url: Text<'a>,
}

impl<'de: 'a, 'a> Lenient<'de> for Content<'a> {
    #[inline]
    fn text(text: Text<'de>) -> Self {
        Self::Text(text)
    }

    fn number(number: Number) -> Self {
        Self::Text(Text::number(number))
    }

    fn seq<A: SeqAccess<'de>>(mut seq: A) -> Result<Self, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            parts.push(match part {
                Self::Text(text) => ContentPart {
                    text,
                    ..ContentPart::default()
                },
                Self::Parts(parts) => parts.into_iter().next().unwrap_or_default(),
            });
        }
        Ok(Self::Parts(parts))
    }

    fn map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let part = ContentPart::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Self::Parts(vec![part]))
    }
}

deserialize!(['a] Content<'a>);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Groq {
    pub(super) usage: Rare<Tokens>,
    pub(super) error: Option<Box<Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tokens {
    prompt_tokens: Count,
    completion_tokens: Count,
    total_tokens: Count,
    prompt_tokens_details: Maybe<Details>,
    completion_tokens_details: Maybe<Details>,
    /// DeepSeek's count of cached tokens.
    prompt_cache_hit_tokens: Count,
    /// Moonshot's count of cached tokens.
    cached_tokens: Count,
    /// Anthropic's count of cache writes, which gateways forward.
    cache_creation_input_tokens: Count,
    /// Perplexity's position of this count.
    reasoning_tokens: Count,
}

/// The details of the input or of the output.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    pub(crate) cached_tokens: Count,
    pub(crate) cache_write_tokens: Count,
    pub(crate) audio_tokens: Count,
    pub(crate) reasoning_tokens: Count,
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
