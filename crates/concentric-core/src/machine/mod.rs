//! The loop as a pure machine: inputs in, actions out.
//!
//! A [`Machine`] decides what an agent does next, and does nothing itself: it has no I/O, no clock,
//! no randomness and no locks. A driver takes one [`Action`] at a time, does it, and reports what
//! came of it as an [`Input`]. [`Agent`](crate::Agent) is the driver of this crate; a durable
//! engine can be another.
//!
//! ```
//! use concentric_core::machine::{Action, Input, Machine, ModelStart};
//! use concentric_core::{Event, FinishReason, MessageId, Transcript, Usage};
//!
//! let mut machine = Machine::new(Transcript::new(), 8);
//! assert!(matches!(machine.action(), Some(Action::CallModel { step: 0 })));
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
//! - A call that waits is not started before it is decided about, and never once it is denied.
//! - A decision is taken once.
//! - After a halt, a cancel or a failure no further call starts.
//! - Every end but [`Outcome::Interrupted`] closes the open round.

mod state;
mod step;

pub use self::{
    state::{MachineState, StateError},
    step::ModelStart,
};

use self::{
    state::{RoundState, Slot, SlotState, Stage},
    step::Step,
};
use crate::{
    CancelReason, Decision, Effects, Error, ErrorKind, Event, Executor, Finish, FinishReason,
    HistoryError, MessageId, OpenRound, Outcome, Refusal, Round, RoundCall, StepFinish, StepStart,
    Str, ToolOutcome, ToolResult, ToolSpecs, Transcript, Turn, Usage, Verdict,
};
use std::collections::VecDeque;

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
    /// The round that was to be run has no more to report.
    RoundEnded,
    /// The round failed in a way that fails the run.
    RoundFailed(Error),
    /// A layer stops the run, on purpose.
    Halt(Str),
    /// The run is cancelled.
    Cancel(CancelReason),
    /// The run's deadline has passed.
    Deadline,
    /// The run's consumer is gone; nobody reads what comes now.
    Dropped,
}

/// Something to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Call the model with [`Machine::transcript`].
    CallModel {
        /// The step, from 0.
        step: u32,
    },
    /// Run these calls.
    RunTools {
        /// The step that made them.
        step: u32,
        /// The message that makes them.
        message_id: Option<MessageId>,
        /// The calls.
        calls: Vec<RoundCall>,
    },
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
    state: MachineState,
    // The model stream that is half read, if one is; not part of the state.
    stream: Option<Step>,
    // Whether the model was asked for and has not answered.
    asked: bool,
    actions: VecDeque<Action>,
    // The calls that were handed out to be run, as indices of the open round's slots.
    dispatched: Vec<usize>,
}

impl Machine {
    /// Creates the machine of a run that goes on with `transcript`, and may call the model
    /// `step_limit` times.
    pub fn new(transcript: Transcript, step_limit: u32) -> Self {
        Self::of(MachineState::new(transcript, step_limit))
    }

    /// Creates the machine of a run that goes on with `open`, which follows `transcript`.
    ///
    /// Its calls wait until they are [decided](Self::decide) about; one of a tool that is not in
    /// `tools` is refused.
    pub fn with_open_round(
        transcript: Transcript,
        open: OpenRound,
        tools: &ToolSpecs,
        step_limit: u32,
    ) -> Self {
        let mut state = MachineState::new(transcript, step_limit);
        state.stage = Stage::open(open, tools);
        Self::of(state)
    }

    /// Goes on with a run that was written down.
    ///
    /// A call that was running then waits for a decision: nobody knows what it did.
    ///
    /// # Errors
    ///
    /// The state is of a newer version than this code knows, or contradicts itself.
    pub fn restore(mut state: MachineState) -> Result<Self, StateError> {
        state.check()?;
        if let Stage::Round(round) = &mut state.stage {
            for slot in &mut round.slots {
                if slot.state == SlotState::Running {
                    slot.state = match slot.refusal {
                        Some(_) => SlotState::Ready,
                        None => SlotState::Waiting,
                    };
                }
            }
        }
        Ok(Self::of(state))
    }

    fn of(state: MachineState) -> Self {
        let mut machine = Self {
            state,
            stream: None,
            asked: false,
            actions: VecDeque::new(),
            dispatched: Vec::new(),
        };
        if let Stage::Round(_) = machine.state.stage {
            machine.emit(Event::Resumed);
        }
        machine
    }

    /// The run's state, unless a model stream is half read or an action has not been taken.
    pub fn state(&self) -> Option<&MachineState> {
        let quiet = self.stream.is_none() && !self.asked && self.actions.is_empty();
        quiet.then_some(&self.state)
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
        self.state()
            .is_some_and(|state| state.stage == Stage::Model)
    }

    /// Whether the run has had its terminal action, or was dropped.
    pub fn is_ended(&self) -> bool {
        self.state.stage == Stage::Ended
    }

    /// Whether tools may have done something by now.
    pub fn effects(&self) -> Effects {
        self.state.effects
    }

    /// Decides about calls that wait: all of `decisions`, or on error none.
    ///
    /// # Errors
    ///
    /// A call does not wait (any more), two decisions are about the same one, or one is to run a
    /// call that the client executes.
    pub fn decide(&mut self, decisions: Vec<Decision>) -> Result<(), HistoryError> {
        let Stage::Round(round) = &mut self.state.stage else {
            return match decisions.into_iter().next() {
                Some(decision) => Err(HistoryError::OrphanResult(decision.call_id)),
                None => Ok(()),
            };
        };
        let mut decided = Vec::with_capacity(decisions.len());
        for decision in decisions {
            let at = round.slots.iter().position(|slot| {
                slot.call.id == decision.call_id && slot.state == SlotState::Waiting
            });
            match at {
                Some(at) if decided.iter().any(|(other, _)| *other == at) => {
                    return Err(HistoryError::DuplicateResult(decision.call_id));
                }
                Some(at) => {
                    let clients = round
                        .slots
                        .get(at)
                        .is_some_and(|slot| slot.call.executor == Executor::Client);
                    if clients && decision.verdict == Verdict::Run {
                        return Err(HistoryError::MissingResult(decision.call_id));
                    }
                    decided.push((at, decision.verdict));
                }
                None => return Err(HistoryError::OrphanResult(decision.call_id)),
            }
        }
        for (at, verdict) in decided {
            if let Some(slot) = round.slots.get_mut(at) {
                slot.state = match verdict {
                    Verdict::Run => SlotState::Ready,
                    Verdict::Settle(outcome) => SlotState::Settled(outcome),
                };
            }
        }
        Ok(())
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
        match &self.state.stage {
            Stage::Model => {
                self.asked = true;
                Some(Action::CallModel {
                    step: self.state.step,
                })
            }
            Stage::Round(_) => {
                self.go_on_with_round();
                if self.dispatched.is_empty() {
                    self.action()
                } else {
                    self.actions.pop_front()
                }
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
            Input::ModelStarted(start) if self.asked => {
                self.asked = false;
                let event = StepStart::new(self.state.step, start.message_id.clone());
                self.stream = Some(Step::new(start));
                self.emit(Event::StepStart(Box::new(event)));
            }
            Input::ModelEnded if self.stream.is_some() => {
                self.fail(crate::response::truncated());
            }
            Input::ModelFailed(error) if self.asked || self.stream.is_some() => self.fail(error),
            Input::Settled { index, outcome } => self.settle(index, outcome),
            Input::RoundEnded => self.end_round(),
            Input::RoundFailed(error) if !self.dispatched.is_empty() => self.fail(error),
            Input::Halt(reason) => self.stop(Outcome::Halted { reason }),
            Input::Cancel(reason) => self.stop(Outcome::Aborted { reason }),
            Input::Deadline => self.fail(late()),
            Input::Dropped => {
                self.close_round("The run was dropped.");
                self.actions.clear();
                self.stream = None;
                self.asked = false;
                self.state.stage = Stage::Ended;
            }
            // The rest is late: what it speaks of is over.
            _ => {}
        }
    }

    // ---- the model's answer ----

    fn finish_step(&mut self, mut finish: Box<Finish>) {
        let Some(step) = self.stream.take() else {
            return;
        };
        self.state.usage += finish.usage;
        let at = self.state.step;
        self.state.step += 1;
        self.emit(Event::StepFinish(Box::new(StepFinish::new(
            at,
            finish.reason.clone(),
            finish.usage,
        ))));
        let (message, slots) = match step.end() {
            Ok(answer) => answer,
            Err(error) => return self.fail(protocol(&error)),
        };
        if !slots.is_empty() {
            self.state.reason = Some(finish.reason);
            self.state.provider_reason = finish.provider_reason;
            self.state.stage = Stage::round(at, message, slots);
            return;
        }
        if !message.parts.is_empty() {
            match Turn::message(message) {
                Ok(turn) => self.state.transcript.push(turn),
                Err(error) => return self.fail(protocol(&error)),
            }
        }
        // The rest is as the model said it: an agent in its place may have been halted, or wait.
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
        let mut calls = Vec::with_capacity(round.slots.len());
        for (at, slot) in round.slots.iter_mut().enumerate() {
            if slot.state == SlotState::Ready {
                slot.state = SlotState::Running;
                self.dispatched.push(at);
                if slot.refusal.is_none() && !slot.read_only {
                    self.state.effects = self.state.effects.max(Effects::Possible);
                }
                let mut call = RoundCall::new(at, slot.call.clone());
                call.refusal = slot.refusal.clone();
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
        } else if round.slots.iter().any(|s| s.state == SlotState::Waiting) {
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
        if slot.state != SlotState::Running {
            return;
        }
        if outcome.status == crate::ToolStatus::Done && !slot.read_only {
            self.state.effects = Effects::Committed;
        }
        slot.state = SlotState::Settled(outcome);
    }

    fn end_round(&mut self) {
        let Stage::Round(round) = &mut self.state.stage else {
            return;
        };
        for at in self.dispatched.drain(..) {
            if let Some(slot) = round.slots.get_mut(at)
                && slot.state == SlotState::Running
            {
                slot.state = SlotState::Settled(ToolOutcome::unknown(
                    "The tool was started, and did not report what came of it.",
                ));
            }
        }
        self.go_on_with_round();
    }

    fn after_round(&mut self) {
        match self.close_round("The call was not run.") {
            Some(reason) => self.finish(Outcome::Halted { reason }, None),
            None if self.state.step >= self.state.step_limit => {
                self.finish(Outcome::StepLimit, None);
            }
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
        let RoundState { message, slots, .. } = *round;
        let mut halt = None;
        let mut results = Vec::with_capacity(slots.len());
        for slot in slots {
            let outcome = match slot.state {
                SlotState::Settled(outcome) => outcome,
                // It may have done its work, and nobody was told.
                SlotState::Running if slot.refusal.is_none() && !slot.read_only => {
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
        if let Stage::Round(round) = std::mem::replace(&mut self.state.stage, Stage::Model) {
            let open = round.into_open();
            self.finish(Outcome::Interrupted, Some(Box::new(open)));
        }
    }

    // ---- the end ----

    fn finish(&mut self, outcome: Outcome, open_round: Option<Box<OpenRound>>) {
        let mut finish = Finish::new(
            self.state.reason.clone().unwrap_or(FinishReason::Stop),
            self.state.usage,
        )
        .with_outcome(outcome);
        finish.provider_reason = self.state.provider_reason.clone();
        finish.transcript = Some(self.state.transcript.clone());
        finish.open_round = open_round;
        self.emit(Event::Finish(Box::new(finish)));
        self.state.stage = Stage::Ended;
    }

    /// Ends the run before its own end, and keeps what was said.
    fn stop(&mut self, outcome: Outcome) {
        self.drop_stream();
        self.close_round("The run was stopped before the call was done.");
        self.finish(outcome, None);
    }

    fn fail(&mut self, error: Error) {
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
        if let Some(step) = self.stream.take()
            && let Some(turn) = step.give_up()
        {
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

impl Slot {
    /// Whether its outcome ends the run.
    fn halts(&self) -> bool {
        matches!(&self.state, SlotState::Settled(outcome) if outcome.halt.is_some())
    }

    fn new(call: crate::ToolCallPart, refusal: Option<Refusal>, read_only: bool) -> Self {
        let state = match call.executor {
            Executor::Client if refusal.is_none() => SlotState::Waiting,
            _ => SlotState::Ready,
        };
        Self {
            call,
            refusal,
            read_only,
            state,
        }
    }
}
