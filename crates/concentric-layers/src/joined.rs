//! Recorded events, with adjacent deltas joined.

use concentric_core::{Event, Str, ToolCallDelta};

/// Events in their order; adjacent deltas of one kind are one.
#[derive(Default)]
pub(crate) struct Joined {
    events: Vec<Event>,
    open: Option<(Delta, String)>,
}

/// The kind of the deltas that are being joined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delta {
    Text,
    Reasoning,
    Refusal,
    Call(u32),
}

impl Joined {
    pub(crate) fn push(&mut self, event: &Event) {
        let (kind, text) = match event {
            Event::TextDelta(text) => (Delta::Text, text),
            Event::ReasoningDelta(text) => (Delta::Reasoning, text),
            Event::RefusalDelta(text) => (Delta::Refusal, text),
            Event::ToolCallDelta(delta) => (Delta::Call(delta.index), &delta.arguments),
            other => {
                self.close();
                self.events.push(other.clone());
                return;
            }
        };
        match &mut self.open {
            Some((open, joined)) if *open == kind => joined.push_str(text),
            _ => {
                self.close();
                // Most texts grow by many small parts.
                let mut joined = String::with_capacity(text.len().max(256));
                joined.push_str(text);
                self.open = Some((kind, joined));
            }
        }
    }

    pub(crate) fn into_events(mut self) -> Vec<Event> {
        self.close();
        self.events
    }

    fn close(&mut self) {
        let Some((kind, text)) = self.open.take() else {
            return;
        };
        let text = Str::from(text);
        self.events.push(match kind {
            Delta::Text => Event::TextDelta(text),
            Delta::Reasoning => Event::ReasoningDelta(text),
            Delta::Refusal => Event::RefusalDelta(text),
            Delta::Call(index) => Event::ToolCallDelta(ToolCallDelta::new(index, text)),
        });
    }
}
