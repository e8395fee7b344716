//! Conversion of statuses, content and media.

use concentric_core::{Media, MediaSource, PartKind, ToolContent, ToolStatus};
use serde_json::{Value, json};

use super::super::interrupt::object;

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
        ToolContent::Parts(parts)
            if parts
                .iter()
                .any(|part| !matches!(part.kind, PartKind::Text(_))) =>
        {
            parts
        }
        // Every client supports text, and some support nothing else.
        _ => return content.text().into(),
    };
    let parts = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) => Some(json!({"type": "text", "text": text.as_str()})),
        PartKind::Image(image) => media_part("image", image),
        PartKind::Audio(audio) => media_part("audio", audio),
        PartKind::File(file) => media_part("document", file),
        _ => None,
    });
    parts.collect()
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
