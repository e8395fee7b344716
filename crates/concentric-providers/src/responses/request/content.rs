//! The content of a user message or a tool result.

use crate::{fields::One, openai::DataUrl};
use concentric_core::{Media, MediaSource, Part, PartKind};
use serde::Serialize;

/// One part of a message's content.
#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Content<'a> {
    #[serde(rename = "input_text")]
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_cache_breakpoint: Option<One<&'static str>>,
    },
    #[serde(rename = "input_image")]
    Image {
        #[serde(skip_serializing_if = "Option::is_none")]
        image_url: Option<DataUrl<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_id: Option<&'a str>,
        detail: &'static str,
    },
    #[serde(rename = "input_file")]
    File(File<'a>),
}

#[derive(Default, Serialize)]
pub(super) struct File<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filename: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_data: Option<DataUrl<'a>>,
}

impl<'a> Content<'a> {
    pub(super) fn of(part: &'a Part) -> Option<Self> {
        match &part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => Some(Self::text(text)),
            PartKind::Image(image) => Self::image(image),
            PartKind::File(file) => Self::file(file),
            _ => None,
        }
        .filter(|content| !matches!(content, Self::Text { text: "", .. }))
    }

    pub(super) const fn text(text: &'a str) -> Self {
        Self::Text {
            text,
            prompt_cache_breakpoint: None,
        }
    }

    /// A text with a cache breakpoint at its end.
    pub(super) const fn cached(text: &'a str) -> Self {
        Self::Text {
            text,
            prompt_cache_breakpoint: Some(One("mode", "explicit")),
        }
    }

    fn image(image: &'a Media) -> Option<Self> {
        let file_id = match &image.source {
            MediaSource::Id(id) => Some(id.as_str()),
            _ => None,
        };
        let image_url = DataUrl::of(image, "image/png");
        (file_id.is_some() || image_url.is_some()).then_some(Self::Image {
            image_url,
            file_id,
            detail: "auto",
        })
    }

    fn file(file: &'a Media) -> Option<Self> {
        let wire = match &file.source {
            MediaSource::Id(id) => File {
                file_id: Some(id),
                ..File::default()
            },
            // The service rejects a name together with a URL.
            MediaSource::Url(url) => File {
                file_url: Some(url),
                ..File::default()
            },
            _ => File {
                filename: Some(file.name.as_deref().unwrap_or("file")),
                file_data: Some(DataUrl::of(file, "application/pdf")?),
                ..File::default()
            },
        };
        Some(Self::File(wire))
    }
}
