//! Definitions and results in the terms of the protocol.

use concentric_core::{
    Annotations, Media, MediaSource, PartKind, ToolContent, ToolOutcome, ToolSpec, ToolStatus,
};
use rmcp::model::{
    CallToolResult, ContentBlock, EmbeddedResource, JsonObject, Resource, ResourceContents, Tool,
    ToolAnnotations,
};
use serde_json::Value;
use std::sync::Arc;

pub(super) fn definition(spec: &ToolSpec) -> Tool {
    let description = spec.description.as_str().to_owned();
    let mut tool = Tool::new(
        spec.name.as_str().to_owned(),
        description,
        object(&spec.input_schema),
    );
    // Only an object is structured content in every revision.
    tool.output_schema = output_schema(spec).map(object);
    let Annotations {
        title,
        read_only,
        destructive,
        idempotent,
        open_world,
        ..
    } = &spec.annotations;
    let title = title.as_ref().map(|title| title.as_str().to_owned());
    let hints = ToolAnnotations::from_raw(
        title,
        Some(*read_only),
        Some(*destructive),
        Some(*idempotent),
        Some(*open_world),
    );
    tool.with_annotations(hints)
}

/// The schema of the structured content of a tool.
fn output_schema(spec: &ToolSpec) -> Option<&Value> {
    let schema = spec.output_schema.as_deref();
    schema.filter(|schema| schema.get("type").is_some_and(|kind| kind == "object"))
}

fn object(schema: &Value) -> Arc<JsonObject> {
    match schema {
        Value::Object(schema) => Arc::new(schema.clone()),
        _ => Arc::default(),
    }
}

/// The result of a call. The data of a tool without an output schema is for the application, and is not
/// sent.
pub(super) fn result(outcome: &ToolOutcome, spec: Option<&ToolSpec>) -> CallToolResult {
    let content = match &outcome.content {
        ToolContent::Text(text) => vec![ContentBlock::text(text.as_str())],
        ToolContent::Parts(parts) => parts.iter().map(|part| block(&part.kind)).collect(),
        other => vec![ContentBlock::text(other.text())],
    };
    if outcome.status != ToolStatus::Done {
        return CallToolResult::error(content);
    }
    let mut result = CallToolResult::success(content);
    let has_schema = spec.is_some_and(|spec| output_schema(spec).is_some());
    let data = outcome.data.as_deref();
    let data = data.filter(|data| has_schema && data.is_object());
    result.structured_content = data.cloned();
    result
}

pub(super) fn failed(text: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

fn block(part: &PartKind) -> ContentBlock {
    match part {
        PartKind::Text(text) | PartKind::Reasoning(text) | PartKind::Refusal(text) => {
            ContentBlock::text(text.as_str())
        }
        PartKind::Image(media) => medium(media, "image/png", ContentBlock::image),
        PartKind::Audio(media) => medium(media, "audio/wav", ContentBlock::audio),
        PartKind::File(media) => medium(media, "application/octet-stream", |data, kind| {
            let uri = media.name.as_ref().map_or("file", |name| name.as_str());
            let mut resource = ResourceContents::blob(data, format!("attachment:{uri}"));
            if let ResourceContents::BlobResourceContents { mime_type, .. } = &mut resource {
                *mime_type = Some(kind);
            }
            ContentBlock::Resource(EmbeddedResource::new(resource))
        }),
        _ => ContentBlock::text("[content of a kind that MCP does not have]"),
    }
}

fn medium(
    media: &Media,
    default_type: &str,
    inline: impl FnOnce(String, String) -> ContentBlock,
) -> ContentBlock {
    let kind = media
        .media_type
        .as_ref()
        .map_or(default_type, |it| it.as_str());
    match &media.source {
        MediaSource::Base64(data) => inline(data.as_str().to_owned(), kind.to_owned()),
        MediaSource::Url(url) | MediaSource::Id(url) => {
            let name = media.name.as_ref().unwrap_or(url).as_str();
            ContentBlock::ResourceLink(Resource::new(url.as_str(), name))
        }
        _ => ContentBlock::text("[a medium of an unknown kind]"),
    }
}
