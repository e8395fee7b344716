//! The turns that are summarised, as JSON.

use super::NAME;
use crate::window::media;
use concentric_core::{Author, Part, PartKind, Role, ToolContent, ToolResult, Turn};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, value::RawValue};
use std::fmt::Write;

/// The limit of each text, in bytes.
const TEXT: usize = 8 << 10;

/// The conversation, and the summaries in it.
pub(super) struct Rendered {
    lines: Vec<Line>,
    summaries: String,
    /// The limit of the conversation, in bytes.
    max: usize,
}

/// A message, a call or a result, by its name.
struct Line {
    name: String,
    text: Text,
}

enum Text {
    Plain(String),
    /// The arguments of a call or a result that are an object or an array, as they are: their strings have one
    /// level of escapes, which a guard around the model reads.
    Json(Box<RawValue>),
}

impl Line {
    fn len(&self) -> usize {
        self.name.len()
            + match &self.text {
                Text::Plain(text) => text.len(),
                Text::Json(json) => json.get().len(),
            }
    }
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match &self.text {
            Text::Plain(text) => map.serialize_entry(&self.name, text)?,
            Text::Json(json) => map.serialize_entry(&self.name, json)?,
        }
        map.end()
    }
}

impl Rendered {
    /// `max` is the limit of the conversation, in bytes.
    pub(super) fn new(previous: Option<&str>, max: usize) -> Self {
        Self {
            lines: Vec::new(),
            summaries: previous.unwrap_or_default().to_owned(),
            max,
        }
    }

    /// The JSON object that the model receives. Of a longer conversation, the middle is left out.
    pub(super) fn into_json(mut self) -> String {
        #[derive(Serialize)]
        struct Object<'a> {
            previous_summary: &'a str,
            conversation: &'a [Line],
        }
        if bytes(&self.lines) > self.max {
            let end = self.lines.len() - fitting(self.lines.iter().rev(), self.max / 2);
            let start = fitting(self.lines.iter(), self.max / 2);
            let after = self.lines.split_off(end);
            let bytes = bytes(&self.lines.split_off(start));
            self.lines.push(Line {
                name: "left out".to_owned(),
                text: Text::Plain(format!("{bytes} bytes")),
            });
            self.lines.extend(after);
        }
        let object = Object {
            previous_summary: &self.summaries,
            conversation: &self.lines,
        };
        serde_json::to_string(&object).expect("strings and JSON are serialisable")
    }

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
                PartKind::Text(text) | PartKind::Refusal(text) => {
                    self.line(role.to_owned(), text);
                }
                PartKind::ToolCall(call) => {
                    let name = format!("call of {}", call.name);
                    self.line(name, call.arguments.as_str());
                }
                PartKind::ToolResult(result) => self.result(result),
                _ => {
                    if let Some(name) = media(part) {
                        self.text(role.to_owned(), name);
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
                for part in parts {
                    match &part.kind {
                        PartKind::Text(text) => self.line(name.clone(), text),
                        _ => {
                            if let Some(media) = media(part) {
                                self.text(name.clone(), media);
                            }
                        }
                    }
                }
            }
            content => self.line(name, &content.text()),
        }
    }

    /// Adds a text that may be JSON.
    fn line(&mut self, name: String, text: &str) {
        let may_be_json = text.trim_start().starts_with(['{', '[']);
        if may_be_json
            && text.len() <= self.max_text()
            && let Ok(json) = serde_json::from_str(text)
        {
            let text = Text::Json(json);
            self.lines.push(Line { name, text });
        } else if may_be_json && let Ok(value) = serde_json::from_str(text) {
            // A part of the JSON would be a text with escapes.
            let mut decoded = String::new();
            decode(&value, &mut decoded);
            self.text(name, &decoded);
        } else {
            self.text(name, text);
        }
    }

    fn text(&mut self, name: String, text: &str) {
        let text = Text::Plain(shortened(text, self.max_text()));
        self.lines.push(Line { name, text });
    }

    /// Some lines fit on either side of what is left out.
    fn max_text(&self) -> usize {
        TEXT.min(self.max / 8)
    }
}

/// Writes the strings and numbers of a value, without escapes.
fn decode(value: &Value, into: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.push_str(name);
                into.push_str(": ");
                decode(value, into);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| decode(value, into)),
        Value::String(text) => {
            into.push_str(text);
            into.push('\n');
        }
        other => {
            let _ = writeln!(into, "{other}");
        }
    }
}

fn bytes(lines: &[Line]) -> usize {
    lines.iter().map(Line::len).sum()
}

/// The number of lines that have at most `max` bytes together.
fn fitting<'a>(lines: impl Iterator<Item = &'a Line>, max: usize) -> usize {
    let mut len = 0;
    let fits = |line: &&Line| {
        len += line.len();
        len <= max
    };
    lines.take_while(fits).count()
}

/// Whether the turn is the summary of an earlier part.
pub(super) fn is_summary(turn: &Turn) -> bool {
    turn.as_message().parts.iter().any(is_summary_part)
}

fn is_summary_part(part: &Part) -> bool {
    matches!(&part.author, Author::Layer { name } if name == NAME)
}

/// The beginning and the end of a text that exceeds `max` bytes.
fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let start = text
        .get(..text.floor_char_boundary(max / 2))
        .unwrap_or_default();
    let end = text.ceil_char_boundary(text.len() - max / 2);
    let end = text.get(end..).unwrap_or_default();
    let bytes = text.len() - start.len() - end.len();
    format!("{start} [{bytes} bytes left out] {end}")
}
