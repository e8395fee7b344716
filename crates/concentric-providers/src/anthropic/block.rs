//! A content block of a response that is being received.

use super::wire::Delta;
use crate::{
    api::Answer,
    calls::{Calls, Piece},
    lenient::Count,
};
use concentric_core::{Error, Event, Executor, PartKind, ProviderData, Str};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The open block.
#[derive(Debug)]
pub(super) struct Block {
    /// The index that the service assigned.
    index: Option<u64>,
    /// The position among all blocks.
    number: u64,
    kind: Kind,
    /// The fields of the block that must be sent back to the service and have no other
    /// representation.
    data: Map<String, Value>,
}

#[derive(Debug)]
enum Kind {
    /// A text, or thinking.
    Text {
        is_thinking: bool,
        has_content: bool,
    },
    /// A tool call, with its initial arguments, which later deltas replace.
    Call {
        executor: Executor,
        begun_with: Option<String>,
    },
    /// A block that only the service can interpret.
    Opaque,
}

/// The result of a block.
#[derive(Debug)]
pub(super) enum Ended {
    /// No part, since the block was empty.
    Nothing,
    /// A part of the message.
    Part,
    /// A call for the loop, which is emitted at the end of the response: its number, and the
    /// provider data to send back.
    Call(u64, Map<String, Value>),
}

impl Block {
    /// Whether an event with `index` belongs to this block. An event without an index does.
    pub(super) fn is_at(&self, index: Count) -> bool {
        index.0.is_none() || index.0 == self.index
    }

    /// Starts a block.
    pub(super) fn begin(
        block: Value,
        index: Option<u64>,
        number: u64,
        calls: &mut Calls,
        answer: &mut Answer,
    ) -> Result<Self, Error> {
        let mut data = match block {
            Value::Object(data) => data,
            _ => Map::new(),
        };
        let type_ = data.get("type").and_then(Value::as_str).unwrap_or_default();
        let kind = match type_ {
            "text" | "thinking" => {
                let is_thinking = type_ == "thinking";
                let text = take_text(&mut data, if is_thinking { "thinking" } else { "text" });
                data.remove("type");
                let has_content = text.is_some();
                answer
                    .events
                    .extend(text.map(|text| delta(text, is_thinking)));
                Kind::Text {
                    is_thinking,
                    has_content,
                }
            }
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let executor = if type_ == "tool_use" {
                    data.remove("type");
                    Executor::Loop
                } else {
                    Executor::Provider
                };
                let (id, name) = (take_text(&mut data, "id"), take_text(&mut data, "name"));
                // Used only if no delta with arguments arrives.
                let begun_with = Some(match data.remove("input") {
                    Some(Value::String(text)) if !text.is_empty() => text,
                    None | Some(Value::Null | Value::String(_)) => "{}".to_owned(),
                    Some(input) => input.to_string(),
                });
                let piece = Piece {
                    index: Some(number),
                    id: id.as_deref(),
                    name: name.as_deref(),
                    arguments: "",
                };
                calls.piece(&piece, answer)?;
                Kind::Call {
                    executor,
                    begun_with,
                }
            }
            _ => Kind::Opaque,
        };
        Ok(Self {
            index,
            number,
            kind,
            data,
        })
    }

    /// Processes a delta.
    #[inline]
    pub(super) fn delta(
        &mut self,
        new: Delta<'_>,
        calls: &mut Calls,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        match &mut self.kind {
            Kind::Text {
                is_thinking,
                has_content,
            } => {
                let text = if *is_thinking { new.thinking } else { new.text };
                if let Some(text) = text.into_filled() {
                    *has_content = true;
                    answer.emit(delta(text, *is_thinking));
                }
                if let Some(signature) = new.signature.as_str().filter(|_| *is_thinking) {
                    let known = self.data.get("signature").and_then(Value::as_str);
                    answer.changed |= !signature.is_empty() && known != Some(signature);
                    self.data.insert("signature".to_owned(), signature.into());
                }
                if let Some(citation) = new.citation.filter(|_| !*is_thinking) {
                    answer.changed();
                    self.cite(*citation);
                }
            }
            Kind::Call { begun_with, .. } => {
                if let Some(arguments) = new.partial_json.filled() {
                    *begun_with = None;
                    calls.piece(&Piece::arguments(self.number, arguments), answer)?;
                }
            }
            Kind::Opaque => {
                let fields = [
                    ("content", new.content),
                    ("encrypted_content", new.encrypted_content),
                ];
                for (name, value) in fields {
                    if let Some(value) = value {
                        answer.changed |= self.data.get(name) != Some(&*value);
                        self.data.insert(name.to_owned(), *value);
                    }
                }
            }
        }
        Ok(())
    }

    fn cite(&mut self, citation: Value) {
        match self.data.get_mut("citations") {
            Some(Value::Array(citations)) => citations.push(citation),
            _ => {
                let citations = vec![citation].into();
                self.data.insert("citations".to_owned(), citations);
            }
        }
    }

    /// Ends the block.
    pub(super) fn end(mut self, calls: &mut Calls, answer: &mut Answer) -> Result<Ended, Error> {
        if !matches!(self.kind, Kind::Opaque) {
            self.data.retain(|_, value| !is_nothing(value));
        }
        match self.kind {
            Kind::Text {
                is_thinking,
                has_content,
            } => {
                let data = self.data(answer);
                if has_content {
                    // Also emitted without data, so that a following text is a separate part.
                    answer.end_part(data);
                } else if data.is_none() {
                    return Ok(Ended::Nothing);
                } else if is_thinking {
                    // The service hides this reasoning, but requires its signature in later
                    // requests.
                    answer.part(PartKind::Reasoning(Str::default()), data);
                } else {
                    answer.part(PartKind::Text(Str::default()), data);
                }
            }
            Kind::Call {
                executor,
                ref mut begun_with,
            } => {
                if let Some(arguments) = begun_with.take() {
                    calls.piece(&Piece::arguments(self.number, &arguments), answer)?;
                }
                if executor == Executor::Loop {
                    return Ok(Ended::Call(self.number, self.data));
                }
                // Always contains the type.
                let data = self.data(answer);
                calls.keep(self.number, executor, data);
                // The provider executes this call, and its result is a separate block.
                calls.settle(self.number, answer)?;
            }
            Kind::Opaque if self.data.is_empty() => return Ok(Ended::Nothing),
            Kind::Opaque => answer.opaque(self.data.into()),
        }
        Ok(Ended::Part)
    }

    fn data(&mut self, answer: &Answer) -> Option<Arc<ProviderData>> {
        match std::mem::take(&mut self.data) {
            data if data.is_empty() => None,
            data => answer.data(data.into()),
        }
    }

    /// The model that continues the response, if the service switches to a fallback.
    pub(super) fn fallback_model(&self) -> Option<&str> {
        let fallback = self.data.get("type").and_then(Value::as_str) == Some("fallback");
        let model = self.data.get("to")?.get("model")?.as_str();
        model.filter(|_| fallback)
    }
}

fn delta(text: Str, is_thinking: bool) -> Event {
    match is_thinking {
        true => Event::ReasoningDelta(text),
        false => Event::TextDelta(text),
    }
}

fn take_text(data: &mut Map<String, Value>, name: &str) -> Option<Str> {
    match data.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Some(text.into()),
        _ => None,
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}
