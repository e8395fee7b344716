//! The parts of a message.

use crate::fields::One;
use concentric_core::{Media, MediaSource, Part, PartKind};
use serde::{Serialize, Serializer};
use std::{borrow::Cow, fmt};

/// One part of a message's content.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Content<'a> {
    Text {
        text: Cow<'a, str>,
    },
    ImageUrl {
        image_url: One<DataUrl<'a>>,
    },
    InputAudio {
        input_audio: Audio<'a>,
    },
    AudioUrl {
        audio_url: One<DataUrl<'a>>,
    },
    File {
        file: File<'a>,
    },
    DocumentUrl {
        document_url: DataUrl<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        document_name: Option<&'a str>,
    },
    /// Mistral's reasoning.
    Thinking {
        thinking: [Box<Self>; 1],
    },
    #[serde(rename = "file")]
    FileId {
        file_id: &'a str,
    },
}

#[derive(Serialize)]
pub(super) struct Audio<'a> {
    data: &'a str,
    format: &'a str,
}

#[derive(Default, Serialize)]
pub(super) struct File<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filename: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_data: Option<DataUrl<'a>>,
}

impl<'a> Content<'a> {
    pub(super) fn of(part: &'a Part, document_url: bool) -> Option<Self> {
        match &part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => Some(Self::text(text)),
            PartKind::Image(image) => Self::image(image, document_url),
            PartKind::Audio(audio) => Self::audio(audio, document_url),
            PartKind::File(file) => Self::file(file, document_url),
            _ => None,
        }
        .filter(|content| !matches!(content, Self::Text { text } if text.is_empty()))
    }

    pub(super) const fn text(text: &'a str) -> Self {
        Self::Text {
            text: Cow::Borrowed(text),
        }
    }

    pub(super) fn image(image: &'a Media, document_url: bool) -> Option<Self> {
        match DataUrl::of(image, "image/png") {
            Some(url) => Some(Self::ImageUrl {
                image_url: One("url", url),
            }),
            None => Self::file(image, document_url),
        }
    }

    fn audio(audio: &'a Media, document_url: bool) -> Option<Self> {
        match &audio.source {
            MediaSource::Base64(data) => {
                let media_type = audio.media_type.as_deref().unwrap_or("audio/wav");
                let format = match media_type.rsplit('/').next().unwrap_or_default() {
                    "mpeg" | "mpga" => "mp3",
                    "x-wav" | "wave" | "vnd.wave" => "wav",
                    other => other,
                };
                Some(Self::InputAudio {
                    input_audio: Audio { data, format },
                })
            }
            MediaSource::Url(_) => DataUrl::of(audio, "audio/wav").map(|url| Self::AudioUrl {
                audio_url: One("url", url),
            }),
            _ => Self::file(audio, document_url),
        }
    }

    fn file(file: &'a Media, document_url: bool) -> Option<Self> {
        if document_url {
            return Some(match &file.source {
                MediaSource::Id(file_id) => Self::FileId { file_id },
                _ => Self::DocumentUrl {
                    document_url: DataUrl::of(file, "application/pdf")?,
                    document_name: file.name.as_deref(),
                },
            });
        }
        let wire = match &file.source {
            MediaSource::Id(id) => File {
                file_id: Some(id),
                ..File::default()
            },
            _ => File {
                file_id: None,
                filename: Some(file.name.as_deref().unwrap_or("file")),
                file_data: Some(DataUrl::of(file, "application/pdf")?),
            },
        };
        Some(Self::File { file: wire })
    }
}

/// A medium as a URL: the URL itself, or a data URL (RFC 2397).
pub(crate) enum DataUrl<'a> {
    Url(&'a str),
    Data {
        media_type: &'a str,
        base64: &'a str,
    },
}

impl<'a> DataUrl<'a> {
    pub(crate) fn of(media: &'a Media, default: &'a str) -> Option<Self> {
        match &media.source {
            MediaSource::Url(url) => Some(Self::Url(url)),
            MediaSource::Base64(base64) => Some(Self::Data {
                media_type: media.media_type.as_deref().unwrap_or(default),
                base64,
            }),
            _ => None,
        }
    }
}

impl fmt::Display for DataUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Data { media_type, base64 } => write!(f, "data:{media_type};base64,{base64}"),
        }
    }
}

impl Serialize for DataUrl<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
