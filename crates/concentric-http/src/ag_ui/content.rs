//! The content of messages and results: text or parts.

use std::fmt;

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::wire;

/// The content of a message or a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// Text alone.
    Text(String),
    /// Parts, in order.
    Parts(Vec<ContentPart>),
}

impl Content {
    /// The concatenated text; other parts are skipped.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    ContentPart::Text(part) => Some(part.text.as_str()),
                    _ => None,
                })
                .collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match WireContent::deserialize(deserializer)? {
            WireContent::Text(text) => Ok(Self::Text(text)),
            WireContent::Parts(parts) => Ok(Self::Parts(parts)),
            WireContent::Object(_) => Err(de::Error::custom(
                "expected a string or an array of content parts",
            )),
        }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<ContentPart>> for Content {
    fn from(parts: Vec<ContentPart>) -> Self {
        Self::Parts(parts)
    }
}

/// One part of a multimodal message or result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum ContentPart {
    /// Text.
    Text(TextPart),
    /// An image.
    Image(MediaPart),
    /// An audio recording.
    Audio(MediaPart),
    /// A video.
    Video(MediaPart),
    /// A document, such as a PDF.
    Document(MediaPart),
}

wire! {
    /// Text in a multimodal message.
    TextPart;
    required {
        /// The text.
        text: String,
    }
    optional {
        /// The part's identifier.
        id: String,
        /// Extra information.
        metadata: Value,
    }
}

wire! {
    /// An image, audio recording, video or document in a multimodal message.
    MediaPart;
    required {
        /// The source of the bytes.
        source: PartSource,
    }
    optional {
        /// The part's identifier.
        id: String,
        /// Extra information.
        metadata: Value,
    }
}

impl<'de> Deserialize<'de> for ContentPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct WirePart {
            r#type: PartType,
            id: Option<String>,
            text: Option<String>,
            source: Option<PartSource>,
            metadata: Option<Value>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum PartType {
            Text,
            Image,
            Audio,
            Video,
            Document,
        }

        let WirePart {
            r#type,
            id,
            text,
            source,
            metadata,
        } = WirePart::deserialize(deserializer)?;
        let variant = match r#type {
            PartType::Text => {
                let text = text.ok_or_else(|| de::Error::missing_field("text"))?;
                return Ok(Self::Text(TextPart { text, id, metadata }));
            }
            PartType::Image => Self::Image,
            PartType::Audio => Self::Audio,
            PartType::Video => Self::Video,
            PartType::Document => Self::Document,
        };
        let source = source.ok_or_else(|| de::Error::missing_field("source"))?;
        Ok(variant(MediaPart {
            source,
            id,
            metadata,
        }))
    }
}

/// The source of a part's bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum PartSource {
    /// Inline data.
    Data {
        /// The bytes in base64.
        value: String,
        /// Their media type.
        mime_type: String,
    },
    /// A URL.
    Url {
        /// The URL.
        value: String,
        /// The media type of the resource.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
    /// A file in a provider's file store.
    File {
        /// The file's identifier in the store.
        value: String,
        /// The provider.
        #[serde(skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// The file's media type.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
}

impl<'de> Deserialize<'de> for PartSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct WireSource {
            r#type: SourceType,
            value: String,
            mime_type: Option<String>,
            provider: Option<String>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum SourceType {
            Data,
            Url,
            File,
        }

        let WireSource {
            r#type,
            value,
            mime_type,
            provider,
        } = WireSource::deserialize(deserializer)?;
        Ok(match r#type {
            SourceType::Data => {
                let mime_type = mime_type.ok_or_else(|| de::Error::missing_field("mimeType"))?;
                Self::Data { value, mime_type }
            }
            SourceType::Url => Self::Url { value, mime_type },
            SourceType::File => Self::File {
                value,
                provider,
                mime_type,
            },
        })
    }
}

/// The field `content`, before it is checked against the role.
pub(super) enum WireContent {
    Text(String),
    Parts(Vec<ContentPart>),
    Object(serde_json::Map<String, Value>),
}

impl WireContent {
    pub(super) fn text<E: de::Error>(self) -> Result<String, E> {
        match self {
            Self::Text(text) => Ok(text),
            // Several clients send text as parts for every role.
            Self::Parts(parts) => parts
                .into_iter()
                .map(|part| match part {
                    ContentPart::Text(part) => Ok(part.text),
                    _ => Err(invalid_field("content", "expected text only for this role")),
                })
                .collect(),
            Self::Object(_) => Err(invalid_field("content", "expected a string")),
        }
    }

    pub(super) fn content<E: de::Error>(self) -> Result<Content, E> {
        match self {
            Self::Text(text) => Ok(Content::Text(text)),
            Self::Parts(parts) => Ok(Content::Parts(parts)),
            Self::Object(_) => Err(invalid_field(
                "content",
                "expected a string or an array of content parts",
            )),
        }
    }

    pub(super) fn object<E: de::Error>(self) -> Result<serde_json::Map<String, Value>, E> {
        match self {
            Self::Object(object) => Ok(object),
            _ => Err(invalid_field("content", "expected an object")),
        }
    }
}

/// An error about a field of the value being parsed; `InputError` extracts the field's name.
fn invalid_field<E: de::Error>(field: &str, problem: &str) -> E {
    E::custom(format_args!("invalid field `{field}`: {problem}"))
}

impl<'de> Deserialize<'de> for WireContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = WireContent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, an array of content parts or an object")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WireContent, E> {
                Ok(WireContent::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<WireContent, E> {
                Ok(WireContent::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<WireContent, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(WireContent::Parts(parts))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WireContent, A::Error> {
                Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(WireContent::Object)
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}
