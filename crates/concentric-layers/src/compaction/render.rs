//! The text of turns that are summarised.

use super::NAME;
use crate::window::media;
use concentric_core::{Author, Part, PartKind, Role, ToolContent, ToolResult, Turn};
use std::fmt::Write;

/// The limit of each text, in bytes.
const TEXT: usize = 8 << 10;

/// The conversation as text, and the summaries in it.
#[derive(Default)]
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) summaries: String,
}

impl Rendered {
    pub(super) fn push(&mut self, turn: &Turn) {
        let message = turn.as_message();
        let role = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
            _ => "system",
        };
        for part in &message.parts {
            match &part.kind {
                PartKind::Text(text) if is_summary_part(part) => {
                    self.summaries.push_str(text);
                    self.summaries.push('\n');
                }
                PartKind::Text(text) | PartKind::Refusal(text) => self.line(role, text),
                PartKind::ToolCall(call) => {
                    let name = format!("call of {}", call.name);
                    self.line(&name, call.arguments.as_str());
                }
                PartKind::ToolResult(result) => self.result(result),
                _ => {
                    if let Some(name) = media(part) {
                        self.line(role, name);
                    }
                }
            }
        }
        for result in turn.results() {
            self.result(result);
        }
    }

    fn result(&mut self, result: &ToolResult) {
        let (name, status) = (&result.name, result.outcome.status);
        let name = format!("result of {name} ({status:?})");
        match &result.outcome.content {
            ToolContent::Parts(parts) => {
                let texts = parts.iter().filter_map(|part| match &part.kind {
                    PartKind::Text(text) => Some(text.as_str()),
                    _ => media(part),
                });
                self.line(&name, &texts.collect::<Vec<_>>().join(" "));
            }
            content => self.line(&name, &content.text()),
        }
    }

    fn line(&mut self, who: &str, text: &str) {
        let text = shortened(text, TEXT);
        let _ = writeln!(self.text, "{who}: {text}");
    }
}

/// Whether the turn is the summary of an earlier part.
pub(super) fn is_summary(turn: &Turn) -> bool {
    turn.as_message().parts.iter().any(is_summary_part)
}

fn is_summary_part(part: &Part) -> bool {
    matches!(&part.author, Author::Layer { name } if name == NAME)
}

/// The beginning and the end of a text that exceeds `max` bytes.
pub(super) fn shortened(text: &str, max: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= max {
        return text.into();
    }
    let start = text
        .get(..text.floor_char_boundary(max / 2))
        .unwrap_or_default();
    let end = text.ceil_char_boundary(text.len() - max / 2);
    let end = text.get(end..).unwrap_or_default();
    let bytes = text.len() - start.len() - end.len();
    format!("{start} [{bytes} bytes left out] {end}").into()
}
