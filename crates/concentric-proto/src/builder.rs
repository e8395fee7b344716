use crate::{
    event::{Event, ToolCallEvent},
    id::MessageId,
    message::{Author, Message, Part, PartKind, ProviderData, Role, joined},
    response_head::ResponseHead,
    text::Str,
};
use std::sync::Arc;

/// Builds a message from a stream of [`Event`]s.
#[derive(Clone, Debug)]
pub struct MessageBuilder {
    id: Option<MessageId>,
    author: Author,
    parts: Vec<Part>,
    // The number of parts that a reset keeps: those of earlier steps.
    kept: usize,
    // The part that deltas append to.
    open: Open,
    text: Text,
}

/// The text of the open part. A single delta, as from a response that is not streamed, is shared.
#[derive(Clone, Debug)]
enum Text {
    One(Str),
    Many(String),
}

impl Default for Text {
    fn default() -> Self {
        Self::One(Str::default())
    }
}

impl Text {
    fn as_str(&self) -> &str {
        match self {
            Self::One(text) => text,
            Self::Many(text) => text,
        }
    }

    fn push(&mut self, more: &str) {
        match self {
            Self::One(text) => *self = Self::Many([text.as_str(), more].concat()),
            Self::Many(text) => text.push_str(more),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    Text,
    Reasoning,
    Refusal,
}

impl MessageBuilder {
    /// Creates an empty message, authored by the model in `head`.
    pub fn new(head: &ResponseHead) -> Self {
        let author = match (&head.provider, &head.model) {
            (None, None) => Author::Unknown,
            (provider, model) => Author::Model {
                provider: provider.clone().unwrap_or_default(),
                model: model.clone().unwrap_or_default(),
            },
        };
        Self {
            id: None,
            author,
            parts: Vec::new(),
            kept: 0,
            open: Open::Nothing,
            text: Text::default(),
        }
    }

    /// Sets the id of the message.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Appends one event.
    #[inline]
    pub fn push(&mut self, event: &Event) {
        if !self.push_delta(event) {
            self.push_other(event);
        }
    }

    /// Appends `event` if it is text that continues the open part, and returns whether it is.
    // Most events are; this path is inlined into the driver.
    #[inline(always)]
    pub fn push_more(&mut self, event: &Event) -> bool {
        match (event, &mut self.text) {
            (Event::TextDelta(more), Text::Many(text)) if self.open == Open::Text => {
                text.push_str(more);
                true
            }
            _ => false,
        }
    }

    /// Appends `event` if it is a delta of text, reasoning or refusal, and returns whether it is.
    pub fn push_delta(&mut self, event: &Event) -> bool {
        self.push_more(event) || self.push_other_delta(event)
    }

    fn push_other_delta(&mut self, event: &Event) -> bool {
        let (kind, text) = match event {
            Event::TextDelta(text) => (Open::Text, text),
            Event::ReasoningDelta(text) => (Open::Reasoning, text),
            Event::RefusalDelta(text) => (Open::Refusal, text),
            _ => return false,
        };
        if self.open == kind {
            self.text.push(text);
        } else {
            self.close(None);
            self.open = kind;
            self.text = Text::One(text.clone());
        }
        true
    }

    fn push_other(&mut self, event: &Event) {
        match event {
            Event::PartEnd(end) => self.close(end.provider_data.clone()),
            Event::Part(part) => self.part(Part::clone(part)),
            Event::ToolCall(call) => self.push_call(call),
            Event::ToolResult(result) => self.part(
                Part::new(PartKind::ToolResult((**result).clone())).by(Author::Tool {
                    name: result.name.clone(),
                }),
            ),
            Event::StepStart(_) => {
                self.close(None);
                self.kept = self.parts.len();
            }
            Event::Reset => {
                self.parts.truncate(self.kept);
                self.text = Text::default();
                self.open = Open::Nothing;
            }
            _ => {}
        }
    }

    pub(crate) fn push_call(&mut self, event: &ToolCallEvent) {
        self.part(Part {
            kind: PartKind::ToolCall(event.call.clone()),
            author: self.author.clone(),
            provider_data: event.provider_data.clone(),
        });
    }

    fn part(&mut self, part: Part) {
        self.close(None);
        self.add(part);
    }

    #[inline]
    fn add(&mut self, part: Part) {
        // Most messages have one part, and the first growth of a vector makes room for four.
        if self.parts.is_empty() {
            self.parts.reserve_exact(1);
        }
        self.parts.push(part);
    }

    fn close(&mut self, provider_data: Option<Arc<ProviderData>>) {
        let kind = match std::mem::replace(&mut self.open, Open::Nothing) {
            // A provider may sign a part whose content it does not show.
            Open::Nothing if provider_data.is_none() => return,
            Open::Nothing | Open::Text => PartKind::Text,
            Open::Reasoning => PartKind::Reasoning,
            Open::Refusal => PartKind::Refusal,
        };
        let text = match std::mem::take(&mut self.text) {
            Text::One(text) => text,
            Text::Many(text) => text.into(),
        };
        self.add(Part {
            kind: kind(text),
            author: self.author.clone(),
            provider_data,
        });
    }

    /// The final answer so far: the text of the last step, after its last tool result.
    ///
    /// Answers that were rejected and made again in a later step are excluded.
    pub fn answer_text(&self) -> String {
        let mut text = joined(&self.parts, self.answer_start());
        if self.open == Open::Text {
            text.push_str(self.text.as_str());
        }
        text
    }

    /// The index of the first part of the final answer.
    pub fn answer_start(&self) -> usize {
        let is_result = |part: &Part| matches!(part.kind, PartKind::ToolResult(_));
        let last = self.parts.iter().rposition(is_result);
        last.map_or(0, |at| at + 1).max(self.kept)
    }

    /// Returns the message so far.
    pub fn build(mut self) -> Message {
        self.take()
    }

    /// Takes the message out of a builder that is not used again.
    pub(crate) fn take(&mut self) -> Message {
        self.close(None);
        let mut message = Message::new(Role::Assistant, std::mem::take(&mut self.parts));
        message.id = self.id.take();
        message
    }
}
