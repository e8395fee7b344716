//! The texts of the events of one run.

use super::{
    Edit, Parts,
    layer::Options,
    scan::{Released, Scan},
};
use concentric_core::{CallId, Error, ErrorKind, Event, RunId, Str, SubAgentEvent, ToolCallStart};
use std::collections::VecDeque;

/// The held events of a run.
#[derive(Default)]
pub(super) struct Lane {
    // The kind of the open part, and the text of it that is held.
    open: Parts,
    scan: Scan,
    // Whether the text is typed, and is held until the part ends.
    is_typed: bool,
    typed: String,
    // Calls that the model is writing: the start, and whether arguments followed it.
    calls: Vec<(ToolCallStart, bool)>,
    nested: Vec<Nested>,
}

/// The events of a nested run.
struct Nested {
    run_id: RunId,
    agent: Option<Str>,
    call_id: Option<CallId>,
    lane: Lane,
}

impl Lane {
    pub(super) fn new(is_typed: bool) -> Self {
        Self {
            is_typed,
            ..Self::default()
        }
    }

    /// Edits an event, and adds to `out` what is released before it. Returns whether the event follows.
    ///
    /// # Errors
    ///
    /// A rule blocks a text. Texts before it have been released.
    // Inlined always: for text that is not covered, it is a comparison.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        options: &Options,
        event: &mut Event,
        out: &mut VecDeque<Event>,
    ) -> Result<bool, Error> {
        let (kind, text) = match event {
            Event::TextDelta(text) => (Parts::TEXT, text),
            Event::ReasoningDelta(text) => (Parts::REASONING, text),
            Event::RefusalDelta(text) => (Parts::REFUSAL, text),
            event => return self.take_other(options, event, out),
        };
        if self.open == kind && !options.output.contains(kind) {
            return Ok(true);
        }
        self.delta(options, kind, text, out)
    }

    fn delta(
        &mut self,
        options: &Options,
        kind: Parts,
        text: &mut Str,
        out: &mut VecDeque<Event>,
    ) -> Result<bool, Error> {
        if self.open != kind {
            self.end_part(options, out)?;
            self.open = kind;
        }
        if !options.output.contains(kind) {
            return Ok(true);
        }
        if self.is_typed && kind == Parts::TEXT {
            if self.typed.len().saturating_add(text.len()) > options.limit {
                let message =
                    "the typed answer exceeded the limit of held bytes; raise `GuardLayer::limit`";
                return Err(Error::new(ErrorKind::TooLarge, message));
            }
            self.typed.push_str(text);
            return Ok(false);
        }
        match self.scan.push(&options.rules, text) {
            None => Ok(true),
            Some(released) => release(options, kind, released, out).map(|()| false),
        }
    }

    /// Ends the open part, and returns whether its text was changed.
    fn end_part(&mut self, options: &Options, out: &mut VecDeque<Event>) -> Result<bool, Error> {
        let kind = std::mem::take(&mut self.open);
        if !self.typed.is_empty() {
            let text = std::mem::take(&mut self.typed);
            let mut edit = Edit::new(&options.rules, options.output);
            let by = edit.json(&text, kind);
            let is_changed = by.is_some();
            options.report(edit)?;
            out.push_back(delta(kind, by.unwrap_or(text).into()));
            return Ok(is_changed);
        }
        let released = self.scan.end(&options.rules);
        let is_changed = released.is_changed;
        release(options, kind, released, out)?;
        Ok(is_changed)
    }

    /// Releases all that is held, at the end of the body.
    pub(super) fn end(
        &mut self,
        options: &Options,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Error> {
        self.end_part(options, out)?;
        self.calls.clear();
        self.end_nested(options, None, out)
    }

    /// Ends the nested runs, or those of one call.
    fn end_nested(
        &mut self,
        options: &Options,
        call: Option<&CallId>,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Error> {
        let mut ended = Vec::new();
        let is_ended = |nested: &mut Nested| call.is_none() || nested.call_id.as_ref() == call;
        ended.extend(self.nested.extract_if(.., is_ended));
        for mut nested in ended {
            let mut events = VecDeque::new();
            let result = nested.lane.end(options, &mut events);
            out.extend(events.into_iter().map(|event| nested.event(event)));
            result?;
        }
        Ok(())
    }

    #[inline(never)]
    fn take_other(
        &mut self,
        options: &Options,
        event: &mut Event,
        out: &mut VecDeque<Event>,
    ) -> Result<bool, Error> {
        let mut edit = Edit::new(&options.rules, options.output);
        let holds_calls = options.output.contains(Parts::ARGUMENTS);
        match event {
            Event::PartEnd(end) => {
                if self.end_part(options, out)? {
                    // It may be a signature of the text, or repeat it.
                    end.provider_data = None;
                }
                edit.provider_data(&mut end.provider_data);
            }
            Event::Part(part) => {
                self.end_part(options, out)?;
                if edit.part(part, Parts::TEXT).is_none() {
                    return options.report(edit).map(|()| false);
                }
            }
            // A preview does not end the text before it, which may continue.
            Event::ToolCallStart(start)
                if holds_calls || self.scan.holds() || !self.typed.is_empty() =>
            {
                self.calls.push(((**start).clone(), false));
                return Ok(false);
            }
            Event::ToolCallDelta(delta) => {
                let mut calls = self.calls.iter_mut();
                let call = calls.find(|(start, _)| start.index == delta.index);
                let is_held = holds_calls || call.is_some();
                if let Some((_, has_arguments)) = call {
                    *has_arguments = true;
                }
                if is_held {
                    return Ok(false);
                }
            }
            Event::ToolCall(call) => {
                self.end_part(options, out)?;
                edit.call(&mut call.call);
                edit.provider_data(&mut call.provider_data);
                options.report(edit)?;
                let position = self
                    .calls
                    .iter()
                    .position(|(start, _)| start.id == call.call.id);
                if let Some((mut start, has_arguments)) = position.map(|at| self.calls.remove(at)) {
                    let index = start.index;
                    start.name = call.call.name.clone();
                    out.push_back(Event::ToolCallStart(Box::new(start)));
                    if has_arguments {
                        let arguments = call.call.arguments.as_str();
                        let delta = concentric_core::ToolCallDelta::new(index, arguments);
                        out.push_back(Event::ToolCallDelta(delta));
                    }
                }
                return Ok(true);
            }
            Event::ToolResult(result) => {
                self.end_part(options, out)?;
                self.end_nested(options, Some(&result.call_id), out)?;
                edit.result(result);
            }
            Event::State(state) => {
                edit.shared(state, Parts::CUSTOM);
            }
            // Whoever replies to an interrupt decides on the exact arguments.
            Event::Custom(custom) if custom.name != "interrupt" => {
                edit.value(&mut custom.value, Parts::CUSTOM, true);
            }
            Event::SubAgent(nested) => return self.take_nested(options, nested, out),
            Event::StepStart(_) => self.end(options, out)?,
            Event::StepFinish(step) => {
                self.end(options, out)?;
                edit.reason(&mut step.reason);
            }
            Event::Reset => {
                self.open = Parts::NONE;
                self.scan.clear();
                self.typed.clear();
                self.calls.clear();
            }
            Event::TranscriptReplaced(transcript) => {
                *transcript = edit.conversation(transcript);
            }
            Event::Finish(finish) => {
                self.end(options, out)?;
                edit.finish(finish);
            }
            _ => {}
        }
        options.report(edit).map(|()| true)
    }

    fn take_nested(
        &mut self,
        options: &Options,
        event: &mut SubAgentEvent,
        out: &mut VecDeque<Event>,
    ) -> Result<bool, Error> {
        let known = self
            .nested
            .iter()
            .position(|nested| nested.run_id == event.run_id);
        let at = known.unwrap_or(self.nested.len());
        if known.is_none() {
            self.nested.push(Nested {
                run_id: event.run_id.clone(),
                agent: event.agent.clone(),
                call_id: event.call_id.clone(),
                lane: Self::default(),
            });
        }
        let Some(nested) = self.nested.get_mut(at) else {
            return Ok(true);
        };
        let mut events = VecDeque::new();
        let result = nested.lane.take(options, &mut event.event, &mut events);
        out.extend(events.into_iter().map(|event| nested.event(event)));
        if event.event.is_finish() {
            self.nested.remove(at);
        }
        result
    }
}

impl Nested {
    fn event(&self, event: Event) -> Event {
        let nested = SubAgentEvent::new(
            self.run_id.clone(),
            self.agent.clone(),
            self.call_id.clone(),
            event,
        );
        Event::SubAgent(Box::new(nested))
    }
}

fn release(
    options: &Options,
    kind: Parts,
    released: Released,
    out: &mut VecDeque<Event>,
) -> Result<(), Error> {
    if !released.text.is_empty() {
        out.push_back(delta(kind, released.text));
    }
    if released.matches.is_empty() {
        return Ok(());
    }
    let mut edit = Edit::new(&options.rules, options.output);
    let found = released.matches.iter();
    edit.found
        .extend(found.map(|found| (found.rule, kind, found.len)));
    edit.is_blocked = released.is_blocked;
    options.report(edit)
}

fn delta(kind: Parts, text: Str) -> Event {
    match kind {
        Parts::REASONING => Event::ReasoningDelta(text),
        Parts::REFUSAL => Event::RefusalDelta(text),
        _ => Event::TextDelta(text),
    }
}
