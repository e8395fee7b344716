//! The visible part of a run: the items of an answer.

use std::collections::HashSet;

use bytes::BytesMut;
use concentric_core::{
    Error, ErrorKind, Event, Executor, Finish, FinishReason, Outcome, PartKind, Str, ToolCallPart,
    ToolSpecs, Usage, id::CallId,
};
use serde::de::IgnoredAny;

use super::{approval::Approval, encode::Encode};

/// The maximum size of an answer in bytes: of its text and its calls.
const LIMIT: usize = 32 << 20;

/// The items of an answer so far.
///
/// The calls of a plain model are items as soon as it writes them. A loop may execute or reject a
/// call, or answer it itself, so the calls of an agent become items at the end of the run, if they
/// have no result.
pub(super) struct Answer {
    items: Vec<Item>,
    calls: usize,
    tools: ToolSpecs,
    // The ids of calls that are in use.
    ids: HashSet<Str>,
    size: usize,
    shows_reasoning: bool,
    // The calls that a plain model is writing.
    previews: Vec<Preview>,
    // Whether the events are those of a loop.
    is_agent: bool,
    // The calls of a loop without a result.
    open: Vec<ToolCallPart>,
    // The ids of calls that were changed, and the original ones.
    renamed: Vec<(Str, Str)>,
    // The numbers of items and of open calls before the current step.
    step: (usize, usize),
}

pub(super) enum Item {
    Message(Message),
    Call(Call),
    Approval(Approval),
}

/// The text of one step, or reasoning.
pub(super) struct Message {
    pub(super) is_reasoning: bool,
    /// Whether the message continues the text before the reasoning that precedes it.
    pub(super) is_continued: bool,
    pub(super) parts: Vec<Piece>,
    /// Whether further text of its kind begins another message. The last one may still be cut off by a limit.
    is_whole: bool,
    pub(super) status: Status,
}

/// The status of an item.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// The answer has ended within the item.
    Incomplete,
}

/// A text.
pub(super) struct Piece {
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// The kind of a text.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Text,
    Refusal,
    Reasoning,
}

/// A call that the client executes.
pub(super) struct Call {
    /// The position among the calls.
    pub(super) number: usize,
    pub(super) id: Str,
    pub(super) name: Str,
    pub(super) arguments: String,
    pub(super) status: Status,
}

struct Preview {
    index: u32,
    id: CallId,
    item: usize,
}

/// The end of a run.
pub(super) struct Ending {
    pub(super) reason: Reason,
    pub(super) usage: Usage,
    /// The outcome of a run that a limit or a layer stopped.
    pub(super) stopped: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Reason {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

/// The stream that an answer is written to; `None` if the answer is sent at its end.
pub(super) type Sink<'a> = Option<(&'a mut dyn Encode, &'a mut BytesMut)>;

impl Answer {
    pub(super) fn new(tools: ToolSpecs, ids: HashSet<Str>, shows_reasoning: bool) -> Self {
        Self {
            items: Vec::new(),
            calls: 0,
            tools,
            ids,
            size: 0,
            shows_reasoning,
            previews: Vec::new(),
            is_agent: false,
            open: Vec::new(),
            renamed: Vec::new(),
            step: (0, 0),
        }
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.items.iter().filter_map(|item| match item {
            Item::Call(call) => Some(call),
            Item::Message(_) | Item::Approval(_) => None,
        })
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = &Message> {
        self.items.iter().filter_map(|item| match item {
            Item::Message(message) => Some(message),
            Item::Call(_) | Item::Approval(_) => None,
        })
    }

    /// Adds an event.
    ///
    /// # Errors
    ///
    /// The answer is too large, or the event takes back an item that the stream already has.
    pub(super) fn push(&mut self, event: Event, sink: &mut Sink<'_>) -> Result<(), Error> {
        match event {
            Event::TextDelta(text) => self.text(Kind::Text, &text, sink),
            Event::RefusalDelta(text) => self.text(Kind::Refusal, &text, sink),
            Event::ReasoningDelta(text) => self.text(Kind::Reasoning, &text, sink),
            Event::PartEnd(_) => {
                self.end_reasoning();
                Ok(())
            }
            Event::Part(part) => match &part.kind {
                PartKind::Text(text) => self.text(Kind::Text, text, sink),
                PartKind::Refusal(text) => self.text(Kind::Refusal, text, sink),
                PartKind::Reasoning(text) => {
                    self.text(Kind::Reasoning, text, sink)?;
                    self.end_reasoning();
                    Ok(())
                }
                _ => Ok(()),
            },
            Event::StepStart(_) => {
                self.close_message(Status::Completed, sink);
                self.is_agent = true;
                self.step = (self.items.len(), self.open.len());
                Ok(())
            }
            Event::ToolCallStart(start) => {
                if self.is_agent || self.tools.get(&start.name).is_none() {
                    return Ok(());
                }
                let item = self.start_call(&start.id, &start.name, sink)?;
                let (index, id) = (start.index, start.id.clone());
                self.previews.push(Preview { index, id, item });
                Ok(())
            }
            Event::ToolCallDelta(delta) => {
                let mut previews = self.previews.iter().rev();
                let preview = previews.find(|preview| preview.index == delta.index);
                match preview.map(|preview| preview.item) {
                    Some(item) => self.arguments(item, &delta.arguments, sink),
                    None => Ok(()),
                }
            }
            Event::ToolCall(event) => match event.call.executor {
                Executor::Loop | Executor::Client if self.is_agent => {
                    self.open.push(event.call);
                    Ok(())
                }
                Executor::Loop | Executor::Client => self.call(&event.call, sink),
                _ => Ok(()),
            },
            Event::ToolResult(result) => {
                self.open.retain(|call| call.id != result.call_id);
                self.step.1 = self.step.1.min(self.open.len());
                Ok(())
            }
            Event::Reset => self.reset(sink),
            _ => Ok(()),
        }
    }

    /// The ids of calls that differ from those of the run, and the latter.
    pub(super) fn renamed(&self) -> &[(Str, Str)] {
        &self.renamed
    }

    /// Ends the answer, with the `approvals` that the run waits for.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub(super) fn end(
        &mut self,
        finish: &Finish,
        approvals: Vec<Approval>,
        sink: &mut Sink<'_>,
    ) -> Result<Ending, Error> {
        let stopped = match finish.outcome {
            Outcome::Halted { .. } => Some("halted"),
            Outcome::StepLimit => Some("step_limit"),
            Outcome::CallLimit => Some("call_limit"),
            _ => None,
        };
        for call in std::mem::take(&mut self.open) {
            let is_clients = call.executor == Executor::Client;
            // Calls that a limit has kept from running are not for the client.
            if is_clients || finish.outcome == Outcome::Completed {
                self.call(&call, sink)?;
            }
        }
        let has_calls = self.calls > 0;
        let reason = match &finish.reason {
            FinishReason::Length => Reason::Length,
            FinishReason::ContentFilter => Reason::ContentFilter,
            _ if has_calls && stopped.is_none() => Reason::ToolCalls,
            _ => Reason::Stop,
        };
        let status = match reason {
            Reason::Length | Reason::ContentFilter => Status::Incomplete,
            Reason::Stop | Reason::ToolCalls => Status::Completed,
        };
        self.close_message(status, sink);
        for preview in std::mem::take(&mut self.previews) {
            self.end_call(preview.item, Status::Incomplete, sink);
        }
        for approval in approvals {
            self.grow(approval.arguments.len())?;
            if let Some((encoder, out)) = sink {
                encoder.approval(self.items.len(), &approval, out);
            }
            self.items.push(Item::Approval(approval));
        }
        Ok(Ending {
            reason,
            usage: finish.usage,
            stopped,
        })
    }

    fn text(&mut self, kind: Kind, text: &str, sink: &mut Sink<'_>) -> Result<(), Error> {
        let is_reasoning = kind == Kind::Reasoning;
        if text.is_empty() || (is_reasoning && !self.shows_reasoning) {
            return Ok(());
        }
        self.grow(text.len())?;
        let has_open = match self.items.last() {
            Some(Item::Message(last)) => {
                last.is_open() && !last.is_whole && last.is_reasoning == is_reasoning
            }
            _ => false,
        };
        if !has_open {
            self.close_message(Status::Completed, sink);
            let message = Message {
                is_reasoning,
                is_continued: !is_reasoning && self.has_text_before_reasoning(),
                parts: Vec::new(),
                is_whole: false,
                status: Status::InProgress,
            };
            if let Some((encoder, out)) = sink {
                encoder.message_start(self.items.len(), &message, out);
            }
            self.items.push(Item::Message(message));
        }
        let item = self.items.len().saturating_sub(1);
        let Some(Item::Message(Message { parts, .. })) = self.items.last_mut() else {
            return Ok(());
        };
        if parts.last().is_none_or(|piece| piece.kind != kind) {
            if let Some((encoder, out)) = sink {
                if let Some(last) = parts.last() {
                    encoder.piece_end(item, parts.len() - 1, last, out);
                }
                encoder.piece_start(item, parts.len(), kind, out);
            }
            // Most texts grow by many small parts.
            let text = String::with_capacity(text.len().max(256));
            parts.push(Piece { kind, text });
        }
        if let Some((encoder, out)) = sink {
            encoder.delta(item, parts.len() - 1, kind, text, out);
        }
        if let Some(piece) = parts.last_mut() {
            piece.text.push_str(text);
        }
        Ok(())
    }

    /// Whether the last item of the current step that is not reasoning is text.
    fn has_text_before_reasoning(&self) -> bool {
        let items = self.items.get(self.step.0..).unwrap_or_default();
        let last = items.iter().rev().find(|item| match item {
            Item::Message(message) => !message.is_reasoning,
            Item::Call(_) | Item::Approval(_) => true,
        });
        matches!(last, Some(Item::Message(_)))
    }

    /// Lets further reasoning begin another message.
    fn end_reasoning(&mut self) {
        if let Some(Item::Message(last)) = self.items.last_mut() {
            last.is_whole |= last.is_reasoning;
        }
    }

    /// Ends the open message.
    fn close_message(&mut self, status: Status, sink: &mut Sink<'_>) {
        let item = self.items.len().saturating_sub(1);
        let Some(Item::Message(message)) = self.items.last_mut() else {
            return;
        };
        if !message.is_open() {
            return;
        }
        message.status = status;
        if let Some((encoder, out)) = sink {
            if let Some(last) = message.parts.last() {
                encoder.piece_end(item, message.parts.len() - 1, last, out);
            }
            encoder.message_end(item, message, out);
        }
    }

    /// Adds a complete call, or completes its preview.
    fn call(&mut self, call: &ToolCallPart, sink: &mut Sink<'_>) -> Result<(), Error> {
        // A limit has cut off JSON that does not end. A model may leave the arguments empty.
        let arguments = call.arguments.as_str().trim();
        let status = match serde_json::from_str::<IgnoredAny>(arguments) {
            Err(error) if error.is_eof() && !arguments.is_empty() => Status::Incomplete,
            _ => Status::Completed,
        };
        let mut previews = self.previews.iter();
        let item = match previews.position(|preview| preview.id == call.id) {
            Some(at) => self.previews.swap_remove(at).item,
            None => self.start_call(&call.id, &call.name, sink)?,
        };
        let rest = match self.items.get(item) {
            Some(Item::Call(preview)) if preview.name == call.name => call
                .arguments
                .as_str()
                .strip_prefix(preview.arguments.as_str()),
            _ => None,
        };
        let Some(rest) = rest else {
            // Without a stream, the client has not read the preview.
            if sink.is_some() {
                return Err(replaced());
            }
            if let Some(Item::Call(preview)) = self.items.get_mut(item) {
                preview.name = call.name.clone();
                preview.arguments = call.arguments.as_str().to_owned();
                preview.status = status;
            }
            return self.grow(call.arguments.as_str().len());
        };
        self.arguments(item, rest, sink)?;
        self.end_call(item, status, sink);
        Ok(())
    }

    fn end_call(&mut self, item: usize, status: Status, sink: &mut Sink<'_>) {
        if let Some(Item::Call(call)) = self.items.get_mut(item) {
            call.status = status;
            if let Some((encoder, out)) = sink {
                encoder.call_end(item, call, out);
            }
        }
    }

    fn start_call(&mut self, id: &CallId, name: &Str, sink: &mut Sink<'_>) -> Result<usize, Error> {
        self.grow(name.len())?;
        self.close_message(Status::Completed, sink);
        let call = Call {
            number: self.calls,
            id: self.unused_id(id),
            name: name.clone(),
            arguments: String::new(),
            status: Status::InProgress,
        };
        let item = self.items.len();
        if let Some((encoder, out)) = sink {
            encoder.call_start(item, &call, out);
        }
        self.items.push(Item::Call(call));
        self.calls += 1;
        Ok(item)
    }

    fn arguments(&mut self, item: usize, more: &str, sink: &mut Sink<'_>) -> Result<(), Error> {
        if more.is_empty() {
            return Ok(());
        }
        self.grow(more.len())?;
        if let Some(Item::Call(call)) = self.items.get_mut(item) {
            if let Some((encoder, out)) = sink {
                encoder.call_delta(item, call, more, out);
            }
            call.arguments.push_str(more);
        }
        Ok(())
    }

    /// Returns an id that no call of the conversation has: `id`, with a number appended if necessary.
    fn unused_id(&mut self, id: &CallId) -> Str {
        let mut unused = Str::from(id.as_str());
        let mut n: u64 = 1;
        while !self.ids.insert(unused.clone()) {
            n = n.saturating_add(1);
            unused = format!("{id}_{n}").into();
        }
        if n > 1 {
            self.renamed.push((unused.clone(), id.as_str().into()));
        }
        unused
    }

    /// Discards the items of the current step.
    fn reset(&mut self, sink: &mut Sink<'_>) -> Result<(), Error> {
        let (items, open) = self.step;
        if sink.is_some() && self.items.len() > items {
            return Err(replaced());
        }
        self.items.truncate(items);
        self.calls = self.calls().count();
        self.open.truncate(open);
        self.previews.clear();
        Ok(())
    }

    fn grow(&mut self, more: usize) -> Result<(), Error> {
        self.size = self.size.saturating_add(more);
        if self.size > LIMIT {
            let message = format!("the answer is larger than {LIMIT} bytes");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        Ok(())
    }
}

/// The error for a stream whose client has read a part of the answer that is no longer valid.
fn replaced() -> Error {
    let message = "a part of the answer was replaced after it was sent";
    Error::new(ErrorKind::Protocol, message)
}

impl Message {
    fn is_open(&self) -> bool {
        self.status == Status::InProgress
    }
}

impl Status {
    /// The value of `status`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

impl Reason {
    /// The value of `finish_reason`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }
}
