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
    state::{Data, RoundState, Said, Slot, SlotState, Stage},
    step::Step,
};
use crate::{
    Answered, CallId, CancelReason, Effects, Error, ErrorKind, Event, Executor, Finish,
    FinishReason, HistoryError, Interrupt, InterruptId, Message, MessageId, OpenRound, Outcome,
    Part, Pending, Reply, ReplyError, Resume, Round, RoundCall, RoundEvent, Ruling, StepFinish,
    StepStart, Str, Suspended, ToolOutcome, ToolResult, ToolSpecs, Transcript, Turn, Usage,
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
    /// Say whether the run may finish ([`Input::Finish`], [`Input::Continue`], [`Input::Ask`]); with
    /// [`Rules::asks_to_finish`], and where that was asked about when the run was interrupted.
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

    /// Whether a call is out to be run.
    pub(crate) fn has_running(&self) -> bool {
        match &self.state.stage {
            Stage::Round(round) => round.slots.iter().any(Slot::is_running),
            _ => false,
        }
    }

    /// Whether all there is to do is to call the model.
    pub(crate) fn is_model_next(&self) -> bool {
        self.is_quiet() && self.state.stage == Stage::Model && self.state.asked_by_gates().is_none()
    }

    /// The message whose calls are open.
    pub(crate) fn open_message(&self) -> Option<&Message> {
        match &self.state.stage {
            Stage::Round(round) => Some(&round.message),
            _ => None,
        }
    }

    /// Whether a round was handed out, and it was not begun before.
    pub fn is_round_new(&self) -> bool {
        match &self.state.stage {
            Stage::Round(round) => {
                let slots = self.dispatched.iter().filter_map(|at| round.slots.get(*at));
                // What its client has done is not to be decided about any more.
                !round.begun
                    && (self.offered || !self.dispatched.is_empty())
                    && slots.clone().all(|s| s.answered.is_none())
            }
            _ => false,
        }
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

    /// Takes replies to what the run waits for: all of `replies`, or on error none. It is `now`.
    ///
    /// # Errors
    ///
    /// A reply is to no question that waits, or too late, or not of the form that the question asks
    /// for; two are to the same one; or one is missing of those that are to be answered together.
    pub fn reply(&mut self, replies: Vec<Reply>, now: SystemTime) -> Result<(), ReplyError> {
        check_replies(&self.state, &replies, now)?;
        if self.state.asked_by_gates().is_some() {
            if let Some(asked) = &mut self.state.gate {
                asked.replies = replies;
            }
            return Ok(());
        }
        let round = match &mut self.state.stage {
            Stage::Round(round) => round,
            Stage::Inner(_) => {
                self.replies = Some(Box::new((replies, now)));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let questions = round.questions();
        let asked: Vec<Option<usize>> = replies
            .iter()
            .map(|reply| questions.get(&reply.interrupt_id).map(|(at, _)| at))
            .collect();
        for (reply, at) in replies.into_iter().zip(asked) {
            let Some(slot) = at.and_then(|at| round.slots.get_mut(at)) else {
                continue;
            };
            match (&mut slot.state, &mut slot.answered) {
                (SlotState::Waiting(pending), answered) => {
                    let pending = pending.take().map(|pending| *pending);
                    let replied = Answered::new(pending, vec![reply]).accepted_at(now);
                    *answered = Some(Box::new(replied));
                    slot.state = SlotState::Ready;
                }
                // A call that asks several things was replied to already.
                (_, Some(answered)) => answered.replies.push(reply),
                _ => {}
            }
        }
        for slot in &mut round.slots {
            if slot.is_ready() && !self.rules.resumes {
                slot.settle_by_itself();
            }
        }
        Ok(())
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
                let interrupted = self.interrupted.take();
                // What goes on is the same message.
                if let Some(id) = interrupted.as_ref().and_then(|i| i.0.message.id.clone()) {
                    start.message_id = id;
                }
                let event = StepStart::new(self.state.step, start.message_id.clone());
                let step = Step::new(start);
                self.stream = Some(match interrupted.map(|interrupted| *interrupted) {
                    Some((said, unsaid)) => step.going_on(said, unsaid),
                    None => step,
                });
                self.emit(Event::StepStart(Box::new(event)));
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
                self.finishing = None;
                self.interrupted = None;
                self.state.stage = Stage::Ended;
            }
            // The rest is late: what it speaks of is over.
            _ => {}
        }
    }

    // ---- the model's answer ----

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
        let at = self.state.step;
        self.emit(Event::StepFinish(Box::new(StepFinish::new(
            at,
            finish.reason.clone(),
            finish.usage,
        ))));
        let (message, mut slots) = match step.end() {
            Ok(answer) => answer,
            Err(error) => return self.fail(protocol(&error)),
        };
        if let Some(open) = finish.state.take() {
            let said = Said::new(message, slots, used);
            let outer = Outer::new(self.state.clone(), said);
            finish.usage = self.state.usage;
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
        finish.usage = self.state.usage;
        finish.transcript = Some(self.state.transcript.clone());
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }

    // ---- the round ----

    /// Starts what may start; else closes the round, or interrupts the run.
    fn go_on_with_round(&mut self) {
        let Stage::Round(round) = &mut self.state.stage else {
            return;
        };
        if !self.dispatched.is_empty() {
            return;
        }
        if round.slots.iter().any(Slot::halts) {
            return self.after_round();
        }
        for slot in &mut round.slots {
            slot.ask_again(self.rules.resumes);
        }
        let asks = round.slots.iter().any(Slot::asks);
        self.effects_before = self.state.effects;
        let mut calls = Vec::with_capacity(round.slots.len());
        for (at, slot) in round.slots.iter_mut().enumerate() {
            if slot.is_held() && !asks {
                slot.resume();
            }
            if slot.is_ready() {
                slot.state = SlotState::Running;
                self.dispatched.push(at);
                if slot.refusal.is_none() && !slot.read_only && !slot.is_only_asked_about() {
                    self.state.effects = self.state.effects.max(Effects::Possible);
                }
                let mut call = RoundCall::new(at, slot.call.clone());
                call.refusal = slot.refusal.clone();
                call.answered = slot.answered.clone();
                call.recovered = slot.recovered;
                // What is known of it is of when it was handed out before.
                call.noted = slot.noted;
                slot.noted = self.rules.ledger && (slot.noted || !slot.recovered);
                calls.push(call);
            }
        }
        let step = round.step;
        if !calls.is_empty() {
            let message_id = round.message.id.clone();
            self.actions.push_back(Action::RunTools {
                step,
                message_id,
                calls,
            });
        } else if asks && self.rules.asks_before_round && !round.begun {
            self.offered = true;
            self.actions.push_back(Action::RunTools {
                step,
                message_id: round.message.id.clone(),
                calls,
            });
        } else if asks {
            self.interrupt();
        } else {
            self.after_round();
        }
    }

    fn settle(&mut self, index: usize, outcome: ToolOutcome) {
        let Stage::Round(round) = &mut self.state.stage else {
            return;
        };
        let Some(slot) = self
            .dispatched
            .get(index)
            .and_then(|at| round.slots.get_mut(*at))
        else {
            return;
        };
        if !slot.is_running() {
            return;
        }
        if outcome.status == crate::ToolStatus::Done && !slot.read_only {
            self.state.effects = Effects::Committed;
        }
        slot.state = SlotState::Settled(outcome);
    }

    fn wait(&mut self, index: usize, pending: Box<Pending>) {
        let Stage::Round(round) = &mut self.state.stage else {
            return;
        };
        let asked = self.asked_ids.get_or_insert_with(|| {
            let waiting = round.pending().flat_map(|pending| &pending.interrupts);
            Box::new(waiting.map(|asked| asked.id.clone()).collect())
        });
        let Some(slot) = self
            .dispatched
            .get(index)
            .and_then(|at| round.slots.get_mut(*at))
        else {
            return;
        };
        if !slot.is_running() {
            return;
        }
        let mut own = HashSet::new();
        let mut ids = pending.interrupts.iter().map(|asked| &asked.id);
        if !ids.all(|id| own.insert(id) && !asked.contains(id)) {
            // A reply would reach only one of the two.
            slot.state = SlotState::Settled(slot.failed(
                "The call asked something under the id of another question, so nobody could \
                 answer it.",
            ));
            return;
        }
        asked.extend(own.into_iter().cloned());
        if !(pending.is_held() && slot.was_held()) {
            slot.answered = None;
        }
        slot.state = SlotState::Waiting(Some(pending));
    }

    /// Takes the calls back that were handed out: the round service was not called.
    pub(crate) fn take_round_back(&mut self) {
        self.offered = false;
        if let Stage::Round(round) = &mut self.state.stage {
            for at in self.dispatched.drain(..) {
                if let Some(slot) = round.slots.get_mut(at)
                    && slot.is_running()
                {
                    slot.state = SlotState::Ready;
                }
            }
            self.state.effects = self.effects_before;
        }
    }

    /// Denies all calls that were handed out: the round service was not called.
    pub(crate) fn skip_round(&mut self, reason: &Str) {
        for index in 0..self.dispatched.len() {
            self.settle(index, ToolOutcome::denied(reason.clone()));
        }
        if let Stage::Round(round) = &mut self.state.stage {
            // Its client is not to run its own either.
            for slot in round.slots.iter_mut().filter(|slot| slot.asks()) {
                slot.state = SlotState::Settled(ToolOutcome::denied(reason.clone()));
            }
        }
        self.state.effects = self.effects_before;
        self.end_round();
    }

    fn end_round(&mut self) {
        let Stage::Round(round) = &mut self.state.stage else {
            return;
        };
        round.begun = true;
        self.offered = false;
        let asks = round.slots.iter().any(Slot::asks);
        let is_settled = |at: &usize| {
            let slot = round.slots.get(*at);
            slot.is_some_and(|slot| matches!(slot.state, SlotState::Settled(_)))
        };
        let goes_on = asks || self.dispatched.iter().any(is_settled);
        self.asked_ids = None;
        for at in self.dispatched.drain(..) {
            let Some(slot) = round.slots.get_mut(at) else {
                continue;
            };
            if slot.is_running() {
                slot.state = SlotState::Settled(ToolOutcome::unknown(
                    "The tool was started, and did not report what came of it.",
                ));
            }
            // Nobody can end this wait: it would be handed out for ever.
            if !goes_on && slot.is_held() && slot.was_held() {
                slot.state = SlotState::Settled(
                    slot.failed("The call waits for others of its answer, and none of them waits."),
                );
            }
        }
        self.go_on_with_round();
    }

    fn after_round(&mut self) {
        let Stage::Round(round) = &self.state.stage else {
            return;
        };
        let is_free = |slot: &Slot| matches!(&slot.state, SlotState::Settled(o) if o.free);
        if round.slots.iter().all(is_free) {
            // A claimed round is of no step of this run.
            // Not more of them than of the others: a run ends.
            let most = self.state.step.min(self.rules.steps);
            self.state.free = self.state.free.saturating_add(1).min(most);
        }
        match self.close_round("The call was not run.") {
            Some(reason) => self.finish(Outcome::Halted { reason }),
            None if self.rules.is_over(&self.state.calls) => self.finish(Outcome::CallLimit),
            None if self.charged() >= self.rules.steps => self.finish(Outcome::StepLimit),
            None => {}
        }
    }

    /// Closes the open round, if there is one, and appends it to the transcript.
    ///
    /// Returns the reason of the first call that halts the run.
    fn close_round(&mut self, otherwise: &str) -> Option<Str> {
        let Stage::Round(_) = &self.state.stage else {
            return None;
        };
        let Stage::Round(round) = std::mem::replace(&mut self.state.stage, Stage::Model) else {
            return None;
        };
        self.dispatched.clear();
        self.offered = false;
        let RoundState { message, slots, .. } = *round;
        let mut halt = None;
        let mut results = Vec::with_capacity(slots.len());
        for slot in slots {
            let only_asked_about = slot.is_only_asked_about();
            let by_client = slot.said_by_client();
            let in_doubt = slot.is_in_doubt();
            let outcome = match slot.state {
                SlotState::Settled(outcome) => outcome,
                // It has run, whatever becomes of the run.
                SlotState::Ready | SlotState::Running if let Some(said) = by_client => said,
                _ if in_doubt => state::in_doubt(),
                // It may have done its work, and nobody was told.
                SlotState::Running
                    if slot.refusal.is_none() && !slot.read_only && !only_asked_about =>
                {
                    ToolOutcome::unknown(format!("{otherwise} It had been started."))
                }
                _ => ToolOutcome::cancelled(otherwise),
            };
            if halt.is_none() {
                halt.clone_from(&outcome.halt);
            }
            let result = ToolResult::new(slot.call.id, slot.call.name, outcome);
            results.push(result.clone());
            self.emit(Event::ToolResult(Box::new(result)));
        }
        self.state.transcript.push(Round::closed(message, results));
        halt
    }

    fn interrupt(&mut self) {
        let mut state = self.state.clone();
        // Nobody has replied to what was asked before the end.
        state.at_end |= self.finishing.is_some();
        let mut finish = self.finish_with(Outcome::Interrupted);
        finish.state = Some(Box::new(MachineState(state)));
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }

    // ---- the end ----

    fn finish(&mut self, outcome: Outcome) {
        let finish = self.finish_with(outcome);
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }

    fn finish_with(&self, outcome: Outcome) -> Box<Finish> {
        let reason = self.state.reason.clone().unwrap_or(FinishReason::Stop);
        let mut finish = Finish::new(reason, self.state.usage).with_outcome(outcome);
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

impl MachineState {
    /// Checks `replies` as [`Machine::reply`] does, and takes none of them.
    ///
    /// # Errors
    ///
    /// Those of [`Machine::reply`].
    pub fn check_replies(&self, replies: &[Reply], now: SystemTime) -> Result<(), ReplyError> {
        check_replies(&self.0, replies, now)
    }
}

/// Checks `replies` to what a run in `state` waits for.
fn check_replies(state: &Data, replies: &[Reply], now: SystemTime) -> Result<(), ReplyError> {
    let mut replied = HashSet::new();
    for Reply { interrupt_id, .. } in replies {
        if !replied.insert(interrupt_id) {
            return Err(ReplyError::Duplicate(interrupt_id.clone()));
        }
    }
    if let Some(asked) = state.asked_by_gates() {
        return check_all(&asked.interrupts, replies, now);
    }
    let round = match &state.stage {
        Stage::Round(round) => round,
        Stage::Inner(inner) => return check_replies(&inner.state, replies, now),
        _ => {
            return match replies.first() {
                Some(reply) => Err(ReplyError::Unknown(reply.interrupt_id.clone())),
                None => Ok(()),
            };
        }
    };
    let questions = round.questions();
    let mut claimed = HashSet::new();
    for reply in replies {
        let id = &reply.interrupt_id;
        match questions.get(id) {
            Some((_, Some(interrupt))) => interrupt.check(reply, now)?,
            // Nobody knows when it was asked: that is for the proof to say.
            Some((at, None)) if claimed.insert(at) => {
                let ruling = reply.ruling()?;
                let is_clients = round
                    .slots
                    .get(at)
                    .is_some_and(|slot| slot.call.executor == Executor::Client);
                let why = match ruling {
                    Ruling::Approved { .. } if is_clients => "this call is the client's to run",
                    Ruling::Failed(_) if !is_clients => "this call is not the client's to run",
                    _ => "",
                };
                if !why.is_empty() {
                    return Err(ReplyError::Malformed {
                        id: id.clone(),
                        why: Str::from_static(why),
                    });
                }
            }
            Some((_, None)) => return Err(ReplyError::Duplicate(id.clone())),
            None => return Err(ReplyError::Unknown(id.clone())),
        }
    }
    if let Some(missing) = round
        .asked_together()
        .find(|asked| !replies.is_empty() && !replied.contains(&asked.id))
    {
        return Err(ReplyError::Missing(missing.id.clone()));
    }
    Ok(())
}

/// Checks that `replies` are to `asked`, and if there is one, that there is one to each.
fn check_all(asked: &[Interrupt], replies: &[Reply], now: SystemTime) -> Result<(), ReplyError> {
    for reply in replies {
        let id = &reply.interrupt_id;
        let interrupt = asked.iter().find(|asked| asked.id == *id);
        let unknown = || ReplyError::Unknown(id.clone());
        interrupt.ok_or_else(unknown)?.check(reply, now)?;
    }
    let is_missing = |asked: &&Interrupt| {
        let mut all = replies.iter();
        !all.any(|reply| reply.interrupt_id == asked.id)
    };
    match asked.iter().find(is_missing) {
        Some(missing) if !replies.is_empty() => Err(ReplyError::Missing(missing.id.clone())),
        _ => Ok(()),
    }
}

impl Slot {
    /// What is said of a call that can't go on: that it failed, if that is known.
    fn failed(&self, why: &'static str) -> ToolOutcome {
        match self.is_in_doubt() {
            true => state::in_doubt(),
            false => ToolOutcome::failed(why),
        }
    }

    /// Whether it was handed out after it had waited for its siblings only.
    fn was_held(&self) -> bool {
        let pending = self.answered.as_deref().and_then(|a| a.pending.as_ref());
        pending.is_some_and(Pending::is_held)
    }

    /// Takes up a call that waited for its siblings.
    fn resume(&mut self) {
        let waiting = std::mem::replace(&mut self.state, SlotState::Ready);
        if let SlotState::Waiting(Some(pending)) = waiting {
            self.answered = Some(Box::new(Answered::new(Some(*pending), Vec::new())));
        }
    }

    /// What the client says that came of its call, if it has said so.
    fn said_by_client(&self) -> Option<ToolOutcome> {
        if self.call.executor != Executor::Client {
            return None;
        }
        match self.answered.as_deref()?.replies.first()?.ruling().ok()? {
            Ruling::Answered(result) => Some(ToolOutcome::of_value(&result)),
            Ruling::Failed(error) => Some(ToolOutcome::failed(error)),
            _ => None,
        }
    }

    /// Settles a call that was replied to, where the round service does not know of replies.
    fn settle_by_itself(&mut self) {
        let said = self.said_by_client();
        let Some(answered) = self.answered.take() else {
            return;
        };
        let ruling = answered.replies.first().map(Reply::ruling);
        self.state = SlotState::Settled(match ruling {
            _ if let Some(said) = said => said,
            Some(Ok(Ruling::Denied { reason, .. })) => ToolOutcome::denied(
                reason.unwrap_or_else(|| Str::from_static("The call was denied.")),
            ),
            Some(Ok(Ruling::Cancelled)) => ToolOutcome::cancelled("The call was cancelled."),
            _ => ToolOutcome::denied("approval-invalid: nothing here was asked about this call."),
        });
    }
}
