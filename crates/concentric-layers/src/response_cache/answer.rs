//! Stored answers: how they are recorded and replayed.

use crate::joined::Joined;
use concentric_core::{
    CallId, Context, Event, Finish, FinishReason, Outcome, PartKind, ResponseHead, Str, Usage,
};
use std::{io, sync::Arc, time::Duration};

/// A complete answer.
pub(super) struct Stored {
    pub(super) head: ResponseHead,
    pub(super) usage: Usage,
    // When the process received the answer, and its age then.
    at: Duration,
    aged: Duration,
    pub(super) bytes: usize,
    events: Vec<Event>,
    finish: Finish,
}

/// The parts of an answer as they are stored: provider, model, tools, usage, events and finish.
type Parts = (
    Option<Str>,
    Option<Str>,
    Option<Vec<Str>>,
    Usage,
    Vec<Event>,
    Finish,
);

impl Stored {
    /// The time since the answer was stored.
    pub(super) fn age(&self, now: Duration) -> Duration {
        self.aged.saturating_add(now.saturating_sub(self.at))
    }

    /// Returns the answer at `now`, when it has this age.
    pub(super) const fn with_age(mut self, age: Duration, now: Duration) -> Self {
        (self.at, self.aged) = (now, age);
        self
    }

    /// The answer for a store.
    pub(super) fn to_json(&self) -> Option<Vec<u8>> {
        let head = &self.head;
        let tools = head.tools.as_deref();
        let parts = (
            &head.provider,
            &head.model,
            tools,
            &self.usage,
            &self.events,
            &self.finish,
        );
        serde_json::to_vec(&parts).ok()
    }

    /// Reads the answer of a store; `None` if it cannot be read, or if an answer like it would not be stored.
    pub(super) fn from_json(json: &[u8], max_bytes: usize, with_calls: bool) -> Option<Self> {
        let (provider, model, tools, usage, events, finish): Parts =
            serde_json::from_slice(json).ok()?;
        let mut head = ResponseHead::default();
        (head.provider, head.model, head.tools) = (provider, model, tools.map(Arc::from));
        // Another process may store answers with tool calls, or larger ones.
        let mut recorder = Recorder::new(&head, max_bytes, with_calls);
        if !events.iter().all(|event| recorder.push(event)) {
            return None;
        }
        let stored = recorder.finish(&finish, Duration::ZERO)?;
        Some(Self { usage, ..stored })
    }
}

/// The approximate size of the content of an event in bytes.
pub(super) fn size(event: &Event) -> usize {
    match event {
        Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
            text.len()
        }
        Event::ToolCallDelta(delta) => delta.arguments.len(),
        other => {
            let mut length = Length(0);
            match serde_json::to_writer(&mut length, other) {
                Ok(()) => length.0,
                Err(_) => usize::MAX,
            }
        }
    }
}

/// A writer that only counts.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Records an answer with its deltas joined, as long as it can be stored.
pub(super) struct Recorder {
    head: ResponseHead,
    events: Joined,
    bytes: usize,
    max_bytes: usize,
    with_calls: bool,
}

impl Recorder {
    pub(super) fn new(head: &ResponseHead, max_bytes: usize, with_calls: bool) -> Self {
        let mut head = head.clone();
        // The ids are of the call that makes the answer, and a hit makes none.
        (head.id, head.request_id) = (None, None);
        Self {
            head,
            events: Joined::default(),
            bytes: 0,
            max_bytes,
            with_calls,
        }
    }

    /// Adds an event before the finish. Returns whether the answer can still be stored.
    pub(super) fn push(&mut self, event: &Event) -> bool {
        self.bytes = self.bytes.saturating_add(size(event));
        let is_stored = match event {
            Event::TextDelta(_) | Event::ReasoningDelta(_) | Event::PartEnd(_) => true,
            Event::Part(part) => match part.kind {
                PartKind::Refusal(_) => false,
                PartKind::ToolCall(_) | PartKind::ToolResult(_) => self.with_calls,
                _ => true,
            },
            Event::ToolCallStart(_) | Event::ToolCallDelta(_) | Event::ToolCall(_) => {
                self.with_calls
            }
            // Refusals, and events of loops and other layers.
            _ => false,
        };
        if !is_stored || self.bytes > self.max_bytes {
            return false;
        }
        self.events.push(event);
        true
    }

    /// The answer, if it is complete and of use for another request.
    pub(super) fn finish(self, finish: &Finish, at: Duration) -> Option<Stored> {
        let events = self.events.into_events();
        let is_complete = match finish.reason {
            FinishReason::Stop => true,
            FinishReason::ToolCalls => self.with_calls,
            _ => false,
        };
        let is_of_model = finish.transcript.is_none() && finish.state.is_none();
        if !is_complete || !is_of_model || finish.outcome != Outcome::Completed || events.is_empty()
        {
            return None;
        }
        let mut free = finish.clone();
        free.usage = NONE;
        Some(Stored {
            head: self.head,
            usage: finish.usage,
            at,
            aged: Duration::ZERO,
            bytes: self.bytes,
            events,
            finish: free,
        })
    }
}

/// The tokens of a request that makes no call.
pub(super) const NONE: Usage = Usage::new(0, 0);

/// The events of a stored answer, for one request.
pub(super) struct Replay {
    stored: Arc<Stored>,
    at: usize,
    context: Context,
    // Each stored id of a call, and its replacement.
    ids: Vec<(CallId, CallId)>,
}

impl Replay {
    pub(super) const fn new(stored: Arc<Stored>, context: Context) -> Self {
        Self {
            stored,
            at: 0,
            context,
            ids: Vec::new(),
        }
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        let stored = Arc::clone(&self.stored);
        let event = match stored.events.get(self.at) {
            Some(event) => self.renamed(event.clone()),
            None if self.at == stored.events.len() => {
                Event::Finish(Box::new(stored.finish.clone()))
            }
            None => return None,
        };
        self.at += 1;
        Some(event)
    }

    pub(super) fn remaining(&self) -> usize {
        (self.stored.events.len() + 1).saturating_sub(self.at)
    }

    /// Replaces the ids of calls, which are unique within a run.
    fn renamed(&mut self, mut event: Event) -> Event {
        match &mut event {
            Event::ToolCallStart(start) => start.id = self.id(&start.id),
            Event::ToolCall(call) => call.call.id = self.id(&call.call.id),
            Event::Part(part) => match &mut part.kind {
                PartKind::ToolCall(call) => call.id = self.id(&call.id),
                PartKind::ToolResult(result) => result.call_id = self.id(&result.call_id),
                _ => {}
            },
            _ => {}
        }
        event
    }

    fn id(&mut self, stored: &CallId) -> CallId {
        if let Some((_, id)) = self.ids.iter().find(|(old, _)| old == stored) {
            return id.clone();
        }
        let id = CallId::new(self.context.new_id("call_"));
        self.ids.push((stored.clone(), id.clone()));
        id
    }
}
