//! The output of a stream of many parts is that of the whole parts.

use super::{
    Random, cases,
    stream::{delta, finish, guarded, random_rules, secrets, split, tick},
};
use concentric_core::{
    CallId, Event, FinishReason, MessageId, Part, PartEnd, PartKind, ProviderData, RunId,
    StepFinish, StepStart, SubAgentEvent, ToolCallDelta, ToolCallPart, ToolCallStart, ToolOutcome,
    ToolResult, Usage,
};
use concentric_layers::guard::{GuardLayer, Parts, Rules};
use serde_json::json;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

const KINDS: [Parts; 3] = [Parts::TEXT, Parts::REASONING, Parts::REFUSAL];

/// What a consumer sees of one run.
#[derive(Debug, PartialEq)]
enum Seen {
    /// The deltas of a part, joined.
    Deltas(usize, String),
    /// The end of a part, and whether it has its signature.
    End(bool),
    /// A complete part, and whether it has its signature.
    Part(usize, String, bool),
    /// The start of a call: the name.
    Start(String),
    /// The pieces of the arguments, joined.
    Arguments(String),
    /// A call: the name and the arguments.
    Call(String, String),
    Result,
    Step,
    /// The deltas before it, of which the consumer has a part.
    Reset(String),
    Finish,
}

/// The events of one run, as they are seen.
#[derive(Debug, Default)]
struct View(Vec<Seen>);

impl View {
    fn deltas(&mut self, kind: usize, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Seen::Deltas(of, all)) if *of == kind => *all += text,
            _ => self.0.push(Seen::Deltas(kind, text.to_owned())),
        }
    }

    /// What is held of the parts since the last other event is dropped.
    fn reset(&mut self) {
        let is_deltas = |seen: &Seen| matches!(seen, Seen::Deltas(..));
        let start = self.0.iter().rposition(|seen| !is_deltas(seen));
        let dropped = self.0.drain(start.map_or(0, |at| at + 1)..);
        let texts = dropped.map(|seen| match seen {
            Seen::Deltas(_, text) => text,
            _ => String::new(),
        });
        let texts = texts.collect();
        self.0.push(Seen::Reset(texts));
    }

    fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Seen::Arguments(all)) => *all += text,
            _ => self.0.push(Seen::Arguments(text.to_owned())),
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::TextDelta(text) => self.deltas(0, text),
            Event::ReasoningDelta(text) => self.deltas(1, text),
            Event::RefusalDelta(text) => self.deltas(2, text),
            Event::PartEnd(end) => self.0.push(Seen::End(end.provider_data.is_some())),
            Event::Part(part) => {
                let (kind, text) = match &part.kind {
                    PartKind::Text(text) => (0, text),
                    PartKind::Reasoning(text) => (1, text),
                    PartKind::Refusal(text) => (2, text),
                    _ => panic!("{part:?}"),
                };
                let is_signed = part.provider_data.is_some();
                self.0.push(Seen::Part(kind, text.to_string(), is_signed));
            }
            // It may be held, and never become a call.
            Event::ToolCallStart(start) if start.index == PREVIEW => {}
            Event::ToolCallDelta(delta) if delta.index == PREVIEW => {}
            Event::ToolCallStart(start) => self.0.push(Seen::Start(start.name.to_string())),
            Event::ToolCallDelta(delta) => self.arguments(&delta.arguments),
            Event::ToolCall(event) => {
                let (name, arguments) = (&event.call.name, event.call.arguments.as_str());
                self.0
                    .push(Seen::Call(name.to_string(), arguments.to_owned()));
            }
            Event::ToolResult(_) => self.0.push(Seen::Result),
            Event::StepStart(_) | Event::StepFinish(_) => self.0.push(Seen::Step),
            Event::Reset => self.reset(),
            Event::Finish(_) => self.0.push(Seen::Finish),
            _ => {}
        }
    }

    fn is(&self, expected: &Self) -> bool {
        let pairs = || self.0.iter().zip(&expected.0);
        self.0.len() == expected.0.len()
            && pairs().all(|pair| match pair {
                (Seen::Reset(part), Seen::Reset(all)) => all.starts_with(part.as_str()),
                (seen, expected) => seen == expected,
            })
    }
}

/// The index of a call that a model begins within a text, and does not make.
const PREVIEW: u32 = 9;

/// The views of all runs, by their ids.
fn views(events: &[Event]) -> BTreeMap<String, View> {
    let mut views: BTreeMap<String, View> = BTreeMap::new();
    for event in events {
        let (mut run, mut event) = (String::new(), event);
        while let Event::SubAgent(nested) = event {
            run = nested.run_id.as_str().to_owned();
            event = &nested.event;
        }
        views.entry(run).or_default().event(event);
    }
    views
}

/// Makes random runs, and what a consumer should see of them.
struct Maker<'a, F> {
    random: &'a mut Random,
    rules: &'a Rules,
    texts: &'a F,
    output: Parts,
    expected: BTreeMap<String, View>,
    // The numbers of made parts and runs.
    parts: u64,
    runs: usize,
}

impl<F: Fn(&mut Random) -> String> Maker<'_, F> {
    /// The text that is released of `text`.
    fn whole(&self, kind: usize, text: &str) -> String {
        match self.output.contains(KINDS[kind]) {
            true => self.rules.apply(text).into_owned(),
            false => text.to_owned(),
        }
    }

    /// The call that is released of a call.
    fn whole_call(&self, call: &ToolCallPart) -> (String, String) {
        let layer = GuardLayer::new(self.rules.clone()).output(self.output);
        let events = guarded(&layer, vec![Event::tool_call(call.clone())]);
        let [Event::ToolCall(event)] = events.as_slice() else {
            panic!("{events:?}");
        };
        let arguments = event.call.arguments.as_str().to_owned();
        (event.call.name.to_string(), arguments)
    }

    /// Adds some parts of the run `id`, with the other events between them.
    fn parts(&mut self, id: &str, events: &mut VecDeque<Event>) {
        let signature = || Some(Arc::new(ProviderData::new("p", json!(1))));
        let mut view = self.expected.remove(id).unwrap_or_default();
        let mut kind = 0;
        for _ in 0..1 + self.random.below(3) {
            self.parts += 1;
            let text = (self.texts)(self.random);
            let whole = self.whole(kind, &text);
            for piece in split(&text, self.random) {
                events.push_back(delta(kind, piece));
                match self.random.below(16) {
                    0 | 1 => events.push_back(tick()),
                    2 => {
                        let start = ToolCallStart::new(PREVIEW, CallId::new("preview"), "t");
                        events.push_back(Event::ToolCallStart(Box::new(start)));
                        let delta = ToolCallDelta::new(PREVIEW, "{");
                        events.push_back(Event::ToolCallDelta(delta));
                    }
                    _ => {}
                }
            }
            view.deltas(kind, &whole);
            let mut next = self.random.below(3);
            match self.random.below(7) {
                0 => {
                    events.push_back(Event::PartEnd(Box::new(PartEnd::new(signature()))));
                    view.0.push(Seen::End(whole == text));
                }
                1 => {
                    self.parts += 1;
                    let (of, text) = (self.random.below(3), (self.texts)(self.random));
                    let whole = self.whole(of, &text);
                    let mut part = Part::new(match of {
                        0 => PartKind::Text(text.as_str().into()),
                        1 => PartKind::Reasoning(text.as_str().into()),
                        _ => PartKind::Refusal(text.as_str().into()),
                    });
                    part.provider_data = signature();
                    events.push_back(Event::Part(Box::new(part)));
                    let is_signed = whole == text;
                    view.0.push(Seen::Part(of, whole, is_signed));
                }
                2 => self.call(events, &mut view),
                3 => {
                    let outcome = ToolOutcome::done("ok");
                    let result = ToolResult::new(CallId::new("none"), "t", outcome);
                    events.push_back(Event::ToolResult(Box::new(result)));
                    view.0.push(Seen::Result);
                }
                4 => {
                    events.push_back(Event::Reset);
                    view.reset();
                }
                // A part of another kind follows.
                _ => next = (kind + 1 + self.random.below(2)) % 3,
            }
            kind = next;
        }
        self.expected.insert(id.to_owned(), view);
        // So that the next event does not belong to the last part.
        events.push_back(Event::PartEnd(Box::new(PartEnd::new(None))));
        self.expected
            .entry(id.to_owned())
            .or_default()
            .0
            .push(Seen::End(false));
    }

    fn call(&mut self, events: &mut VecDeque<Event>, view: &mut View) {
        self.parts += 1;
        let text = (self.texts)(self.random);
        let arguments = match self.random.below(4) {
            0 => text,
            _ => json!({"a": text, "password": [(self.texts)(self.random), 7]}).to_string(),
        };
        let id = CallId::new("c");
        let name = (self.texts)(self.random);
        let call = ToolCallPart::new(id.clone(), name.as_str(), arguments.as_str());
        let (whole_name, whole) = self.whole_call(&call);
        let is_written = self.random.below(4) > 0;
        if is_written {
            let start = ToolCallStart::new(0, id, name.as_str());
            events.push_back(Event::ToolCallStart(Box::new(start)));
            let pieces = split(&arguments, self.random);
            let pieces = pieces.into_iter().map(|piece| ToolCallDelta::new(0, piece));
            events.extend(pieces.map(Event::ToolCallDelta));
            view.0.push(Seen::Start(whole_name.clone()));
            view.0.push(Seen::Arguments(whole.clone()));
        }
        events.push_back(Event::tool_call(call));
        view.0.push(Seen::Call(whole_name, whole));
    }

    /// A nested run of the call `call`, which may not end itself.
    fn nested(&mut self, depth: usize, call: &str) -> VecDeque<Event> {
        self.runs += 1;
        let id = format!("run-{}", self.runs);
        let mut events = VecDeque::new();
        self.parts(&id, &mut events);
        if self.random.below(2) == 0 {
            // Its last part ends with the call or with the run around it.
            events.pop_back();
            self.expected.get_mut(&id).unwrap().0.pop();
        }
        let mut events = match depth {
            0 => events,
            _ => {
                let inner = self.nested(depth - 1, "inner");
                self.merged(vec![events, inner])
            }
        };
        if self.random.below(2) == 0 {
            events.push_back(finish());
            self.expected.get_mut(&id).unwrap().0.push(Seen::Finish);
        }
        let nested = events.into_iter().map(|event| {
            let call = Some(CallId::new(call));
            let nested = SubAgentEvent::new(RunId::new(&id), None, call, event);
            Event::SubAgent(Box::new(nested))
        });
        nested.collect()
    }

    /// All events, those of each run in their order.
    fn merged(&mut self, mut runs: Vec<VecDeque<Event>>) -> VecDeque<Event> {
        let mut merged = VecDeque::new();
        loop {
            runs.retain(|run| !run.is_empty());
            if runs.is_empty() {
                return merged;
            }
            let at = self.random.below(runs.len());
            merged.extend(runs[at].pop_front());
        }
    }

    /// A run of some steps, with nested runs beside the parts of each.
    fn run(&mut self) -> Vec<Event> {
        // An early end without any content is an error of the future.
        let mut all = vec![tick()];
        let steps = 1 + self.random.below(2);
        for step in 0..u32::try_from(steps).unwrap() {
            let start = StepStart::new(step, MessageId::new("m"));
            all.push(Event::StepStart(Box::new(start)));
            self.expected
                .entry(String::new())
                .or_default()
                .0
                .push(Seen::Step);
            let mut runs = vec![VecDeque::new()];
            self.parts("", &mut runs[0]);
            for at in 0..self.random.below(3) {
                let depth = self.random.below(2);
                runs.push(self.nested(depth, &format!("call-{at}")));
            }
            all.extend(self.merged(runs));
            let view = self.expected.entry(String::new()).or_default();
            for at in 0..self.random.below(3) {
                let id = CallId::new(format!("call-{at}"));
                let result = ToolResult::new(id, "t", ToolOutcome::done("ok"));
                all.push(Event::ToolResult(Box::new(result)));
                view.0.push(Seen::Result);
            }
            let end = StepFinish::new(step, FinishReason::Stop, Usage::default());
            all.push(Event::StepFinish(Box::new(end)));
            view.0.push(Seen::Step);
        }
        // Without a finish, the body ends early.
        if self.random.below(4) > 0 {
            all.push(finish());
            self.expected
                .entry(String::new())
                .or_default()
                .0
                .push(Seen::Finish);
        }
        all
    }
}

// Case F056. `GUARD_CASES=10000000` is the whole bar, of parts.
#[test]
fn a_stream_has_the_output_of_the_whole_text_over_many_parts() {
    let (mut left, mut random) = cases(2_000);
    let secrets = secrets();
    let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
    while left > 0 {
        let (rules, texts) = random_rules(&mut random, &secrets);
        for _ in 0..30 {
            let mut output = Parts::NONE;
            for part in [
                Parts::TEXT,
                Parts::REASONING,
                Parts::REFUSAL,
                Parts::ARGUMENTS,
            ] {
                if random.below(4) > 0 {
                    output = output | part;
                }
            }
            let mut maker = Maker {
                random: &mut random,
                rules: &rules,
                texts: &texts,
                output,
                expected: BTreeMap::new(),
                parts: 0,
                runs: 0,
            };
            let events = maker.run();
            let (expected, parts) = (maker.expected, maker.parts);
            let layer = GuardLayer::new(rules.clone()).input(Parts::NONE);
            let seen = views(&guarded(&layer.output(output), events.clone()));
            // Nothing is seen of a run whose texts are all replaced by the empty text.
            let nothing = View::default();
            let is_known = |run: &String| expected.contains_key(run);
            assert!(seen.keys().all(is_known), "{events:?}");
            for (run, expected) in &expected {
                let seen = seen.get(run).unwrap_or(&nothing);
                assert!(
                    seen.is(expected),
                    "{output:?} {run}: {seen:#?}, not {expected:#?}, of {events:?}"
                );
            }
            left = left.saturating_sub(parts);
            if left == 0 {
                break;
            }
        }
    }
}
