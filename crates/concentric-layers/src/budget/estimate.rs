//! The default estimate of the usage of a model call.

use concentric_core::{ChatRequest, Part, PartKind, ToolContent, ToolResult, Usage};
use std::fmt::{self, Write};

/// The assumed number of bytes of text per token.
pub(super) const BYTES: u64 = 4;

/// The assumed size of content other than text, in bytes.
const MEDIA: u64 = 1_000 * BYTES;

pub(super) fn rough(request: &ChatRequest) -> Usage {
    let system = request.system.iter().map(|segment| length(&segment.text));
    let tools = request.tools.iter().map(|tool| {
        let mut schema = Length(0);
        // `Length` never fails.
        let _ = write!(schema, "{}", tool.input_schema);
        length(&tool.name) + length(&tool.description) + schema.0
    });
    let turns = request.transcript.iter().map(|turn| {
        let parts = turn.as_message().parts.iter().map(part);
        parts.sum::<u64>() + turn.results().iter().map(result).sum::<u64>()
    });
    let bytes: u64 = system.chain(tools).chain(turns).sum();
    let output = request.options.max_output_tokens.unwrap_or(0);
    Usage::new(bytes / BYTES, u64::from(output))
}

fn part(part: &Part) -> u64 {
    match &part.kind {
        PartKind::Text(text) | PartKind::Reasoning(text) | PartKind::Refusal(text) => length(text),
        PartKind::ToolCall(call) => length(&call.name) + length(call.arguments.as_str()),
        PartKind::ToolResult(of) => result(of),
        _ => MEDIA,
    }
}

fn result(result: &ToolResult) -> u64 {
    match &result.outcome.content {
        ToolContent::Text(text) => length(text),
        ToolContent::Parts(parts) => parts.iter().map(part).sum(),
        _ => MEDIA,
    }
}

pub(super) const fn length(text: &str) -> u64 {
    text.len() as u64
}

/// A writer that counts bytes.
struct Length(u64);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += length(text);
        Ok(())
    }
}
