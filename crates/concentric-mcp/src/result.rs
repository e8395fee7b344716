//! Results of a server's tools.

use crate::text;
use concentric_core::{Author, Media, MediaSource, Part, PartKind, Str, ToolContent, ToolOutcome};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// Converts a result. Its texts are data for the model, and never instructions.
pub(crate) fn outcome(server: &str, tool: &Str, result: CallToolResult) -> ToolOutcome {
    let is_error = result.is_error == Some(true);
    let parts: Vec<PartKind> = result.content.into_iter().map(part).collect();
    if is_error {
        let text = texts(&parts);
        return failed(server, &text);
    }
    let structured = result.structured_content;
    let content = match parts.as_slice() {
        [] => match &structured {
            Some(value) => ToolContent::Text(value.to_string().into()),
            // Providers reject a result without content.
            None => ToolContent::Text(Str::from_static("Done.")),
        },
        [PartKind::Text(text)] => ToolContent::Text(text.clone()),
        _ => {
            let author = Author::Tool { name: tool.clone() };
            let parts = parts
                .into_iter()
                .map(|kind| Part::new(kind).by(author.clone()));
            ToolContent::Parts(parts.collect())
        }
    };
    let outcome = ToolOutcome::done(content);
    match structured {
        Some(data) => outcome.with_data(data),
        None => outcome,
    }
}

/// The outcome of a call for which the server reports an error.
pub(crate) fn failed(server: &str, text: &str) -> ToolOutcome {
    ToolOutcome::failed(format!(
        "The MCP server `{server}` reports an error: {text}"
    ))
}

fn texts(parts: &[PartKind]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        PartKind::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn part(block: ContentBlock) -> PartKind {
    match block {
        ContentBlock::Text(text) => PartKind::Text(text.text.into()),
        ContentBlock::Image(image) => PartKind::Image(media(image.data, Some(image.mime_type))),
        ContentBlock::Audio(audio) => PartKind::Audio(media(audio.data, Some(audio.mime_type))),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { text, .. } => PartKind::Text(text.into()),
            ResourceContents::BlobResourceContents {
                uri,
                mime_type,
                blob,
                ..
            } => {
                let name = text::cut(text::visible(&uri), 256);
                PartKind::File(media(blob, mime_type).with_name(name))
            }
            _ => PartKind::Text(Str::from_static("[a resource of an unknown kind]")),
        },
        // A link is a text: it is not read, neither by us nor by a provider.
        ContentBlock::ResourceLink(link) => {
            let (name, uri) = (text::visible(&link.name), text::visible(&link.uri));
            PartKind::Text(format!("[resource `{name}`: {uri}]").into())
        }
        _ => PartKind::Text(Str::from_static("[content of an unknown kind]")),
    }
}

fn media(base64: String, media_type: Option<String>) -> Media {
    let media = Media::new(MediaSource::Base64(base64.into()));
    match media_type {
        Some(media_type) => media.with_media_type(text::visible(&media_type)),
        None => media,
    }
}
