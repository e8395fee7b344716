mod calls;
mod convert;
mod snapshot;

pub(super) use self::convert::status;
pub(in crate::ag_ui) use self::snapshot::{WireIds, push_turn};

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use bytes::BytesMut;
use concentric_core::{
    CallId, Context, Event, Executor, Media, MessageId, OpenRound, Part, PartKind, Str,
};
use serde_json::{Value, json};

use self::{calls::Call, convert::media_part};
use super::{
    super::{
        encode,
        event::{Attributed, Event as Wire},
    },
    state::{State, Update},
};
use crate::run::{KnownCall, Metadata, RunIds};

/// The stream and ids that all agents of a run share.
pub(super) struct Out {
    pub(super) buffer: BytesMut,
    pub(super) context: Context,
    pub(super) ids: RunIds,
    pub(super) state: State,
}

impl Out {
    pub(super) fn write(&mut self, event: &Wire<'_>) {
        encode::event(event, &mut self.buffer);
    }
}

/// The output of one agent: the run's own, or a sub-agent.
///
/// A lane tracks open messages, calls and steps, and closes them before it opens others and at the
/// end. It ignores events without a context, such as a delta of a call that was not started.
#[derive(Debug)]
pub(super) struct Lane {
    /// The client's id of the sub-agent's run; `None` for the agent itself.
    owner: Option<Str>,
    /// The open message.
    pub(super) open: Open,
    step: Option<Str>,
    /// The base id of this step's messages.
    message_id: Option<Str>,
    /// Whether a text message with this id was sent.
    texted: bool,
    /// The ids of the messages sent since the step began, or since the last reset.
    sent: Vec<Str>,
    /// The ids in `sent`, for lookup.
    sent_ids: HashSet<Str>,
    /// The message ids of the last finished step, whose answer may still be rejected.
    ended: Vec<Str>,

    calls: Vec<Call>,
    /// The number of `calls` that an earlier run made.
    earlier: usize,
    /// The index of the newest call with each id.
    calls_by_id: HashMap<CallId, usize>,
    /// The index of the first call since the step began, or since the last reset.
    turn: usize,
    /// The indexes of the calls that receive deltas, by the call's index in the step.
    previews: HashMap<u32, usize>,
}

/// The open message of a lane.
#[derive(Debug)]
pub(super) enum Open {
    Nothing,
    Text {
        id: Str,
        /// The encoded prefix of each delta.
        head: Vec<u8>,
    },
    Reasoning(Str),
}

impl Lane {
    /// Creates a lane without output, with the calls `known` from earlier runs.
    pub(super) fn new(owner: Option<Str>, known: Vec<KnownCall>) -> Self {
        let mut lane = Self {
            owner,
            open: Open::Nothing,
            step: None,
            message_id: None,
            texted: false,
            sent: Vec::new(),
            sent_ids: HashSet::new(),
            ended: Vec::new(),
            calls: Vec::with_capacity(known.len()),
            earlier: known.len(),
            calls_by_id: HashMap::new(),
            turn: known.len(),
            previews: HashMap::new(),
        };
        for (at, known) in known.into_iter().enumerate() {
            lane.calls_by_id.insert(known.id, at);
            lane.calls.push(Call {
                id: known.wire,
                message: None,
                executor: Executor::Loop,
                open: false,
                shown: true,
                answered: known.answered,
            });
        }
        lane
    }

    /// Writes the protocol events for `event`.
    pub(super) fn event(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::TextDelta(text) | Event::RefusalDelta(text) => self.text(&text, out),
            Event::ReasoningDelta(text) => self.reasoning(&text, out),
            Event::PartEnd(_) => {
                // The text of a step is one message, even if the provider splits it into parts.
                // Each part of reasoning is a message.
                if let Open::Reasoning(_) = self.open {
                    self.close_message(out);
                }
            }
            Event::Part(part) => self.part(*part, out),
            Event::ToolCallStart(start) => self.preview(start.index, &start.id, &start.name, out),
            Event::ToolCallDelta(delta) => self.preview_delta(delta.index, &delta.arguments, out),
            Event::ToolCall(event) => self.tool_call(&event.call, out),
            Event::ToolResult(result) => self.tool_result(&result, out),
            Event::State(state) => self.state(&state, out),
            Event::Custom(custom) => {
                let mut metadata = Metadata::new();
                if let Some(id) = &custom.call_id {
                    metadata.insert("toolCallId".to_owned(), self.wire_id(id).into());
                }
                self.custom(&custom.name, custom.value, metadata, out);
            }
            Event::StepStart(start) => self.step_start(start.step, &start.message_id, out),
            Event::StepFinish(_) => self.step_finish(out),
            Event::Reset => self.reset(out),
            Event::TranscriptReplaced(transcript) => self.replace(&transcript, out),
            // A resumed run looks like any other. Event types added to the core later are not sent
            // until a mapping for them is defined.
            _ => {}
        }
    }

    fn write(&self, event: Wire<'_>, out: &mut Out) {
        match &self.owner {
            None => out.write(&event),
            Some(run) => {
                let subagent_run_id = run;
                let event = Attributed {
                    event,
                    subagent_run_id,
                };
                encode::event(&event, &mut out.buffer);
            }
        }
    }

    // ---- messages ----

    fn text(&mut self, text: &str, out: &mut Out) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Open::Text { .. }) {
            self.close_message(out);
            let mut id = self.step_message(out);
            // A client would append a second text of a step, after a tool call, to the first.
            if std::mem::replace(&mut self.texted, true) {
                id = out.ids.messages.unique(&id);
            }
            self.mark_sent(&id);
            let started = Wire::TextMessageStart {
                message_id: &id,
                role: "assistant",
            };
            self.write(started, out);
            let head = encode::text_message_head(&id, self.owner.as_deref());
            self.open = Open::Text { id, head };
        }
        if let Open::Text { head, .. } = &self.open {
            encode::text_message_more(head, text, &mut out.buffer);
        }
    }

    fn reasoning(&mut self, text: &str, out: &mut Out) {
        if text.is_empty() {
            return;
        }
        let id = match &self.open {
            Open::Reasoning(id) => id.clone(),
            _ => {
                self.close_message(out);
                let wanted = format!("{}~reasoning", self.step_message(out));
                let id = out.ids.messages.unique(&wanted);
                self.mark_sent(&id);
                let message_id = &id;
                self.write(Wire::ReasoningStart { message_id }, out);
                let role = "reasoning";
                self.write(Wire::ReasoningMessageStart { message_id, role }, out);
                self.open = Open::Reasoning(id.clone());
                id
            }
        };
        match self.owner {
            None => encode::reasoning_message_content(&id, text, &mut out.buffer),
            Some(_) => {
                let (message_id, delta) = (&id, text);
                self.write(Wire::ReasoningMessageContent { message_id, delta }, out);
            }
        }
    }

    /// The base id of this step's messages.
    fn step_message(&mut self, out: &mut Out) -> Str {
        match &self.message_id {
            Some(id) => id.clone(),
            None => {
                let wanted = out.context.new_id("msg_");
                let id = out.ids.messages.unique(&wanted);
                self.message_id = Some(id.clone());
                id
            }
        }
    }

    fn mark_sent(&mut self, id: &Str) {
        if self.sent_ids.insert(id.clone()) {
            self.sent.push(id.clone());
        }
    }

    fn close_message(&mut self, out: &mut Out) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Text { id, .. } => self.write(Wire::TextMessageEnd { message_id: &id }, out),
            Open::Reasoning(id) => {
                let message_id = &id;
                self.write(Wire::ReasoningMessageEnd { message_id }, out);
                self.write(Wire::ReasoningEnd { message_id }, out);
            }
        }
    }

    fn part(&mut self, part: Part, out: &mut Out) {
        match part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => self.text(&text, out),
            PartKind::Reasoning(text) => {
                self.reasoning(&text, out);
                self.close_message(out);
            }
            PartKind::ToolCall(call) => self.tool_call(&call, out),
            PartKind::ToolResult(result) => self.tool_result(&result, out),
            PartKind::Image(image) => self.media("image", &image, out),
            PartKind::Audio(audio) => self.media("audio", &audio, out),
            PartKind::File(file) => self.media("document", &file, out),
            // Opaque provider data, which may be confidential.
            _ => {}
        }
    }

    /// Writes the parts of the message of `open` that the client's history lacks, since the stream
    /// of the run that made the calls may have been lost.
    pub(super) fn missed(&mut self, open: &OpenRound, out: &mut Out) {
        let message = open.message();
        let call = |id| self.call(id);
        // A waiting call has no result, so an answered call with its id is of another message.
        let are_others = open
            .waiting()
            .any(|it| call(&it.id).is_some_and(|call| call.answered));
        let known: HashSet<&CallId> = message
            .tool_calls()
            .map(|call| &call.id)
            .filter(|id| !are_others && call(id).is_some())
            .collect();
        let id = message.id.as_ref();
        self.message_id = id.map(|id| match known.is_empty() {
            true => out.ids.messages.unique(id.as_str()),
            // The client has a message with this id.
            false => id.as_str().into(),
        });
        for part in &message.parts {
            let is_missed = match &part.kind {
                PartKind::ToolCall(call) => !known.contains(&call.id),
                _ => known.is_empty(),
            };
            if is_missed {
                self.part(part.clone(), out);
            }
        }
        self.close_message(out);
    }

    /// Writes media as a custom event, since the protocol has no event for media in an answer.
    fn media(&mut self, kind: &str, media: &Media, out: &mut Out) {
        if let Some(value) = media_part(kind, media) {
            self.custom("concentric.part", value, Metadata::new(), out);
        }
    }

    // ---- the rest ----

    fn state(&mut self, state: &Arc<Value>, out: &mut Out) {
        match out.state.update(state) {
            Some(Update::Snapshot) => {
                encode::state_snapshot(state, self.owner.as_deref(), &mut out.buffer);
            }
            Some(Update::Delta(delta)) => self.write(Wire::StateDelta { delta }, out),
            None => {}
        }
    }

    fn custom(&self, name: &str, value: Value, metadata: Metadata, out: &mut Out) {
        let custom = Wire::Custom {
            name,
            value,
            metadata,
        };
        self.write(custom, out);
    }

    /// Closes the open message and open calls, and resets the state of the step.
    fn end_turn(&mut self, out: &mut Out) {
        self.close_message(out);
        // The model began these calls but did not complete them.
        self.withdraw(self.turn, |call| call.open && !call.answered, out);
        self.previews.clear();
        self.turn = self.calls.len();
        self.sent.clear();
        self.sent_ids.clear();
        self.message_id = None;
        self.texted = false;
    }

    fn step_start(&mut self, step: u32, message_id: &MessageId, out: &mut Out) {
        self.step_finish(out);
        self.ended.clear();
        let name = Str::from(format!("step {step}"));
        self.write(Wire::StepStarted { step_name: &name }, out);
        self.step = Some(name);
        self.message_id = Some(out.ids.messages.unique(message_id.as_str()));
    }

    pub(super) fn step_finish(&mut self, out: &mut Out) {
        let sent = std::mem::take(&mut self.sent);
        self.end_turn(out);
        if let Some(name) = self.step.take() {
            self.ended = sent;
            self.write(Wire::StepFinished { step_name: &name }, out);
        }
    }

    /// Invalidates the output of this step: the client gets the ids of the invalid messages.
    fn reset(&mut self, out: &mut Out) {
        self.close_message(out);
        self.withdraw(self.turn, |call| !call.answered, out);
        let sent = match self.step {
            Some(_) => &self.sent,
            // The step has ended before its answer was rejected.
            None => &self.ended,
        };
        let sent: Vec<&str> = sent.iter().map(Str::as_str).collect();
        let value = json!({"messageIds": sent});
        self.custom("concentric.reset", value, Metadata::new(), out);
        // A new message id, since a client would append the next text to the invalid message.
        let again = self.message_id.take();
        self.end_turn(out);
        self.message_id = again.map(|id| out.ids.messages.unique(&id));
    }

    /// Ends the lane. Calls without a result get one, unless the agent waits.
    pub(super) fn close(&mut self, waits: bool, out: &mut Out) {
        self.end_turn(out);
        if !waits {
            let ours = |call: &Call| matches!(call.executor, Executor::Client | Executor::Loop);
            self.withdraw(self.earlier, |call| !call.answered && ours(call), out);
        }
        self.step_finish(out);
    }

    /// The ids of the calls that were not executed, which the client executes.
    pub(super) fn left(&self) -> Vec<String> {
        self.calls
            .iter()
            .skip(self.earlier)
            .filter(|call| {
                !call.answered
                    && !call.open
                    && matches!(call.executor, Executor::Client | Executor::Loop)
            })
            .map(|call| call.id.as_str().to_owned())
            .collect()
    }

    /// The client's id of a call.
    pub(super) fn wire_id<'a>(&'a self, id: &'a CallId) -> &'a str {
        self.call(id).map_or(id.as_str(), |call| call.id.as_str())
    }

    /// The client's id of the message that contains a call.
    pub(super) fn message_of(&self, id: &CallId) -> Option<&str> {
        self.call(id)?.message.as_deref()
    }

    fn call(&self, id: &CallId) -> Option<&Call> {
        self.calls.get(*self.calls_by_id.get(id)?)
    }
}
