//! The inputs of the machine.

use super::{Action, Finishing, Machine, ModelStart, Step, end::protocol};
use crate::{
    call::RoundEvent,
    error::Error,
    event::{Event, StepFinish, StepStart},
    finish::Finish,
    id::MessageId,
    interrupt::{StepResume, SuspendedBy, Suspension},
    message::ToolOutcome,
    run_state::{Said, Stage},
    text::Str,
    transcript::Turn,
    usage::{CancelReason, Outcome, Usage},
};

/// An event that the driver reports to the machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Input {
    /// The driver is about to call the model. Emits [`Event::StepStart`] with this message id now
    /// instead of when the model [answers](Self::ModelStarted).
    ///
    /// While a run may still be retried after a failure, its driver leaves the event in the machine
    /// until the model answers.
    StepStarted(MessageId),
    /// The model started to answer.
    ModelStarted(ModelStart),
    /// An event of the model's answer.
    ModelEvent(Event),
    /// The model's answer ended without a terminal item.
    ModelEnded,
    /// The model call or its answer failed.
    ModelFailed(Error),
    /// A call of the round has an outcome.
    Settled {
        /// The call, as an index into the calls of [`Action::RunTools`](super::Action::RunTools).
        index: usize,
        /// The outcome of the call.
        outcome: ToolOutcome,
    },
    /// A call of the round is suspended.
    Suspended {
        /// The call, as an index into the calls of [`Action::RunTools`](super::Action::RunTools).
        index: usize,
        /// The suspension of the call.
        on: Box<Suspension>,
        /// The component that suspended the call.
        by: SuspendedBy,
    },
    /// The round service was not called. The calls are handed out again unless another input ends
    /// the run.
    TakeBack,
    /// Skips the round: all calls that were handed out, and those for the client, are denied for
    /// this reason.
    SkipRound(Str),
    /// Skips the round, and ends the run with this text, which is also the reason of the denials.
    AnswerRound(Str),
    /// The round service has reported all outcomes.
    RoundEnded,
    /// The round service rejected the round before it started, which fails the run.
    RoundRefused(Error),
    /// The round failed, which fails the run.
    RoundFailed(Error),
    /// A required operation failed, which fails the run.
    Failed(Error),
    /// A layer halts the run deliberately.
    Halt(Str),
    /// Ends the run normally instead of starting the next step, or in response to
    /// [`Action::MayFinish`](super::Action::MayFinish).
    Finish,
    /// Starts another step instead of finishing, after the turns that were [pushed](Machine::push).
    Continue,
    /// Discards the answer and starts another step. Emits [`Event::Reset`] unless the step limit is
    /// reached.
    Reject,
    /// Suspends the run before a model call, before the calls that were handed out, or before the
    /// end.
    Ask(Box<Suspension>),
    /// The run is cancelled.
    Cancel(CancelReason),
    /// The run's deadline has passed.
    Deadline,
    /// The consumer of the run has dropped it.
    Dropped,
}

impl Input {
    /// Converts an item of a round service's stream.
    pub fn of_round(item: Result<RoundEvent, Error>) -> Self {
        match item {
            Ok(RoundEvent::Settled { index, outcome }) => Self::Settled { index, outcome },
            Ok(RoundEvent::Suspended { index, on, by }) => Self::Suspended { index, on, by },
            Err(error) => Self::RoundFailed(error),
        }
    }
}

impl Machine {
    /// Processes an event of the model's answer, and returns the event to pass on to the consumer,
    /// if any. The driver must pass it on after the [actions](Self::action) that were pending, and
    /// before those that the event adds.
    ///
    /// Combines [`Input::ModelEvent`] and [`Action::Emit`], for drivers that
    /// pass on each event immediately.
    #[inline]
    pub fn model_event(&mut self, event: Event) -> Option<Event> {
        let step = self.stream.as_mut()?;
        if step.builder.push_delta(&event) {
            return Some(event);
        }
        if let Event::Finish(finish) = event {
            return self.finish_step(finish);
        }
        step.take_in(event)
    }

    /// Processes an input. Inputs that arrive too late are ignored.
    // Not inlined: an input has 170 bytes, and is passed by reference to a function that is called.
    pub fn input(&mut self, input: Input) {
        if self.is_ended() {
            return;
        }
        match input {
            Input::ModelEvent(event) => {
                let is_first = self.actions.is_empty();
                match self.model_event(event).map(Action::Emit) {
                    Some(action) if is_first => self.actions.push_front(action),
                    Some(action) => self.actions.push_back(action),
                    None => {}
                }
            }
            Input::ModelStarted(start) => self.model_started(start),
            Input::StepStarted(id) => self.step_started(id),
            Input::ModelEnded if self.stream.is_some() => {
                self.fail(Error::truncated());
            }
            Input::ModelFailed(error) if self.asked || self.stream.is_some() => self.fail(error),
            Input::Settled { index, outcome } => self.settle(index, outcome),
            Input::Suspended { index, on, by } => self.suspend(index, on, by),
            Input::RoundRefused(error) if self.is_handed_out() => {
                self.take_round_back();
                self.fail(error);
            }
            Input::TakeBack if self.is_handed_out() => self.take_round_back(),
            Input::SkipRound(reason) if self.is_handed_out() => {
                self.deny_round(&reason);
                self.end_round();
            }
            Input::AnswerRound(text) if self.is_handed_out() => {
                self.deny_round(&text);
                self.finish_with(Some(text), Outcome::Completed);
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
            Input::Ask(on) if self.may_ask() => {
                self.asked = false;
                self.state.at_end = self.finishing.take().is_some();
                self.take_round_back();
                let replies = Vec::new();
                self.state.gate = Some(Box::new(StepResume { on: *on, replies }));
            }
            Input::Cancel(reason) => self.stop(Outcome::Aborted { reason }),
            Input::Deadline => self.fail(Error::deadline()),
            Input::Dropped => self.dropped(),
            // Other inputs arrived too late.
            _ => {}
        }
    }

    /// Processes [`Input::StepStarted`], without moving the id through an input.
    #[inline]
    pub fn step_started(&mut self, id: MessageId) {
        if self.asked && self.started.is_none() {
            self.started = Some(self.start_step(id));
        }
    }

    /// Processes [`Input::ModelStarted`], without moving the start through an input.
    pub fn model_started(&mut self, mut start: ModelStart) {
        if !self.asked {
            return;
        }
        self.asked = false;
        start.message_id = match self.started.take() {
            Some(id) => id,
            None => self.start_step(start.message_id),
        };
        let step = self.stream.insert(Step::new(start));
        if let Some(interrupted) = self.interrupted.take() {
            let (said, unsaid) = *interrupted;
            step.go_on(said, unsaid);
        }
    }

    fn dropped(&mut self) {
        self.close_round("The run was cancelled before the call completed.");
        self.actions.clear();
        self.stream = None;
        self.asked = false;
        self.started = None;
        self.finishing = None;
        self.interrupted = None;
        self.state.stage = Stage::Ended;
    }

    /// Emits the start of a step, and returns the id of its message: `id`, or that of an
    /// interrupted message.
    fn start_step(&mut self, id: MessageId) -> MessageId {
        // An interrupted message keeps its id when the model continues it.
        let interrupted = self.interrupted.as_deref();
        let id = interrupted
            .and_then(|i| i.0.message.id.clone())
            .unwrap_or(id);
        let event = StepStart::new(self.state.step, id.clone());
        self.emit(Event::StepStart(Box::new(event)));
        id
    }

    /// Ends the step, and returns the event to pass on before the pending actions, if any.
    fn finish_step(&mut self, mut finish: Box<Finish>) -> Option<Event> {
        let mut step = self.stream.take()?;
        // This loop's calls run first, and then the nested agent is called again. So the open calls
        // of the nested agent end here.
        if step.has_calls()
            && let Some(open) = finish.state.take()
        {
            for result in open.0.given_up() {
                if let Some(event) = step.take_in(Event::ToolResult(Box::new(result))) {
                    self.emit(event);
                }
            }
        }
        let said_after = finish
            .state
            .is_some()
            .then(|| step.used_before(self.state.usage));
        self.count_usage(&step, &finish);
        let usage = finish.attempt_usage();
        let finished = StepFinish::new(self.state.step, finish.reason.clone(), usage);
        let finished = Event::StepFinish(Box::new(finished));
        let next = match self.actions.is_empty() {
            true => Some(finished),
            false => {
                self.emit(finished);
                None
            }
        };
        self.take_answer(step, finish, said_after);
        next
    }

    fn count_usage(&mut self, step: &Step, finish: &Finish) {
        let resumed_at = step.resumed_at();
        // A resumed nested agent has already reported the other tokens.
        if self.state.unreported.is_some() || resumed_at.is_some() || finish.is_partly_reported() {
            *self.state.unreported_mut() += finish.attempt_usage();
        }
        if let Some(used) = resumed_at {
            self.state.usage = used;
        }
        self.state.usage += finish.usage;
    }

    /// Takes the complete answer. `said_after` are the tokens used before a nested agent's answer
    /// began that was interrupted.
    fn take_answer(&mut self, mut step: Step, mut finish: Box<Finish>, said_after: Option<Usage>) {
        let at = self.state.step;
        let (message, mut calls) = match step.end(&finish.reason) {
            Ok(answer) => answer,
            Err(error) => return self.fail(protocol(&error)),
        };
        if let (Some(open), Some(used)) = (finish.state.take(), said_after) {
            let said = Said::new(message, calls, used);
            self.report(&mut finish);
            finish.transcript = Some(self.state.transcript.clone());
            finish.state = Some(Box::new(self.reported().around(said, *open)));
            self.emit(Event::Finish(finish));
            self.state.stage = Stage::Ended;
            return;
        }
        self.state.step = at.saturating_add(1);
        self.state.reason = Some(finish.reason.clone());
        self.state
            .provider_reason
            .clone_from(&finish.provider_reason);
        if !calls.is_empty() {
            self.rules.count(&mut self.state.calls, &mut calls);
            for (position, call) in calls.iter_mut().enumerate() {
                call.await_client(&message, position);
            }
            self.state.stage = Stage::round(at, message, calls);
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
        // A nested agent may have been halted; its outcome is passed on.
        if self.rules.asks_to_finish && finish.outcome == Outcome::Completed {
            self.may_finish(finish);
        } else {
            self.end_with(finish);
        }
    }

    /// Requests permission to finish from the driver.
    pub(super) fn may_finish(&mut self, finish: Box<Finish>) {
        let asked = false;
        self.finishing = Some(Box::new(Finishing { finish, asked }));
    }

    /// Returns whether the run can be suspended by a gate now. For a resumed nested agent this was
    /// possible only when it started.
    fn may_ask(&self) -> bool {
        let may_finish = self.finishing.as_ref().is_some_and(|end| end.asked);
        may_finish || (self.asked && self.interrupted.is_none()) || self.is_round_new()
    }

    /// Ends the run instead of starting the next step.
    fn come_to_the_end(&mut self) {
        match self.finishing.take() {
            Some(finishing) => self.end_with(finishing.finish),
            None if self.asked => {
                self.drop_stream();
                self.finish(Outcome::Completed);
            }
            // The open round must be closed first.
            None => {}
        }
    }

    /// Starts another step, unless the step limit is reached.
    fn go_on(&mut self) {
        if self.charged() >= self.rules.steps {
            self.finish(Outcome::StepLimit);
        }
    }

    pub(super) fn charged(&self) -> u32 {
        self.state.step.saturating_sub(self.state.free)
    }
}
