//! Conversion of statuses, content and media.

use concentric_core::{Media, MediaSource, Message, Part, PartKind, ToolContent, ToolStatus};
use serde_json::{Value, json};

use crate::run::object;

pub(in super::super) fn status(status: ToolStatus) -> &'static str {
    match status {
        ToolStatus::Done => "done",
        ToolStatus::Failed => "failed",
        ToolStatus::Denied => "denied",
        ToolStatus::Cancelled => "cancelled",
        _ => "unknown",
    }
}

/// Text, or an array of content parts.
pub(super) fn content(content: &ToolContent) -> Value {
    let parts = match content {
        ToolContent::Parts(parts) => content_parts(parts),
        _ => None,
    };
    parts.unwrap_or_else(|| content.text().into())
}

pub(super) fn user_content(message: &Message) -> Value {
    content_parts(&message.parts).unwrap_or_else(|| message.text().into())
}

/// Converts parts that are not all text. Every client supports text, and some support nothing else.
fn content_parts(parts: &[Part]) -> Option<Value> {
    let is_text = |part: &Part| matches!(part.kind, PartKind::Text(_));
    if parts.iter().all(is_text) {
        return None;
    }
    let parts = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) => Some(json!({"type": "text", "text": text.as_str()})),
        PartKind::Image(image) => media_part("image", image),
        PartKind::Audio(audio) => media_part("audio", audio),
        PartKind::File(file) => media_part("document", file),
        _ => None,
    });
    Some(parts.collect())
}

/// A content part with media.
pub(super) fn media_part(kind: &str, media: &Media) -> Option<Value> {
    let mut mime_type = media.media_type.as_ref().map(|name| name.as_str());
    let (source, value) = match &media.source {
        MediaSource::Base64(value) => {
            mime_type = mime_type.or(Some("application/octet-stream"));
            ("data", value)
        }
        MediaSource::Id(value) => ("file", value),
        MediaSource::Url(value) => ("url", value),
        _ => return None,
    };
    let source = object([
        ("type", Some(source.into())),
        ("value", Some(value.as_str().into())),
        ("mimeType", mime_type.map(Value::from)),
    ]);
    let name = media.name.as_ref();
    Some(object([
        ("type", Some(kind.into())),
        ("source", Some(source)),
        (
            "metadata",
            name.map(|name| json!({"filename": name.as_str()})),
        ),
    ]))
}
