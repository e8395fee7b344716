//! The end of a run.

use super::{Action, Machine, step::text_of};
use crate::{
    builder::MessageBuilder,
    error::{Error, ErrorKind},
    event::Event,
    finish::Finish,
    response_head::ResponseHead,
    run_state::{Data, Stage, nothing},
    text::Str,
    transcript::{HistoryError, Turn},
    usage::{FinishReason, Outcome},
};

impl Machine {
    pub(super) fn end_with(&mut self, mut finish: Box<Finish>) {
        self.report(&mut finish);
        finish.transcript = Some(self.state.transcript.clone());
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }

    pub(super) fn finish(&mut self, outcome: Outcome) {
        let finish = self.finish_of(outcome);
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }

    /// Reports the run's tokens in `finish`.
    pub(super) fn report(&self, finish: &mut Finish) {
        finish.report(self.state.usage, self.state.unreported.as_deref());
    }

    /// The state of a run whose tokens a finish reports now.
    pub(super) fn reported(&self) -> Data {
        let mut state = self.state.clone();
        state.unreported = nothing();
        state
    }

    /// Ends a run whose model is not called: closes the open round, emits `text` as the answer, if
    /// any, and finishes with `outcome`.
    pub fn finish_with(&mut self, text: Option<Str>, outcome: Outcome) {
        if self.is_ended() {
            return;
        }
        self.drop_stream();
        self.close_round("The run was stopped before the call completed.");
        if let Some(text) = text {
            let event = Event::TextDelta(text);
            let mut message = MessageBuilder::new(&ResponseHead::default());
            message.push(&event);
            let message = message.build();
            if !message.parts.is_empty()
                && let Ok(turn) = Turn::message(message)
            {
                self.state.transcript.push(turn);
            }
            self.state.reason = Some(FinishReason::Stop);
            self.state.provider_reason = None;
            self.emit(event);
        }
        self.finish(outcome);
    }

    /// Creates the finish of the run so far.
    pub(super) fn finish_of(&self, outcome: Outcome) -> Box<Finish> {
        let reason = self.state.reason.clone().unwrap_or(FinishReason::Stop);
        let mut finish = Finish::new(reason, self.state.usage).with_outcome(outcome);
        self.report(&mut finish);
        finish.provider_reason = self.state.provider_reason.clone();
        finish.transcript = Some(self.state.transcript.clone());
        Box::new(finish)
    }

    /// Ends the run early and keeps the messages so far.
    pub(super) fn stop(&mut self, outcome: Outcome) {
        self.drop_stream();
        self.close_round("The run was stopped before the call completed.");
        self.finish(outcome);
    }

    pub(super) fn fail(&mut self, error: Error) {
        if error.kind() == ErrorKind::Halted {
            let reason = error.message().into();
            return self.stop(Outcome::Halted { reason });
        }
        self.drop_stream();
        self.close_round("The run failed before the call completed.");
        let effects = error.effects().max(self.state.effects);
        self.actions
            .push_back(Action::Fail(error.with_effects(effects)));
        self.state.stage = Stage::Ended;
    }

    /// Takes the error of a run that has failed, and drops the events before it. For a run without a
    /// consumer yet: the error is then the only result of this attempt.
    pub fn take_failure(&mut self) -> Option<Error> {
        if !self.is_ended() {
            return None;
        }
        match self.actions.pop_back()? {
            Action::Fail(error) => {
                self.actions.clear();
                Some(error)
            }
            action => {
                self.actions.push_back(action);
                None
            }
        }
    }

    /// Discards a partially read model stream, but keeps its text.
    pub(super) fn drop_stream(&mut self) {
        self.asked = false;
        self.started = None;
        self.finishing = None;
        let said = match (&mut self.state.stage, self.stream.take()) {
            (_, Some(step)) => step.give_up(),
            (Stage::Inner(inner), None) => text_of(inner.said.message.clone()),
            _ => self
                .interrupted
                .take()
                .and_then(|interrupted| text_of(interrupted.0.message)),
        };
        if let Some(turn) = said {
            self.state.transcript.push(turn);
        }
        // Pending actions other than events are dropped, because a stop must not start any call.
        self.actions
            .retain(|action| matches!(action, Action::Emit(_)));
    }
}

pub(super) fn protocol(error: &HistoryError) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!("invalid model answer: {error}"),
    )
}
