//! The content of messages and results: text or parts.

use std::fmt;

use concentric_core::{Media, MediaSource, PartKind, Str};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The content of a message or a result.
#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<PartKind>),
}

/// The field `content`, before it is checked against the role.
pub(crate) enum WireContent {
    Text(String),
    Parts(Vec<WirePart>),
    Object,
}

impl WireContent {
    pub(crate) fn text<E: de::Error>(self) -> Result<String, E> {
        match self {
            Self::Text(text) => Ok(text),
            // Several clients send text as parts for every role.
            Self::Parts(parts) => parts
                .into_iter()
                .map(|part| match part.0 {
                    PartKind::Text(text) => Ok(text.as_str().to_owned()),
                    _ => Err(invalid_field("content", "expected text only for this role")),
                })
                .collect(),
            Self::Object => Err(invalid_field("content", "expected a string")),
        }
    }

    pub(crate) fn content<E: de::Error>(self) -> Result<Content, E> {
        match self {
            Self::Text(text) => Ok(Content::Text(text)),
            Self::Parts(parts) => Ok(Content::Parts(
                parts.into_iter().map(|part| part.0).collect(),
            )),
            Self::Object => Err(invalid_field(
                "content",
                "expected a string or an array of content parts",
            )),
        }
    }

    pub(crate) fn object<E: de::Error>(self) -> Result<(), E> {
        match self {
            Self::Object => Ok(()),
            _ => Err(invalid_field("content", "expected an object")),
        }
    }
}

/// An error about a field of the value being parsed; the parser of the body extracts its name.
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

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<WireContent, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(WireContent::Parts(parts))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WireContent, A::Error> {
                // Parsed, since that limits its depth.
                Map::<String, Value>::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(|_| WireContent::Object)
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}

/// One part of a multimodal message or result.
pub(crate) struct WirePart(PartKind);

impl<'de> Deserialize<'de> for WirePart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            r#type: PartType,
            text: Option<String>,
            source: Option<Source>,
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

        let part = Fields::deserialize(deserializer)?;
        let missing = de::Error::missing_field;
        if let PartType::Text = part.r#type {
            let text = part.text.ok_or_else(|| missing("text"))?;
            return Ok(Self(PartKind::Text(text.into())));
        }
        let Source(mut media) = part.source.ok_or_else(|| missing("source"))?;
        let name = part
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.get("filename"));
        media.name = name.and_then(Value::as_str).map(Str::from);
        Ok(Self(match part.r#type {
            PartType::Image => PartKind::Image(media),
            PartType::Audio => PartKind::Audio(media),
            _ => PartKind::File(media),
        }))
    }
}

/// The source of a part's bytes: inline data, a URL, or a file in a provider's store.
struct Source(Media);

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            r#type: SourceType,
            value: Str,
            mime_type: Option<Str>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum SourceType {
            Data,
            Url,
            File,
        }

        let source = Fields::deserialize(deserializer)?;
        let mut media = Media::new(match source.r#type {
            SourceType::Data if source.mime_type.is_none() => {
                return Err(de::Error::missing_field("mimeType"));
            }
            SourceType::Data => MediaSource::Base64(source.value),
            SourceType::Url => MediaSource::Url(source.value),
            SourceType::File => MediaSource::Id(source.value),
        });
        media.media_type = source.mime_type;
        Ok(Self(media))
    }
}
