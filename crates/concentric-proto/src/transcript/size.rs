//! The size of content, as the base of an estimate of its tokens.

use super::Turn;
use crate::message::{Part, PartKind, ToolContent, ToolResult};

// The assumed sizes of content other than text.
const IMAGE: u64 = 4_000;
const AUDIO: u64 = 2_000;
const FILE: u64 = 12_000;
const OTHER: u64 = 4_000;

/// The size of `text`: its bytes, and one more for each Chinese, Japanese or Korean character. A token of
/// a usual model has about four.
pub fn text_size(text: &str) -> u64 {
    // The first byte of the characters from U+3000 to U+DFFF.
    let wide = text.bytes().filter(|byte| matches!(byte, 0xE3..=0xED));
    text.len() as u64 + wide.count() as u64
}

/// The size of a JSON `text`, whose tokens are shorter: 40 for 33 of other text.
pub fn json_size(text: &str) -> u64 {
    text_size(text).saturating_mul(40) / 33
}

impl Turn {
    /// The size of the content, as [`Transcript::size`](super::Transcript::size) adds it up.
    pub fn size(&self) -> u64 {
        let parts = self.as_message().parts.iter().map(part);
        parts.sum::<u64>() + self.results().iter().map(result).sum::<u64>()
    }
}

fn part(part: &Part) -> u64 {
    match &part.kind {
        PartKind::Text(text) | PartKind::Reasoning(text) | PartKind::Refusal(text) => {
            text_size(text)
        }
        PartKind::ToolCall(call) => text_size(&call.name) + json_size(call.arguments.as_str()),
        PartKind::ToolResult(of) => result(of),
        PartKind::Image(_) => IMAGE,
        PartKind::Audio(_) => AUDIO,
        PartKind::File(_) => FILE,
        PartKind::Provider(_) => OTHER,
    }
}

fn result(result: &ToolResult) -> u64 {
    match &result.outcome.content {
        ToolContent::Text(text) if text.starts_with(['{', '[']) => json_size(text),
        ToolContent::Text(text) => text_size(text),
        ToolContent::Parts(parts) => parts.iter().map(part).sum(),
    }
}
