//! The loop as a pure machine: inputs in, actions out.
//!
//! A [`Machine`] decides what an agent does next, and does nothing itself: it has no I/O, no clock,
//! no randomness and no locks. A driver takes one [`Action`] at a time, does it, and reports what
//! came of it as an [`Input`]. [`Agent`](crate::Agent) is the driver of this crate; a durable
//! engine can be another.
//!
//! ```
//! use concentric_core::machine::{Action, Input, Machine, ModelStart, Rules};
//! use concentric_core::{Event, FinishReason, MessageId, Transcript, Usage};
//!
//! let mut machine = Machine::new(Transcript::new(), Rules::default());
//! assert!(matches!(machine.action(), Some(Action::CallModel { step: 0, .. })));
//!
//! machine.input(Input::ModelStarted(ModelStart::new(MessageId::new("m"))));
//! machine.input(Input::ModelEvent(Event::text("Hi!")));
//! machine.input(Input::ModelEvent(Event::finish(FinishReason::Stop, Usage::new(3, 2))));
//! let mut events = 0;
//! while let Some(Action::Emit(_)) = machine.action() {
//!     events += 1;
//! }
//! assert_eq!(events, 4); // step start, text, step finish, finish
//! assert!(machine.is_ended());
//! ```
//!
//! # What it keeps, for every order of inputs
//!
//! - A run has exactly one terminal action: an [`Event::Finish`], or [`Action::Fail`].
//! - A tool call has exactly one outcome, and one [`Event::ToolResult`].
//! - A call that waits is not handed out before it is replied to, and a reply is taken once. One
//!   that only a history says to wait is handed out without a reply, to be asked about
//!   ([`Answered`]).
//! - After a halt, a cancel or a failure no further call starts.
//! - Every end but [`Outcome::Interrupted`] closes the open round.

mod replies;
mod round;
mod rules;
mod state;
mod step;

pub use self::{
    rules::Rules,
    state::{MachineState, StateError},
    step::ModelStart,
};

pub(crate) use self::state::Outer;

use self::{
    state::{Data, Said, SlotState, Stage},
    step::Step,
};
use crate::{
    Answered, CallId, CancelReason, Effects, Error, ErrorKind, Event, Finish, FinishReason,
    HistoryError, InterruptId, MessageId, OpenRound, Outcome, Part, Pending, Reply, Resume,
    RoundCall, RoundEvent, StepFinish, StepStart, Str, Suspended, ToolOutcome, ToolSpecs,
    Transcript, Turn, Usage,
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::SystemTime,
};

/// Something that happened, for the machine to take in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Input {
    /// The model is about to be called: emits [`Event::StepStart`] with this message id now, in
    /// place of when the model [answers](Self::ModelStarted).
    ///
    /// For the driver of a run whose consumer already reads it. A run that may still fail without
    /// output, so that it can be retried, leaves this out.
    StepStarted(MessageId),
    /// The model that was called answers.
    ModelStarted(ModelStart),
    /// An event of its answer.
    ModelEvent(Event),
    /// Its answer ended without a terminal item.
    ModelEnded,
    /// The call, or its answer, failed.
    ModelFailed(Error),
    /// A call of the round that was to be run has its outcome.
    Settled {
        /// Which, as an index into [`Action::RunTools`]'s calls.
        index: usize,
        /// What came of it.
        outcome: ToolOutcome,
    },
    /// A call of the round that was to be run waits.
    Waiting {
        /// Which, as an index into [`Action::RunTools`]'s calls.
        index: usize,
        /// What it waits for.
        pending: Box<Pending>,
    },
    /// The round that was to be run has no more to report.
    RoundEnded,
    /// The round was not begun, which fails the run.
    RoundRefused(Error),
    /// The round failed in a way that fails the run.
    RoundFailed(Error),
    /// Something failed that the run can't do without.
    Failed(Error),
    /// A layer stops the run, on purpose.
    Halt(Str),
    /// The run is to come to its own end, in place of the next step, or of [`Action::MayFinish`].
    Finish,
    /// The run is not to finish yet: it makes another step, after what was
    /// [put in](Machine::push).
    Continue,
    /// The same, and the answer is void: the consumer is told so by [`Event::Reset`], unless the run
    /// may not make another step.
    Reject,
    /// Somebody is to be asked before the model is called, before the calls that were handed out are
    /// run, or before the run finishes.
    Ask(Box<Pending>),
    /// The run is cancelled.
    Cancel(CancelReason),
    /// The run's deadline has passed.
    Deadline,
    /// The run's consumer is gone; nobody reads what comes now.
    Dropped,
}

impl Input {
    /// What a round service has said.
    pub fn of_round(item: Result<RoundEvent, Error>) -> Self {
        match item {
            Ok(RoundEvent::Settled { index, outcome }) => Self::Settled { index, outcome },
            Ok(RoundEvent::Waiting { index, pending }) => Self::Waiting { index, pending },
            Err(error) => Self::RoundFailed(error),
        }
    }
}

/// Something to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Call the model with [`Machine::transcript`].
    CallModel {
        /// The step, from 0.
        step: u32,
        /// What it is to go on with: it is an agent that was interrupted.
        resume: Option<Resume>,
    },
    /// Run these calls. There are none, if they are all the client's to run and somebody may decide
    /// about the round ([`Rules::asks_before_round`]): then nothing is to be done but
    /// [`Input::RoundEnded`].
    RunTools {
        /// The step that made them.
        step: u32,
        /// The message that makes them.
        message_id: Option<MessageId>,
        /// The calls.
        calls: Vec<RoundCall>,
    },
    /// Say whether the run may finish ([`Input::Finish`], [`Input::Continue`], [`Input::Reject`],
    /// [`Input::Ask`]); with [`Rules::asks_to_finish`], and where that was asked about when the run was interrupted.
    MayFinish,
    /// Hand this event to the consumer.
    Emit(Event),
    /// Hand this error to the consumer; it is the last item.
    Fail(Error),
}

/// The loop of one run.
///
/// See the [module docs](self).
#[derive(Debug)]
pub struct Machine {
    state: Data,
    rules: Arc<Rules>,
    // The model stream that is half read, if one is; not part of the state.
    stream: Option<Step>,
    // Whether the model was asked for and has not answered.
    asked: bool,
    // The message of the step that the model is asked for, if its start was emitted.
    started: Option<MessageId>,
    actions: VecDeque<Action>,
    // The calls that were handed out to be run, as indices of the open round's slots.
    dispatched: Vec<usize>,
    // A round whose calls are all its client's is to be decided about.
    offered: bool,
    // What the open round waits to be told, once one of these calls has asked something.
    #[allow(
        clippy::box_collection,
        reason = "a set is 48 bytes, which every run that waits would have for nothing"
    )]
    asked_ids: Option<Box<HashSet<InterruptId>>>,
    // What may have been done before they were.
    effects_before: Effects,
    // The run's end, if it has come to it and may not finish yet; boxed, since few ask.
    finishing: Option<Box<Finishing>>,
    // What an interrupted agent in the model's place is told, and when that was accepted.
    replies: Option<Box<(Vec<Reply>, SystemTime)>>,
    // What it had said, and which calls it had not, while it is asked to go on.
    interrupted: Option<Box<(Said, HashMap<CallId, Part>)>>,
}

/// The end of a run that may not finish yet.
#[derive(Debug)]
struct Finishing {
    finish: Box<Finish>,
    asked: bool,
}

impl Machine {
    /// Creates the machine of a run that goes on with `transcript`.
    pub fn new(transcript: Transcript, rules: impl Into<Arc<Rules>>) -> Self {
        Self::of(Data::new(transcript), rules.into())
    }

    /// Creates the machine of a run that goes on with `open`, which follows `transcript`, as a
    /// history claims.
    ///
    /// Its calls wait until they are [replied](Self::reply) to; one of a tool that is not in
    /// `tools` is refused. What is not replied to before the first action is handed out all the
    /// same, with neither a question nor a reply: to be asked about, and not to be run.
    pub fn claimed(
        transcript: Transcript,
        open: OpenRound,
        tools: &ToolSpecs,
        rules: impl Into<Arc<Rules>>,
    ) -> Self {
        let mut state = Data::new(transcript);
        state.stage = Stage::claimed(open, tools);
        Self::of(state, rules.into())
    }

    /// Goes on with a run that was written down.
    ///
    /// A call that was running then is handed out again as [recovered](RoundCall::recovered), if
    /// the round service knows what that means ([`Rules::resumes`]); else its outcome is unknown.
    pub fn restore(MachineState(mut state): MachineState, rules: impl Into<Arc<Rules>>) -> Self {
        let rules = rules.into();
        if let Stage::Round(round) = &mut state.stage {
            for slot in &mut round.slots {
                if !slot.is_running() {
                    continue;
                }
                round.begun = true;
                slot.state = SlotState::Ready;
                if let Some(answered) = &mut slot.answered {
                    answered.taken_up = true;
                }
                if slot.is_only_asked_about() {
                    continue;
                }
                if slot.refusal.is_none() && !rules.resumes && !slot.read_only {
                    slot.state = SlotState::Settled(ToolOutcome::unknown(
                        "The tool was started, and its process ended before it was done.",
                    ));
                }
                slot.recovered = slot.refusal.is_none();
            }
        }
        Self::of(state, rules)
    }

    fn of(state: Data, rules: Arc<Rules>) -> Self {
        let mut machine = Self {
            state,
            rules,
            stream: None,
            asked: false,
            started: None,
            actions: VecDeque::new(),
            dispatched: Vec::new(),
            offered: false,
            asked_ids: None,
            finishing: None,
            effects_before: Effects::None,
            replies: None,
            interrupted: None,
        };
        if let Stage::Round(_) | Stage::Inner(_) = machine.state.stage {
            machine.emit(Event::Resumed);
        }
        if std::mem::take(&mut machine.state.at_end) {
            machine.may_finish(machine.finish_with(Outcome::Completed));
        }
        machine
    }

    /// The run's state, unless a model stream is half read or an action has not been taken.
    pub fn state(&self) -> Option<MachineState> {
        self.is_quiet().then(|| MachineState(self.state.clone()))
    }

    /// The run while its model is asked, for the states of an agent in the model's place to be kept
    /// in; `None` while it is not.
    pub(crate) fn outer(&self) -> Option<Outer> {
        let used = self.state.usage;
        let said = match (&self.stream, &self.interrupted) {
            (Some(step), _) => step.said(used),
            (None, Some(interrupted)) => interrupted.0.clone(),
            (None, None) if self.asked => Said::nothing(used),
            (None, None) => return None,
        };
        Some(Outer::new(self.state.clone(), said))
    }

    fn is_quiet(&self) -> bool {
        self.stream.is_none() && !self.asked && self.actions.is_empty() && self.finishing.is_none()
    }

    /// The conversation so far; every round in it is closed.
    pub fn transcript(&self) -> &Transcript {
        &self.state.transcript
    }

    /// Whether all there is to do is to read the model's answer.
    #[inline]
    pub(crate) fn is_reading(&self) -> bool {
        self.stream.is_some() && self.actions.is_empty()
    }

    /// Whether all there is to do is to call the model.
    pub(crate) fn is_model_next(&self) -> bool {
        self.is_quiet() && self.state.stage == Stage::Model && self.state.asked_by_gates().is_none()
    }

    /// The step that was made last.
    pub(crate) fn last_step(&self) -> u32 {
        self.state.step.saturating_sub(1)
    }

    /// Why the model stopped then.
    pub(crate) fn last_reason(&self) -> Option<&FinishReason> {
        self.state.reason.as_ref()
    }

    /// What was replied to an [`Input::Ask`], and was not taken.
    pub(crate) fn answers(&self) -> Option<&Answered> {
        let asked = self.state.gate.as_deref();
        asked.filter(|asked| !asked.replies.is_empty())
    }

    /// What was replied to an [`Input::Ask`]; once.
    pub fn take_answers(&mut self) -> Option<Box<Answered>> {
        self.state.gate.take_if(|asked| !asked.replies.is_empty())
    }

    /// Whether the run has had its terminal action, or was dropped.
    pub fn is_ended(&self) -> bool {
        self.state.stage == Stage::Ended
    }

    /// Whether tools may have done something by now.
    pub fn effects(&self) -> Effects {
        self.state.effects
    }

    /// Appends `turn` to the conversation, if it stands between two steps; returns whether it does.
    pub fn push(&mut self, turn: Turn) -> bool {
        let between = self.stream.is_none() && self.state.stage == Stage::Model;
        if between {
            self.state.transcript.push(turn);
        }
        between
    }

    /// The next thing to do; `None` while the machine waits for an input, and when it has ended.
    #[inline]
    pub fn action(&mut self) -> Option<Action> {
        let reads = self.stream.is_some() || self.asked;
        if reads && self.actions.is_empty() {
            return None;
        }
        self.next_action()
    }

    fn next_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.is_ended() {
            return None;
        }
        if self.state.asked_by_gates().is_some() {
            self.interrupt();
            return self.actions.pop_front();
        }
        if let Some(finishing) = &mut self.finishing {
            return (!std::mem::replace(&mut finishing.asked, true)).then_some(Action::MayFinish);
        }
        match &self.state.stage {
            Stage::Model => {
                self.asked = true;
                Some(Action::CallModel {
                    step: self.state.step,
                    resume: None,
                })
            }
            Stage::Inner(_) => {
                let stage = std::mem::replace(&mut self.state.stage, Stage::Model);
                let Stage::Inner(inner) = stage else {
                    return None;
                };
                self.asked = true;
                let unsaid = inner.unsaid();
                self.interrupted = Some(Box::new((inner.said, unsaid)));
                let state = Suspended::State(Box::new(MachineState(inner.state)));
                Some(Action::CallModel {
                    step: self.state.step,
                    resume: Some(match self.replies.take().map(|taken| *taken) {
                        Some((replies, at)) => Resume::new(state, replies).accepted_at(at),
                        None => Resume::new(state, Vec::new()),
                    }),
                })
            }
            Stage::Round(_) if self.offered || !self.dispatched.is_empty() => None,
            Stage::Round(_) => {
                self.go_on_with_round();
                self.action()
            }
            Stage::Ended => None,
        }
    }

    /// Takes in what happened. An input that no longer matters is ignored.
    #[inline]
    pub fn input(&mut self, input: Input) {
        match input {
            Input::ModelEvent(event) => {
                if let Some(event) = self.model_event(event) {
                    self.emit(event);
                }
            }
            other => self.other_input(other),
        }
    }

    /// Takes in an event of the model's answer, and returns it if it is to be handed to the
    /// consumer, behind all [actions](Self::action) that were there before.
    ///
    /// It is [`Input::ModelEvent`] and [`Action::Emit`] in one, for a driver that hands on each event
    /// as it comes.
    pub fn model_event(&mut self, event: Event) -> Option<Event> {
        if self.delta(&event) {
            return Some(event);
        }
        let step = self.stream.as_mut()?;
        if let Event::Finish(finish) = event {
            self.finish_step(finish);
            return None;
        }
        step.take_in(event)
    }

    /// Takes in `event` if it is a delta of text, reasoning or refusal, and returns whether it is:
    /// such an event is handed to the consumer as it is.
    #[inline]
    pub(crate) fn delta(&mut self, event: &Event) -> bool {
        match &mut self.stream {
            Some(step) => step.builder.push_delta(event),
            None => false,
        }
    }

    /// Has `event` handed to the consumer, after all that was before.
    fn emit(&mut self, event: Event) {
        self.actions.push_back(Action::Emit(event));
    }

    fn other_input(&mut self, input: Input) {
        if self.is_ended() {
            return;
        }
        match input {
            Input::ModelStarted(mut start) if self.asked => {
                self.asked = false;
                start.message_id = match self.started.take() {
                    Some(id) => id,
                    None => self.start_step(start.message_id),
                };
                let step = Step::new(start);
                let interrupted = self.interrupted.take();
                self.stream = Some(match interrupted.map(|interrupted| *interrupted) {
                    Some((said, unsaid)) => step.going_on(said, unsaid),
                    None => step,
                });
            }
            Input::StepStarted(id) if self.asked && self.started.is_none() => {
                self.started = Some(self.start_step(id));
            }
            Input::ModelEnded if self.stream.is_some() => {
                self.fail(crate::response::truncated());
            }
            Input::ModelFailed(error) if self.asked || self.stream.is_some() => self.fail(error),
            Input::Settled { index, outcome } => self.settle(index, outcome),
            Input::Waiting { index, pending } => self.wait(index, pending),
            Input::RoundRefused(error) if self.offered || !self.dispatched.is_empty() => {
                self.take_round_back();
                self.fail(error);
            }
            Input::RoundEnded => self.end_round(),
            Input::RoundFailed(error) if !self.dispatched.is_empty() => self.fail(error),
            Input::Failed(error) => self.fail(error),
            Input::Halt(reason) => self.stop(Outcome::Halted { reason }),
            Input::Finish => self.come_to_the_end(),
            Input::Continue if self.finishing.take().is_some() => self.go_on(),
            Input::Reject if self.finishing.take().is_some() => {
                if self.charged() < self.rules.steps {
                    self.emit(Event::Reset);
                }
                self.go_on();
            }
            Input::Ask(pending) if self.may_ask() => {
                self.asked = false;
                self.state.at_end = self.finishing.take().is_some();
                self.take_round_back();
                let asked = Answered::new(Some(*pending), Vec::new());
                self.state.gate = Some(Box::new(asked));
            }
            Input::Cancel(reason) => self.stop(Outcome::Aborted { reason }),
            Input::Deadline => self.fail(late()),
            Input::Dropped => {
                self.close_round("The run was dropped.");
                self.actions.clear();
                self.stream = None;
                self.asked = false;
                self.started = None;
                self.finishing = None;
                self.interrupted = None;
                self.state.stage = Stage::Ended;
            }
            // The rest is late: what it speaks of is over.
            _ => {}
        }
    }

    // ---- the model's answer ----

    /// Emits the start of a step whose message is `id`, and returns the id that it has.
    fn start_step(&mut self, id: MessageId) -> MessageId {
        // A message that was interrupted keeps its id when the model continues it.
        let interrupted = self.interrupted.as_deref();
        let id = interrupted
            .and_then(|i| i.0.message.id.clone())
            .unwrap_or(id);
        let event = StepStart::new(self.state.step, id.clone());
        self.emit(Event::StepStart(Box::new(event)));
        id
    }

    fn finish_step(&mut self, mut finish: Box<Finish>) {
        let Some(mut step) = self.stream.take() else {
            return;
        };
        // What this loop is to run goes first, and then the agent in the model's place is called
        // anew: of what it has open, this is the end.
        if step.has_calls()
            && let Some(open) = finish.state.take()
        {
            for result in open.0.given_up() {
                if let Some(event) = step.take_in(Event::ToolResult(Box::new(result))) {
                    self.emit(event);
                }
            }
        }
        let used = step.used_before(self.state.usage);
        self.state.usage = used;
        self.state.usage += finish.usage;
        // An agent in the model's place that was resumed has reported the rest before.
        let usage = finish.attempt_usage();
        self.state.unreported += usage;
        let at = self.state.step;
        let reason = finish.reason.clone();
        let finished = StepFinish::new(at, reason, usage);
        self.emit(Event::StepFinish(Box::new(finished)));
        let (message, mut slots) = match step.end(&finish.reason) {
            Ok(answer) => answer,
            Err(error) => return self.fail(protocol(&error)),
        };
        if let Some(open) = finish.state.take() {
            let said = Said::new(message, slots, used);
            self.report(&mut finish);
            let outer = Outer::new(self.state.clone(), said);
            finish.transcript = Some(self.state.transcript.clone());
            finish.state = Some(Box::new(outer.around(*open)));
            self.emit(Event::Finish(finish));
            self.state.stage = Stage::Ended;
            return;
        }
        self.state.step = at.saturating_add(1);
        self.state.reason = Some(finish.reason.clone());
        self.state
            .provider_reason
            .clone_from(&finish.provider_reason);
        if !slots.is_empty() {
            self.rules.count(&mut self.state.calls, &mut slots);
            for (position, slot) in slots.iter_mut().enumerate() {
                slot.await_client(&message, position);
            }
            self.state.stage = Stage::round(at, message, slots);
            if let Outcome::Halted { .. } = finish.outcome {
                self.stop(finish.outcome);
            }
            return;
        }
        if !message.parts.is_empty() {
            match Turn::message(message) {
                Ok(turn) => self.state.transcript.push(turn),
                Err(error) => return self.fail(protocol(&error)),
            }
        }
        self.state.stage = Stage::Model;
        // The rest is as the model said it: an agent in its place may have been halted.
        if self.rules.asks_to_finish && finish.outcome == Outcome::Completed {
            self.may_finish(finish);
        } else {
            self.end_with(finish);
        }
    }

    /// Has the driver say whether the run may finish.
    fn may_finish(&mut self, finish: Box<Finish>) {
        let asked = false;
        self.finishing = Some(Box::new(Finishing { finish, asked }));
    }

    // ---- what gates say ----

    /// Whether it is about to do something that somebody can be asked about first. An agent in the
    /// model's place that goes on was asked about when it began.
    fn may_ask(&self) -> bool {
        let may_finish = self.finishing.as_ref().is_some_and(|end| end.asked);
        may_finish || (self.asked && self.interrupted.is_none()) || self.is_round_new()
    }

    /// Ends the run in place of the next step.
    fn come_to_the_end(&mut self) {
        match self.finishing.take() {
            Some(finishing) => self.end_with(finishing.finish),
            None if self.asked => {
                self.drop_stream();
                self.finish(Outcome::Completed);
            }
            // There is a round to be closed first.
            None => {}
        }
    }

    /// Makes another step, if it may.
    fn go_on(&mut self) {
        if self.charged() >= self.rules.steps {
            self.finish(Outcome::StepLimit);
        }
    }

    fn charged(&self) -> u32 {
        self.state.step.saturating_sub(self.state.free)
    }

    fn end_with(&mut self, mut finish: Box<Finish>) {
        self.report(&mut finish);
        finish.transcript = Some(self.state.transcript.clone());
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }

    // ---- the end ----

    fn finish(&mut self, outcome: Outcome) {
        let finish = self.finish_with(outcome);
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }

    /// Has `finish` report the run's tokens, which no later one reports again.
    pub(super) fn report(&mut self, finish: &mut Finish) {
        finish.report(self.state.usage, std::mem::take(&mut self.state.unreported));
    }

    fn finish_with(&self, outcome: Outcome) -> Box<Finish> {
        let reason = self.state.reason.clone().unwrap_or(FinishReason::Stop);
        let mut finish = Finish::new(reason, self.state.usage).with_outcome(outcome);
        finish.report(self.state.usage, self.state.unreported);
        finish.provider_reason = self.state.provider_reason.clone();
        finish.transcript = Some(self.state.transcript.clone());
        Box::new(finish)
    }

    /// Ends the run before its own end, and keeps what was said.
    fn stop(&mut self, outcome: Outcome) {
        self.drop_stream();
        self.close_round("The run was stopped before the call was done.");
        self.finish(outcome);
    }

    fn fail(&mut self, error: Error) {
        if error.kind() == ErrorKind::Halted {
            let reason = error.message().into();
            return self.stop(Outcome::Halted { reason });
        }
        self.drop_stream();
        self.close_round("The run failed before the call was done.");
        let effects = error.effects().max(self.state.effects);
        self.actions
            .push_back(Action::Fail(error.with_effects(effects)));
        self.state.stage = Stage::Ended;
    }

    /// Gives up the model stream that is half read, and keeps the text of it.
    fn drop_stream(&mut self) {
        self.asked = false;
        self.started = None;
        self.finishing = None;
        let said = match (&mut self.state.stage, self.stream.take()) {
            (_, Some(step)) => step.give_up(),
            (Stage::Inner(inner), None) => step::text_of(inner.said.message.clone()),
            _ => self
                .interrupted
                .take()
                .and_then(|interrupted| step::text_of(interrupted.0.message)),
        };
        if let Some(turn) = said {
            self.state.transcript.push(turn);
        }
        // Calls that were not handed out are not to be: a stop starts nothing.
        self.actions
            .retain(|action| matches!(action, Action::Emit(_)));
    }

    /// The tokens used so far.
    pub fn usage(&self) -> Usage {
        self.state.usage
    }
}

fn protocol(error: &HistoryError) -> Error {
    Error::new(ErrorKind::Protocol, format!("the model's answer: {error}"))
}

pub(crate) fn late() -> Error {
    Error::new(ErrorKind::Timeout, "the run's deadline has passed")
}
