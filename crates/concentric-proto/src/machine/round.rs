//! The open round: how its calls are handed out, settled and closed.

use super::{Action, Machine};
use crate::{
    call::RoundCall,
    error::Effects,
    event::Event,
    interrupt::{Answered, Pending},
    message::{Message, ToolOutcome, ToolResult, ToolStatus},
    run_state::{MachineState, RoundState, Slot, SlotState, Stage, in_doubt},
    text::Str,
    transcript::Round,
    usage::Outcome,
};
use std::collections::HashSet;

impl Machine {
    /// Returns whether a call that was handed out has no outcome yet.
    pub fn has_running(&self) -> bool {
        match &self.state.stage {
            Stage::Round(round) => round.slots.iter().any(Slot::is_running),
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
                let slots = self.dispatched.iter().filter_map(|at| round.slots.get(*at));
                // A round in which the client has already run calls can no longer be prevented.
                !round.begun
                    && (self.offered || !self.dispatched.is_empty())
                    && slots.clone().all(|s| s.answered.is_none())
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
                // The call receives the value from when it was handed out before.
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

    pub(super) fn settle(&mut self, index: usize, outcome: ToolOutcome) {
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
        if outcome.status == ToolStatus::Done && !slot.read_only {
            self.state.effects = Effects::Committed;
        }
        slot.state = SlotState::Settled(outcome);
        round.begun = true;
    }

    pub(super) fn wait(&mut self, index: usize, pending: Box<Pending>) {
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
            // A reply would reach only one of the two interrupts.
            slot.state = SlotState::Settled(slot.failed(
                "The call failed: it raised an interrupt with an id that is already in use.",
            ));
            return;
        }
        asked.extend(own.into_iter().cloned());
        if !(pending.is_held() && slot.was_held()) {
            let answered = slot.answered.take();
            let waited = answered.and_then(|answered| answered.pending);
            slot.begun |= waited.is_some_and(|waited| waited.begun);
        }
        slot.state = SlotState::Waiting(Some(pending));
        round.begun = true;
    }

    /// Withdraws the calls that were handed out, because the round service was not called.
    pub(super) fn take_round_back(&mut self) {
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

    /// Denies the calls that were handed out, because the round service was not called.
    pub(super) fn skip_round(&mut self, reason: &Str) {
        for index in 0..self.dispatched.len() {
            self.settle(index, ToolOutcome::denied(reason.clone()));
        }
        if let Stage::Round(round) = &mut self.state.stage {
            // Client calls are denied as well.
            for slot in round.slots.iter_mut().filter(|slot| slot.asks()) {
                slot.state = SlotState::Settled(ToolOutcome::denied(reason.clone()));
            }
        }
        self.state.effects = self.effects_before;
        self.end_round();
    }

    pub(super) fn end_round(&mut self) {
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
                    "The call was started, but its outcome was not reported.",
                ));
            }
            // The call waits for calls that do not wait for a reply, so it would be handed out
            // forever.
            if !goes_on && slot.is_held() && slot.was_held() {
                slot.state = SlotState::Settled(slot.failed(
                    "The call failed: it waits for other calls, but none of them can continue.",
                ));
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
        let RoundState { message, slots, .. } = *round;
        let mut halt = None;
        let mut results = Vec::with_capacity(slots.len());
        for slot in slots {
            let only_asked_about = slot.is_only_asked_about();
            let by_client = slot.said_by_client();
            let is_in_doubt = slot.is_in_doubt();
            let outcome = match slot.state {
                SlotState::Settled(outcome) => outcome,
                // The client has run the call, whatever the end of the run.
                SlotState::Ready | SlotState::Running if let Some(said) = by_client => said,
                _ if is_in_doubt => in_doubt(),
                // The call may have executed, but has no recorded outcome.
                SlotState::Running
                    if slot.refusal.is_none() && !slot.read_only && !only_asked_about =>
                {
                    ToolOutcome::unknown(format!("{otherwise} It had already started."))
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
        for turn in std::mem::take(&mut self.state.queued) {
            self.state.transcript.push(turn);
        }
        halt
    }

    pub(super) fn interrupt(&mut self) {
        let mut finish = self.finish_of(Outcome::Interrupted);
        self.report(&mut finish);
        let mut state = self.state.clone();
        // A suspension before the end has no replies yet.
        state.at_end |= self.finishing.is_some();
        finish.state = Some(Box::new(MachineState(state)));
        self.emit(Event::Finish(finish));
        self.state.stage = Stage::Ended;
    }
}

impl Slot {
    /// Creates the outcome of a call that cannot continue: failed, or unknown if it may have
    /// executed.
    fn failed(&self, why: &'static str) -> ToolOutcome {
        match self.is_in_doubt() {
            true => in_doubt(),
            false => ToolOutcome::failed(why),
        }
    }

    /// Returns whether the call was handed out after it had only waited for other calls.
    fn was_held(&self) -> bool {
        let pending = self.answered.as_deref().and_then(|a| a.pending.as_ref());
        pending.is_some_and(Pending::is_held)
    }

    /// Resumes a call that waited for other calls.
    fn resume(&mut self) {
        let waiting = std::mem::replace(&mut self.state, SlotState::Ready);
        if let SlotState::Waiting(Some(pending)) = waiting {
            self.answered = Some(Box::new(Answered::new(Some(*pending), Vec::new())));
        }
    }
}
