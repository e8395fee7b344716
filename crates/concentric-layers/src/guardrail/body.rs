use super::{
    Output, Subject,
    layer::{Guard, OnBlock},
    verdict::{Refused, Verdict},
};
use crate::{
    body::{Passed, body},
    commit::held_bytes,
};
use concentric_core::{Error, ErrorKind, Event, FinishReason, PartKind, RunId, SideEffects, Usage};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

body! {
    /// Response body for [`Guardrail`](super::Guardrail).
    pub struct GuardrailBody<B>(Passed<B, Box<Judged<B>>>);
}

/// An answer that is judged, or the answer in place of a call whose input is not released.
pub(super) struct Judged<B> {
    // `None` once the answer has ended. Boxed, since it is polled before the future moves it into the
    // response.
    inner: Option<Pin<Box<B>>>,
    // Events that may be emitted.
    released: VecDeque<Event>,
    judging: Option<Judging>,
}

/// What is held of an answer that is judged.
struct Judging {
    guard: Arc<Guard>,
    // Without its text.
    subject: Subject,
    // The number of the run's effects before the call.
    effects: u64,
    held: VecDeque<Event>,
    bytes: usize,
    // The texts of the held events, and their number of characters.
    lanes: Vec<Lane>,
    chars: usize,
    verdict: Option<Verdict>,
}

/// The text that a consumer shows in one place: the answer or the reasoning of one run.
struct Lane {
    // The nested run, after those that it is nested in; empty for the run of the call.
    runs: Vec<RunId>,
    is_reasoning: bool,
    // The text of the held events.
    text: String,
    // The end of the text before it, and of that before the last step.
    before: String,
    before_step: String,
}

impl<B> GuardrailBody<B> {
    /// A body that is not judged.
    pub(super) const fn passed(body: B) -> Self {
        let inner = Passed::Inner { body };
        Self { inner }
    }

    pub(super) fn judged(inner: B, guard: Arc<Guard>, subject: Subject) -> Self {
        let judging = Judging {
            guard,
            effects: subject.context.effect_count(),
            subject,
            held: VecDeque::new(),
            bytes: 0,
            lanes: Vec::new(),
            chars: 0,
            verdict: None,
        };
        Self::new(Judged {
            inner: Some(Box::pin(inner)),
            released: VecDeque::new(),
            judging: Some(judging),
        })
    }

    /// The body of a call whose input is not released.
    pub(super) fn refused(refused: Refused, on_block: &OnBlock) -> Result<Self, Error> {
        Ok(Self::new(Judged {
            inner: None,
            released: replacement(refused, on_block)?,
            judging: None,
        }))
    }

    fn new(judged: Judged<B>) -> Self {
        let body = Box::new(judged);
        let inner = Passed::Other { body };
        Self { inner }
    }

    /// The body of an answer that is judged.
    pub(super) fn as_judged(&mut self) -> Option<&mut Judged<B>> {
        match &mut self.inner {
            Passed::Inner { .. } => None,
            Passed::Other { body } => Some(body),
        }
    }
}

/// The events in place of what is not released.
fn replacement(refused: Refused, on_block: &OnBlock) -> Result<VecDeque<Event>, Error> {
    match (refused, on_block) {
        (Refused::Blocked(_), OnBlock::Replace(text)) => {
            let finish = Event::finish(FinishReason::ContentFilter, Usage::default());
            Ok([Event::TextDelta(text.clone()), finish].into())
        }
        (Refused::Blocked(error), OnBlock::Halt) => Err(Error::halted(error.message())),
        (Refused::Blocked(error), OnBlock::Fail) | (Refused::Ended(error), _) => Err(error),
    }
}

impl Judging {
    /// Takes an event, and starts a judgement if it must be made now.
    fn take(&mut self, event: Event) -> Result<(), Error> {
        let (run, inner) = innermost(&event);
        if matches!(inner, Event::Reset) {
            self.take_back(run);
        }
        let must_judge = match (self.guard.output, shown(inner)) {
            (_, None) if self.chars == 0 => false,
            (Some(Output::Windows { .. }), None) => !matches!(
                inner,
                Event::PartEnd(_) | Event::Custom(_) | Event::State(_)
            ),
            (_, None) => event.is_finish(),
            (output, Some((text, is_reasoning))) => {
                self.add(text, is_reasoning, &event);
                match output {
                    Some(Output::Windows { chars, .. }) => self.chars >= chars,
                    _ => false,
                }
            }
        };
        self.bytes = self.bytes.saturating_add(held_bytes(&event));
        if self.bytes > self.guard.limit {
            let message = "the answer exceeded the limit of held bytes before it was judged; raise `GuardrailLayer::limit`";
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        if must_judge {
            let subject = Subject {
                text: self.take_text().into(),
                ..self.subject.clone()
            };
            self.verdict = Some(self.guard.judge(subject));
        }
        if self.chars == 0 && matches!(inner, Event::StepStart(_)) {
            // The calls of the step before have ended.
            self.lanes.retain(|lane| !lane.is_nested_in(run));
            for lane in self.lanes.iter_mut().filter(|lane| lane.is_of(run)) {
                lane.before_step.clone_from(&lane.before);
            }
        }
        self.held.push_back(event);
        Ok(())
    }

    /// Drops the text of the last step of `run`, which consumers discard.
    fn take_back(&mut self, run: Option<&RunId>) {
        let held = std::mem::take(&mut self.held);
        let is_start = |event: &Event| {
            let (of, inner) = innermost(event);
            of == run && matches!(inner, Event::StepStart(_))
        };
        let start = held.iter().rposition(is_start).unwrap_or(0);
        (self.bytes, self.chars) = (0, 0);
        for lane in &mut self.lanes {
            lane.text.clear();
            if lane.is_of(run) {
                lane.before.clone_from(&lane.before_step);
            }
        }
        for (at, event) in held.into_iter().enumerate() {
            let (of, inner) = innermost(&event);
            if let Some((text, is_reasoning)) = shown(inner) {
                if at >= start && of == run {
                    continue;
                }
                self.add(text, is_reasoning, &event);
            }
            self.bytes = self.bytes.saturating_add(held_bytes(&event));
            self.held.push_back(event);
        }
    }

    /// Adds the text of an event to its lane.
    fn add(&mut self, text: &str, is_reasoning: bool, event: &Event) {
        let added = text.chars().count();
        self.chars = self.chars.saturating_add(added);
        let (run, _) = innermost(event);
        let mut lanes = self.lanes.iter_mut();
        match lanes.find(|lane| lane.is_reasoning == is_reasoning && lane.is_of(run)) {
            Some(lane) => lane.text.push_str(text),
            None => self.lanes.push(Lane {
                runs: runs(event),
                is_reasoning,
                text: text.to_owned(),
                before: String::new(),
                before_step: String::new(),
            }),
        }
    }

    /// Takes the text to judge: that of each lane, after the end of the text before it.
    fn take_text(&mut self) -> String {
        let overlap = match self.guard.output {
            Some(Output::Windows { overlap, .. }) => overlap,
            _ => 0,
        };
        self.chars = 0;
        let mut all = String::new();
        for lane in self.lanes.iter_mut().filter(|lane| !lane.text.is_empty()) {
            if !all.is_empty() {
                all.push('\n');
            }
            lane.before.push_str(&lane.text);
            lane.text.clear();
            all.push_str(&lane.before);
            let start = lane.before.char_indices().rev().take(overlap).last();
            let start = start.map_or(lane.before.len(), |(start, _)| start);
            lane.before.drain(..start);
        }
        all
    }

    /// Adds to an error that tools have had effects.
    fn with_effects(&self, error: Error) -> Error {
        if self.subject.context.effect_count() == self.effects {
            return error;
        }
        let effects = error.effects().max(SideEffects::Possible);
        error.with_effects(effects)
    }

    /// Returns whether nothing that is held waits for a verdict.
    fn is_clear(&self) -> bool {
        // Before the first text, and between two windows.
        self.chars == 0 && !matches!(self.guard.output, Some(Output::Whole))
    }

    /// Releases what is held.
    fn release(&mut self, released: &mut VecDeque<Event>) {
        released.append(&mut self.held);
        self.bytes = 0;
    }
}

impl Lane {
    fn is_of(&self, run: Option<&RunId>) -> bool {
        self.runs.last() == run
    }

    fn is_nested_in(&self, run: Option<&RunId>) -> bool {
        match run {
            None => !self.runs.is_empty(),
            Some(run) => self.runs.last() != Some(run) && self.runs.contains(run),
        }
    }
}

/// The event within those of nested runs, and the run that it is of; `None` for the run of the call.
fn innermost(mut event: &Event) -> (Option<&RunId>, &Event) {
    let mut run = None;
    while let Event::SubAgent(nested) = event {
        (run, event) = (Some(&nested.run_id), &nested.event);
    }
    (run, event)
}

/// The nested runs that an event is of, outermost first.
fn runs(mut event: &Event) -> Vec<RunId> {
    let mut runs = Vec::new();
    while let Event::SubAgent(nested) = event {
        runs.push(nested.run_id.clone());
        event = &nested.event;
    }
    runs
}

/// The text that an event shows to the consumer, and whether it is reasoning.
fn shown(event: &Event) -> Option<(&str, bool)> {
    let (text, is_reasoning) = match event {
        Event::TextDelta(text) | Event::RefusalDelta(text) => (text, false),
        Event::ReasoningDelta(text) => (text, true),
        Event::Part(part) => match &part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => (text, false),
            PartKind::Reasoning(text) => (text, true),
            _ => return None,
        },
        _ => return None,
    };
    (!text.is_empty()).then_some((text, is_reasoning))
}

impl<B> Judged<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    /// Reads until further events are released; resolves to `false` if the answer ended before.
    pub(super) fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        let before = self.released.len();
        while self.released.len() == before {
            if let Some(judging) = &mut self.judging
                && let Some(verdict) = &mut judging.verdict
            {
                let verdict = ready!(verdict.as_mut().poll(cx));
                judging.verdict = None;
                match verdict {
                    Ok(()) => judging.release(&mut self.released),
                    Err(refused) => {
                        let on_block = judging.guard.on_block.clone();
                        let replaced = replacement(refused, &on_block);
                        let replaced = replaced.map_err(|error| judging.with_effects(error));
                        self.end();
                        self.released.append(&mut replaced?);
                    }
                }
                continue;
            }
            let Some(inner) = &mut self.inner else {
                return Poll::Ready(Ok(false));
            };
            match ready!(inner.as_mut().poll_next(cx)) {
                Some(Ok(event)) => self.take(event)?,
                Some(Err(error)) => {
                    self.end();
                    return Poll::Ready(Err(error));
                }
                None => self.end(),
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Whether content is released, or the end.
    pub(super) fn is_committed(&self) -> bool {
        self.released.iter().any(Event::is_content)
    }

    fn take(&mut self, event: Event) -> Result<(), Error> {
        let Some(judging) = &mut self.judging else {
            self.released.push_back(event);
            return Ok(());
        };
        let is_finish = event.is_finish();
        if let Err(error) = judging.take(event) {
            let error = judging.with_effects(error);
            self.end();
            return Err(error);
        }
        if judging.verdict.is_none() && (is_finish || judging.is_clear()) {
            judging.release(&mut self.released);
        }
        Ok(())
    }

    /// Drops the inner call and what is held.
    fn end(&mut self) {
        self.inner = None;
        self.judging = None;
    }
}

impl<B> Stream for Judged<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Not inlined into the path of each event that is not judged.
    #[inline(never)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(event) = self.released.pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        let released = ready!(self.poll_release(cx));
        Poll::Ready(released.map(|_| self.released.pop_front()).transpose())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match (&self.judging, &self.inner) {
            (None, Some(inner)) => inner.size_hint(),
            _ => (self.released.len(), None),
        }
    }
}
