//! The open round: how its calls are handed out, settled and closed.

use super::{Action, Dispatched, Machine};
use crate::{
    call::{CallStage, RoundCall},
    error::SideEffects,
    event::Event,
    interrupt::{SuspendedBy, Suspension},
    message::{Message, ToolOutcome, ToolResult, ToolStatus},
    run_state::{RoundState, RunState, Stage, StoredCall},
    text::Str,
    transcript::Round,
    usage::Outcome,
};
use std::collections::HashSet;

impl Machine {
    /// Returns whether a call that was handed out has no outcome yet.
    pub fn has_running(&self) -> bool {
        match &self.state.stage {
            Stage::Round(round) => round.calls.iter().any(StoredCall::is_running),
            _ => false,
        }
    }

    /// The message with the open calls.
    pub fn open_message(&self) -> Option<&Message> {
        match &self.state.stage {
            Stage::Round(round) => Some(&round.message),
            _ => None,
        }
    }

    /// Returns whether a round was handed out for the first time.
    pub fn is_round_new(&self) -> bool {
        match &self.state.stage {
            Stage::Round(round) => {
                let mut dispatched = self.dispatched.iter();
                // A round in which the client has already run calls can no longer be prevented.
                !round.begun
                    && self.is_handed_out()
                    && dispatched.all(|it| {
                        let call = round.calls.get(it.at);
                        call.is_some_and(StoredCall::is_fresh)
                    })
            }
            _ => false,
        }
    }

    /// Hands out calls that are ready; otherwise closes the round, or interrupts the run.
    pub(super) fn go_on_with_round(&mut self) {
        let Stage::Round(round) = &mut self.state.stage else {
            return;
        };
        if !self.dispatched.is_empty() {
            return;
        }
        if round.calls.iter().any(StoredCall::halts) {
            return self.after_round();
        }
        if !self.rules.resumes {
            // Without a round service that can request approval again, the call is cancelled.
            let not_run = || ToolOutcome::cancelled("The call was not run.");
            round.settle_each(|call| call.is_claimed().then(not_run));
        }
        let asks = round.calls.iter().any(StoredCall::is_suspended);
        let calls = self.hand_out(!asks);
        let Stage::Round(round) = &self.state.stage else {
            return;
        };
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

    /// Hands out the calls that are ready; `release` states whether those are that wait for other
    /// calls.
    fn hand_out(&mut self, release: bool) -> Vec<RoundCall> {
        self.effects_before = self.state.effects;
        let Stage::Round(round) = &mut self.state.stage else {
            return Vec::new();
        };
        // Allocated for the first call: most rounds are handed out once, and have none the next time.
        let (mut calls, count) = (Vec::new(), round.calls.len());
        for (at, call) in round.calls.iter_mut().enumerate() {
            if release {
                call.release();
            }
            if call.is_ready() {
                if calls.is_empty() {
                    calls.reserve_exact(count - at);
                }
                calls.push(call.to_round_call(at));
                let released = matches!(call.state.stage, CallStage::Released { .. });
                self.dispatched.push(Dispatched { at, released });
                call.state.hand_out(self.rules.ledger);
                if call.state.may_have_executed() {
                    self.state.effects = self.state.effects.max(SideEffects::Possible);
                }
            }
        }
        calls
    }

    pub(super) fn settle(&mut self, index: usize, outcome: ToolOutcome) {
        let Some((round, at)) = handed_out(&mut self.state.stage, &self.dispatched, index) else {
            return;
        };
        let Some(call) = round.calls.get(at) else {
            return;
        };
        if !call.is_running() {
            return;
        }
        if outcome.status == ToolStatus::Done && !call.state.read_only {
            self.state.effects = SideEffects::Committed;
        }
        round.settle(at, outcome);
        round.begun = true;
    }

    pub(super) fn suspend(&mut self, index: usize, on: Box<Suspension>, by: SuspendedBy) {
        let Some((round, at)) = handed_out(&mut self.state.stage, &self.dispatched, index) else {
            return;
        };
        let asked = self
            .asked_ids
            .get_or_insert_with(|| Box::new(round.interrupts().map(|it| it.id.clone()).collect()));
        let Some(call) = round.calls.get_mut(at) else {
            return;
        };
        if call.state.take_back().is_none() {
            return;
        }
        round.begun = true;
        let mut own = HashSet::new();
        let mut ids = on.interrupts.iter().map(|asked| &asked.id);
        if let Some(refusal) = call.state.stage.refusal() {
            let outcome = refusal.outcome(&call.call);
            round.settle(at, outcome);
        } else if ids.all(|id| own.insert(id) && !asked.contains(id)) {
            asked.extend(own.into_iter().cloned());
            call.state.suspend(on, by);
        } else {
            // A reply would reach only one of the two interrupts.
            let outcome = call.state.settle_unexecuted(ToolOutcome::failed(
                "The call failed: it raised an interrupt with an id that is already in use.",
            ));
            round.settle(at, outcome);
        }
    }

    /// Withdraws the calls that were handed out, because the round service was not called.
    pub(super) fn take_round_back(&mut self) {
        self.offered = false;
        if let Stage::Round(round) = &mut self.state.stage {
            for Dispatched { at, .. } in self.dispatched.drain(..) {
                if let Some(call) = round.calls.get_mut(at) {
                    call.state.take_back();
                }
            }
            self.state.effects = self.effects_before;
        }
    }

    /// Denies the calls that were handed out, because the round service was not called.
    pub(super) fn deny_round(&mut self, reason: &Str) {
        for index in 0..self.dispatched.len() {
            self.settle(index, ToolOutcome::denied(reason.clone()));
        }
        if let Stage::Round(round) = &mut self.state.stage {
            // Client calls are denied as well.
            round.settle_each(|call| {
                call.is_suspended()
                    .then(|| ToolOutcome::denied(reason.clone()))
            });
        }
        self.state.effects = self.effects_before;
    }

    pub(super) fn end_round(&mut self) {
        let Stage::Round(round) = &mut self.state.stage else {
            return;
        };
        round.begun = true;
        self.offered = false;
        let asks = round.calls.iter().any(StoredCall::is_suspended);
        let is_settled = |it: &Dispatched| {
            let call = round.calls.get(it.at);
            call.is_some_and(|call| call.outcome().is_some())
        };
        let goes_on = asks || self.dispatched.iter().any(is_settled);
        self.asked_ids = None;
        for Dispatched { at, released } in self.dispatched.drain(..) {
            let Some(call) = round.calls.get(at) else {
                continue;
            };
            if call.is_running() {
                let outcome =
                    ToolOutcome::unknown("The call was started, but its outcome was not reported.");
                round.settle(at, outcome);
            } else if !goes_on && released && call.is_held() {
                // The call waits for calls that do not wait for a reply, so it would be handed out
                // forever.
                let outcome = call.state.settle_unexecuted(ToolOutcome::failed(
                    "The call failed: it waits for other calls, but none of them can continue.",
                ));
                round.settle(at, outcome);
            }
        }
        self.go_on_with_round();
    }

    fn after_round(&mut self) {
        let Stage::Round(round) = &self.state.stage else {
            return;
        };
        let is_free = |call: &StoredCall| call.outcome().is_some_and(|outcome| outcome.free);
        if round.calls.iter().all(is_free) {
            // A round from a history belongs to no step of this run. The cap guarantees that the
            // run ends.
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
    pub(super) fn close_round(&mut self, otherwise: &str) -> Option<Str> {
        let Stage::Round(_) = &self.state.stage else {
            return None;
        };
        let Stage::Round(round) = std::mem::replace(&mut self.state.stage, Stage::Model) else {
            return None;
        };
        self.dispatched.clear();
        self.offered = false;
        let RoundState { message, calls, .. } = *round;
        let mut halt = None;
        let mut results = Vec::with_capacity(calls.len());
        self.actions.reserve(calls.len());
        for call in calls {
            let (name, id) = (call.call.name.clone(), call.call.id.clone());
            let outcome = call.close(otherwise);
            if halt.is_none() {
                halt.clone_from(&outcome.halt);
            }
            let result = ToolResult::new(id, name, outcome);
            results.push(result.clone());
            self.emit(Event::ToolResult(Box::new(result)));
        }
        self.state.transcript.push(Round::closed(message, results));
        let queued = std::mem::take(&mut self.state.queued);
        self.state.transcript.extend(queued.iter().cloned());
        halt
    }

    pub(super) fn interrupt(&mut self) {
        let mut finish = self.finish_of(Outcome::Interrupted);
        let mut state = self.reported();
        // A suspension before the end has no replies yet.
        state.at_end |= self.finishing.is_some();
        finish.state = Some(Box::new(RunState(state)));
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }
}

/// The open round, and the index of the call that was handed out as number `index`.
fn handed_out<'a>(
    stage: &'a mut Stage,
    dispatched: &[Dispatched],
    index: usize,
) -> Option<(&'a mut RoundState, usize)> {
    match stage {
        Stage::Round(round) => Some((round, dispatched.get(index)?.at)),
        _ => None,
    }
}
