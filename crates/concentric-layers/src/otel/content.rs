//! Messages, arguments and results in the JSON forms of the conventions, for attributes.

use super::genai::message_reason;
use crate::capture::{Capture, cut};
use concentric_core::{
    ChatRequest, FinishReason, Message, Part, PartKind, Role, System, ToolContent, ToolResult, Turn,
};
use serde_json::{Value, json};

/// Appended to a text that was cut.
const MORE: &str = "…";

/// Writes the texts of one attribute, within its limit.
pub(super) struct Writer<'a> {
    capture: &'a Capture,
    // In characters.
    left: usize,
}

impl<'a> Writer<'a> {
    /// Returns `None` if no content is recorded.
    pub(super) fn new(capture: &'a Capture) -> Option<Self> {
        let left = capture.max_chars()?;
        Some(Self { capture, left })
    }

    /// The turns since the model's last message: its earlier calls have recorded the others.
    pub(super) fn new_turns(&mut self, request: &ChatRequest) -> String {
        let mut turns = Vec::new();
        for turn in request.transcript.rev() {
            let is_answer = turn.as_message().role == Role::Assistant;
            if !is_answer || turn.as_round().is_some() {
                turns.push(turn);
            }
            if is_answer {
                break;
            }
        }
        turns.reverse();
        let turns = turns.into_iter().map(|turn| self.turn(turn));
        Value::Array(turns.collect()).to_string()
    }

    /// The results of a round, or a message.
    fn turn(&mut self, turn: &Turn) -> Value {
        if turn.as_round().is_none() {
            return self.message(turn.as_message(), None);
        }
        let results = turn.results().iter().map(|result| self.result(result));
        json!({"role": "tool", "parts": results.collect::<Vec<_>>()})
    }

    /// One message of the user.
    pub(super) fn input(&mut self, message: &Message) -> String {
        Value::Array(vec![self.message(message, None)]).to_string()
    }

    /// The answer of a model or an agent.
    pub(super) fn output(&mut self, message: &Message, reason: Option<&FinishReason>) -> String {
        let reason = reason.map_or("error", message_reason);
        Value::Array(vec![self.message(message, Some(reason))]).to_string()
    }

    pub(super) fn system(&mut self, system: &System) -> Option<String> {
        let segments = system.iter().filter(|segment| !segment.text.is_empty());
        let parts =
            segments.map(|segment| json!({"type": "text", "content": self.text(&segment.text)}));
        let parts: Vec<_> = parts.collect();
        (!parts.is_empty()).then(|| Value::Array(parts).to_string())
    }

    fn message(&mut self, message: &Message, reason: Option<&str>) -> Value {
        let role = match message.role {
            Role::System => "system",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            _ => "user",
        };
        let parts = message.parts.iter().map(|part| self.part(part));
        let parts: Vec<_> = parts.collect();
        match reason {
            Some(reason) => json!({"role": role, "parts": parts, "finish_reason": reason}),
            None => json!({"role": role, "parts": parts}),
        }
    }

    fn part(&mut self, part: &Part) -> Value {
        let text = |kind: &str, text: String| json!({"type": kind, "content": text});
        match &part.kind {
            PartKind::Text(content) => text("text", self.text(content)),
            PartKind::Reasoning(content) => text("reasoning", self.text(content)),
            PartKind::Refusal(content) => text("refusal", self.text(content)),
            PartKind::ToolCall(call) => json!({
                "type": "tool_call",
                "id": call.id.as_str(),
                "name": self.text(&call.name),
                "arguments": self.json(call.arguments.as_str()),
            }),
            PartKind::ToolResult(result) => self.result(result),
            // Neither media nor the provider's own data is text that can be redacted.
            PartKind::Image(_) => text("text", "[image]".to_owned()),
            PartKind::Audio(_) => text("text", "[audio]".to_owned()),
            PartKind::File(_) => text("text", "[file]".to_owned()),
            _ => text("text", "[other]".to_owned()),
        }
    }

    fn result(&mut self, result: &ToolResult) -> Value {
        json!({
            "type": "tool_call_response",
            "id": result.call_id.as_str(),
            "response": self.content(&result.outcome.content),
        })
    }

    fn content(&mut self, content: &ToolContent) -> Value {
        match content {
            ToolContent::Text(text) => self.json(text),
            ToolContent::Parts(parts) => {
                let parts = parts.iter().map(|part| self.part(part));
                Value::Array(parts.collect())
            }
            _ => Value::Null,
        }
    }

    /// The arguments or the result of a tool call.
    pub(super) fn arguments(&mut self, arguments: &str) -> String {
        as_attribute(self.json(arguments))
    }

    pub(super) fn outcome(&mut self, content: &ToolContent) -> String {
        as_attribute(self.content(content))
    }

    pub(super) fn text(&mut self, text: &str) -> String {
        // The redaction of a long history would be of no use.
        if self.left == 0 {
            return MORE.to_owned();
        }
        let text = self.capture.redacted(text);
        self.limited(&text)
    }

    /// The text up to the number of characters that are left.
    fn limited(&mut self, text: &str) -> String {
        let mut written = cut(text, self.left).to_owned();
        self.left -= written.chars().count();
        if written.len() < text.len() {
            written.push_str(MORE);
        }
        written
    }

    /// JSON, or text if it is not JSON or is cut.
    fn json(&mut self, text: &str) -> Value {
        if self.left == 0 {
            return Value::String(MORE.to_owned());
        }
        match serde_json::from_str(text) {
            Err(_) | Ok(Value::Number(_)) => Value::String(self.text(text)),
            Ok(Value::String(text)) => Value::String(self.text(&text)),
            Ok(mut value) => {
                // In the text, an escape may hide what is to be removed; in the values, its name is missing.
                self.capture.redact(&mut value);
                let text = self.limited(&self.capture.rewritten(&value.to_string()));
                serde_json::from_str(&text).unwrap_or(Value::String(text))
            }
        }
    }
}

fn as_attribute(value: Value) -> String {
    match value {
        Value::String(text) => text,
        value => value.to_string(),
    }
}
