use super::Turn;
use crate::message::{Part, PartKind, ToolContent, ToolResult};

/// The assumed size of content other than text, in bytes.
const OTHER: u64 = 4_000;

impl Turn {
    pub(super) fn size(&self) -> u64 {
        let parts = self.as_message().parts.iter().map(part);
        parts.sum::<u64>() + self.results().iter().map(result).sum::<u64>()
    }
}

fn part(part: &Part) -> u64 {
    match &part.kind {
        PartKind::Text(text) | PartKind::Reasoning(text) | PartKind::Refusal(text) => length(text),
        PartKind::ToolCall(call) => length(&call.name) + length(call.arguments.as_str()),
        PartKind::ToolResult(of) => result(of),
        _ => OTHER,
    }
}

fn result(result: &ToolResult) -> u64 {
    match &result.outcome.content {
        ToolContent::Text(text) => length(text),
        ToolContent::Parts(parts) => parts.iter().map(part).sum(),
    }
}

const fn length(text: &str) -> u64 {
    text.len() as u64
}
