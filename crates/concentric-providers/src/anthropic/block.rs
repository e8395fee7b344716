//! A content block of a response that is being received.

use super::wire::Delta;
use crate::{
    api::Answer,
    calls::{Calls, Piece},
    lenient::{Count, Text},
};
use concentric_core::{Error, Event, Executor, Part, PartEnd, PartKind, ProviderData, Str};
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
    Text {
        has_content: bool,
    },
    Thinking {
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
            "text" => {
                data.remove("type");
                let text = take_text(&mut data, "text");
                let has_content = text.is_some();
                answer.events.extend(text.map(Event::TextDelta));
                Kind::Text { has_content }
            }
            "thinking" => {
                data.remove("type");
                let text = take_text(&mut data, "thinking");
                let has_content = text.is_some();
                answer.events.extend(text.map(Event::ReasoningDelta));
                Kind::Thinking { has_content }
            }
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let executor = if type_ == "tool_use" {
                    data.remove("type");
                    Executor::Loop
                } else {
                    Executor::Provider
                };
                let (id, name) = (take_text(&mut data, "id"), take_text(&mut data, "name"));
                let begun_with = match data.remove("input") {
                    // Used only if no delta with arguments arrives.
                    None | Some(Value::Null) => Some("{}".to_owned()),
                    Some(Value::String(text)) if !text.is_empty() => Some(text),
                    Some(Value::String(_)) => Some("{}".to_owned()),
                    Some(input) => Some(input.to_string()),
                };
                let piece = Piece {
                    index: Some(number),
                    id: id.as_deref(),
                    name: name.as_deref(),
                    arguments: "",
                };
                let taken = calls.piece(&piece, answer);
                taken.map_err(|conflict| conflict.error(answer))?;
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
        delta: Delta<'_>,
        calls: &mut Calls,
        answer: &mut Answer,
    ) -> Result<(), Error> {
        match &mut self.kind {
            Kind::Text { has_content } => {
                if let Some(text) = delta.text.into_filled() {
                    *has_content = true;
                    answer.emit(Event::TextDelta(text));
                }
                if let Some(citation) = delta.citation {
                    answer.changed();
                    self.cite(*citation);
                }
            }
            Kind::Thinking { has_content } => {
                if let Some(text) = delta.thinking.into_filled() {
                    *has_content = true;
                    answer.emit(Event::ReasoningDelta(text));
                }
                if let Text::Borrowed(_) | Text::Owned(_) = delta.signature {
                    let signature = delta.signature.as_str().unwrap_or_default();
                    let known = self.data.get("signature").and_then(Value::as_str);
                    answer.changed |= !signature.is_empty() && known != Some(signature);
                    self.data.insert("signature".to_owned(), signature.into());
                }
            }
            Kind::Call { begun_with, .. } => {
                if let Some(arguments) = delta.partial_json.filled() {
                    *begun_with = None;
                    append(self.number, arguments, calls, answer)?;
                }
            }
            Kind::Opaque => {
                let fields = [
                    ("content", delta.content),
                    ("encrypted_content", delta.encrypted_content),
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
            Kind::Text { has_content } => {
                let data = self.data(answer);
                if has_content {
                    // Also emitted without data, so that a following text is a separate part.
                    answer.emit(Event::PartEnd(Box::new(PartEnd::new(data))));
                } else if data.is_some() {
                    part(PartKind::Text(Str::default()), data, answer);
                } else {
                    return Ok(Ended::Nothing);
                }
            }
            Kind::Thinking { has_content } => {
                let data = self.data(answer);
                if has_content {
                    answer.emit(Event::PartEnd(Box::new(PartEnd::new(data))));
                } else if data.is_some() {
                    // The service hides this reasoning, but requires its signature in later
                    // requests.
                    part(PartKind::Reasoning(Str::default()), data, answer);
                } else {
                    return Ok(Ended::Nothing);
                }
            }
            Kind::Call {
                executor,
                ref mut begun_with,
            } => {
                if let Some(arguments) = begun_with.take() {
                    append(self.number, &arguments, calls, answer)?;
                }
                if executor == Executor::Loop {
                    return Ok(Ended::Call(self.number, self.data));
                }
                if let Some(data) = self.data(answer) {
                    calls.keep(self.number, executor, data);
                }
                // The provider executes this call, and its result is a separate block.
                let settled = calls.settle(self.number, answer);
                settled.map_err(|conflict| conflict.error(answer))?;
            }
            Kind::Opaque if self.data.is_empty() => return Ok(Ended::Nothing),
            Kind::Opaque => {
                let data = ProviderData::new(answer.provider.clone(), Value::Object(self.data));
                part(PartKind::Provider(data), None, answer);
            }
        }
        Ok(Ended::Part)
    }

    fn data(&mut self, answer: &Answer) -> Option<Arc<ProviderData>> {
        let data = std::mem::take(&mut self.data);
        let wanted = !data.is_empty();
        wanted.then(|| Arc::new(ProviderData::new(answer.provider.clone(), data.into())))
    }

    /// The model that continues the response, if the service switches to a fallback.
    pub(super) fn fallback_model(&self) -> Option<&str> {
        let fallback = self.data.get("type").and_then(Value::as_str) == Some("fallback");
        let model = self.data.get("to")?.get("model")?.as_str();
        model.filter(|_| fallback)
    }
}

fn append(
    number: u64,
    arguments: &str,
    calls: &mut Calls,
    answer: &mut Answer,
) -> Result<(), Error> {
    let piece = Piece {
        index: Some(number),
        id: None,
        name: None,
        arguments,
    };
    let taken = calls.piece(&piece, answer);
    taken.map_err(|conflict| conflict.error(answer))
}

fn part(kind: PartKind, data: Option<Arc<ProviderData>>, answer: &mut Answer) {
    let part = Part::new(kind).with_provider_data(data);
    answer.emit(Event::Part(Box::new(part)));
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
