//! Conversion of statuses, content and media.

use concentric_core::{Media, MediaSource, Message, Part, PartKind, ToolContent, ToolStatus};
use serde_json::json;

use super::wire::{Content, ContentPart, MediaPart, PartSource, TextPart};

pub(in super::super) fn status(status: ToolStatus) -> &'static str {
    match status {
        ToolStatus::Done => "done",
        ToolStatus::Failed => "failed",
        ToolStatus::Denied => "denied",
        ToolStatus::Cancelled => "cancelled",
        _ => "unknown",
    }
}

pub(super) fn content(content: &ToolContent) -> Content {
    let parts = match content {
        ToolContent::Parts(parts) => content_parts(parts),
        _ => None,
    };
    parts.unwrap_or_else(|| Content::Text(content.text().into_owned()))
}

pub(super) fn user_content(message: &Message) -> Content {
    content_parts(&message.parts).unwrap_or_else(|| Content::Text(message.text()))
}

/// Converts parts that are not all text. Every client supports text, and some support nothing else.
fn content_parts(parts: &[Part]) -> Option<Content> {
    let is_text = |part: &Part| matches!(part.kind, PartKind::Text(_));
    if parts.iter().all(is_text) {
        return None;
    }
    let parts = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) => Some(ContentPart::Text(TextPart::new(text.as_str()))),
        PartKind::Image(image) => media_part(ContentPart::Image, image),
        PartKind::Audio(audio) => media_part(ContentPart::Audio, audio),
        PartKind::File(file) => media_part(ContentPart::Document, file),
        _ => None,
    });
    Some(Content::Parts(parts.collect()))
}

pub(super) fn media_part(kind: fn(MediaPart) -> ContentPart, media: &Media) -> Option<ContentPart> {
    let mime_type = media
        .media_type
        .as_ref()
        .map(|name| name.as_str().to_owned());
    let source = match &media.source {
        MediaSource::Base64(value) => PartSource::Data {
            value: value.as_str().to_owned(),
            mime_type: mime_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
        },
        MediaSource::Id(value) => PartSource::File {
            value: value.as_str().to_owned(),
            provider: None,
            mime_type,
        },
        MediaSource::Url(value) => PartSource::Url {
            value: value.as_str().to_owned(),
            mime_type,
        },
        _ => return None,
    };
    let mut part = MediaPart::new(source);
    part.metadata = media
        .name
        .as_ref()
        .map(|name| json!({"filename": name.as_str()}));
    Some(kind(part))
}
