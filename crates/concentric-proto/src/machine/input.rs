//! The inputs of the machine.

use super::{Finishing, Machine, ModelStart, Step, end::protocol};
use crate::{
    call::RoundEvent,
    error::Error,
    event::{Event, StepFinish, StepStart},
    finish::Finish,
    id::MessageId,
    interrupt::{Answered, Pending},
    message::ToolOutcome,
    run_state::{Said, Stage},
    text::Str,
    transcript::Turn,
    usage::{CancelReason, Outcome},
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
        /// Which, as an index into [`Action::RunTools`](super::Action::RunTools)'s calls.
        index: usize,
        /// What came of it.
        outcome: ToolOutcome,
    },
    /// A call of the round that was to be run waits.
    Waiting {
        /// Which, as an index into [`Action::RunTools`](super::Action::RunTools)'s calls.
        index: usize,
        /// What it waits for.
        pending: Box<Pending>,
    },
    /// The calls that were handed out are taken back: the round service was not called. They are
    /// handed out again unless another input ends the run.
    TakeBack,
    /// The round is not run: the calls that were handed out, and those that the client executes, are
    /// denied for this reason.
    SkipRound(Str),
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
    /// The run is to come to its own end, in place of the next step, or of [`Action::MayFinish`](super::Action::MayFinish).
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

impl Machine {
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
    /// It is [`Input::ModelEvent`] and [`Action::Emit`](super::Action::Emit) in one, for a driver that hands on each event
    /// as it comes.
    #[inline]
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
    pub fn delta(&mut self, event: &Event) -> bool {
        match &mut self.stream {
            Some(step) => step.builder.push_delta(event),
            None => false,
        }
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
                self.fail(Error::truncated());
            }
            Input::ModelFailed(error) if self.asked || self.stream.is_some() => self.fail(error),
            Input::Settled { index, outcome } => self.settle(index, outcome),
            Input::Waiting { index, pending } => self.wait(index, pending),
            Input::RoundRefused(error) if self.is_handed_out() => {
                self.take_round_back();
                self.fail(error);
            }
            Input::TakeBack if self.is_handed_out() => self.take_round_back(),
            Input::SkipRound(reason) if self.is_handed_out() => self.skip_round(&reason),
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
            Input::Deadline => self.fail(Error::deadline()),
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
            finish.transcript = Some(self.state.transcript.clone());
            finish.state = Some(Box::new(self.state.clone().around(said, *open)));
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
    pub(super) fn may_finish(&mut self, finish: Box<Finish>) {
        let asked = false;
        self.finishing = Some(Box::new(Finishing { finish, asked }));
    }

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

    pub(super) fn charged(&self) -> u32 {
        self.state.step.saturating_sub(self.state.free)
    }
}
