//! The content of messages, of both APIs.

use std::fmt;

use concentric_core::{Media, MediaSource, PartKind, Str, ToolContent};
use serde::{
    Deserialize, Deserializer,
    de::{
        self, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use crate::media_url::media;

/// The content of a message: text or parts.
#[derive(Debug)]
pub(super) enum Content {
    Text(Str),
    Parts(Vec<PartKind>),
}

impl Content {
    pub(super) fn into_parts(self) -> Vec<PartKind> {
        match self {
            Self::Text(text) if text.is_empty() => Vec::new(),
            Self::Text(text) => vec![PartKind::Text(text)],
            Self::Parts(parts) => parts,
        }
    }

    /// The parts; text has none.
    pub(super) fn parts(&self) -> &[PartKind] {
        match self {
            Self::Text(_) => &[],
            Self::Parts(parts) => parts,
        }
    }

    /// The text of a message that has only text.
    pub(super) fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.as_str().to_owned()),
            Self::Parts(parts) => parts
                .into_iter()
                .map(|part| match part {
                    PartKind::Text(text) => Some(text.as_str().to_owned()),
                    _ => None,
                })
                .collect(),
        }
    }

    pub(super) fn into_tool_content(
        self,
        part: impl Fn(PartKind) -> concentric_core::Part,
    ) -> ToolContent {
        match self {
            Self::Text(text) => ToolContent::Text(text),
            Self::Parts(parts) => ToolContent::Parts(parts.into_iter().map(part).collect()),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of content parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                let parts = Vec::<WirePart>::deserialize(SeqAccessDeserializer::new(seq))?;
                let parts = parts.into_iter().map(|WirePart(part)| part);
                // A model cannot use reasoning without its provider's signature.
                let parts = parts.filter(|part| !matches!(part, PartKind::Reasoning(_)));
                Ok(Content::Parts(parts.collect()))
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}

struct WirePart(PartKind);

impl<'de> Deserialize<'de> for WirePart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            r#type: PartType,
            text: Option<Str>,
            refusal: Option<Str>,
            image_url: Option<ImageUrl>,
            input_audio: Option<Audio>,
            file: Option<File>,
            file_data: Option<String>,
            file_url: Option<Str>,
            file_id: Option<Str>,
            filename: Option<Str>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum PartType {
            Text,
            InputText,
            OutputText,
            ReasoningText,
            Refusal,
            ImageUrl,
            InputImage,
            InputAudio,
            File,
            InputFile,
        }

        #[derive(Deserialize)]
        struct Audio {
            data: Str,
            format: Str,
        }

        let part = Fields::deserialize(deserializer)?;
        let missing = de::Error::missing_field;
        Ok(Self(match part.r#type {
            PartType::Text | PartType::InputText | PartType::OutputText => {
                PartKind::Text(part.text.ok_or_else(|| missing("text"))?)
            }
            PartType::ReasoningText => PartKind::Reasoning(part.text.unwrap_or_default()),
            PartType::Refusal => PartKind::Refusal(part.refusal.ok_or_else(|| missing("refusal"))?),
            PartType::ImageUrl | PartType::InputImage => {
                PartKind::Image(match (part.image_url, part.file_id) {
                    (Some(ImageUrl(url)), _) => media(&url),
                    (None, Some(id)) => Media::new(MediaSource::Id(id)),
                    (None, None) => return Err(missing("image_url")),
                })
            }
            PartType::InputAudio => {
                let audio = part.input_audio.ok_or_else(|| missing("input_audio"))?;
                let media_type = match audio.format.as_str() {
                    "mp3" => "audio/mpeg".into(),
                    format => Str::concat(["audio/", format]),
                };
                PartKind::Audio(
                    Media::new(MediaSource::Base64(audio.data)).with_media_type(media_type),
                )
            }
            PartType::File | PartType::InputFile => {
                let file = part.file.unwrap_or(File {
                    file_data: part.file_data,
                    file_url: part.file_url,
                    file_id: part.file_id,
                    filename: part.filename,
                });
                let mut media = match (file.file_data, file.file_url, file.file_id) {
                    (Some(data), _, _) if data.starts_with("data:") => media(&data),
                    (Some(data), _, _) => Media::new(MediaSource::Base64(data.into())),
                    (None, Some(url), _) => media(&url),
                    (None, None, Some(id)) => Media::new(MediaSource::Id(id)),
                    (None, None, None) => return Err(missing("file_data")),
                };
                media.name = file.filename;
                PartKind::File(media)
            }
        }))
    }
}

#[derive(Deserialize)]
struct File {
    file_data: Option<String>,
    file_url: Option<Str>,
    file_id: Option<Str>,
    filename: Option<Str>,
}

/// An image's URL: a string, or an object with a field `url`.
struct ImageUrl(Str);

impl<'de> Deserialize<'de> for ImageUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UrlVisitor;

        #[derive(Deserialize)]
        struct Fields {
            url: Str,
        }

        impl<'de> Visitor<'de> for UrlVisitor {
            type Value = ImageUrl;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a URL or an object with a URL")
            }

            fn visit_str<E: de::Error>(self, url: &str) -> Result<ImageUrl, E> {
                Ok(ImageUrl(url.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ImageUrl, A::Error> {
                let Fields { url } = Fields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ImageUrl(url))
            }
        }

        deserializer.deserialize_any(UrlVisitor)
    }
}
