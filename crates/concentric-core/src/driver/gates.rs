//! The step gates of a run.

use super::run::Run;
use crate::step_gate::{
    Deciding, FinishVerdict, Moment, RoundVerdict, Said, StepVerdict, StepView,
};
use concentric_proto::{Error, ErrorKind, Turn, interrupt::StepResume, machine::Input};
use std::future::ready;

impl<M, R> Run<M, R> {
    /// Starts the evaluation of the gates for the machine's next action; `None` if no gate applies.
    pub(super) fn decide(&mut self, moment: Moment, step: u32) -> Option<Deciding> {
        let is_here = |gate: &str| self.gates.as_ref().is_some_and(|gates| gates.has(gate));
        let all_here = raised_by(self.machine.answers()).all(is_here);
        let deciding = match all_here {
            true => self.decided(moment, step),
            false => None,
        };
        // An action that waited for replies requires the gate that raised the interrupt.
        if deciding.is_none() && self.machine.take_answers().is_some() {
            let why = "no gate has the name of the gate that raised the answered interrupt; add that gate again";
            let error = Error::new(ErrorKind::Configuration, why);
            self.takes_back |= moment == Moment::Round;
            return Some(match moment {
                Moment::Round => Deciding::Round(Box::pin(ready(Err(error)))),
                Moment::Step => Deciding::Step(Box::pin(ready(Err(error)))),
                Moment::Finish => Deciding::Finish(Box::pin(ready(Err(error)))),
            });
        }
        deciding
    }

    fn decided(&mut self, moment: Moment, step: u32) -> Option<Deciding> {
        let gates = self.gates.as_ref()?;
        let machine = &mut self.machine;
        // A round that was already started keeps its decision.
        if moment == Moment::Round && !machine.is_round_new() {
            return None;
        }
        let deciding = gates.decide(moment, || {
            let context = self.context.clone();
            let transcript = machine.transcript().clone();
            StepView::new(moment, step, transcript, machine.usage(), context)
                .of_message(machine.open_message().cloned())
                .finished_by(machine.last_reason().cloned())
                .answered(machine.take_answers())
        });
        self.takes_back |= moment == Moment::Round && deciding.is_some();
        deciding
    }

    /// Applies the decision of the gates before a step, and returns whether to make the step.
    pub(super) fn before_step(&mut self, decision: Result<Said<StepVerdict>, Error>) -> bool {
        let verdict = decision.map(|decision| {
            self.push_turns(decision.turns);
            decision.verdict
        });
        self.machine.input(match verdict {
            Ok(StepVerdict::Continue) => return true,
            Ok(StepVerdict::Ask(pending)) => Input::Ask(Box::new(pending)),
            Ok(StepVerdict::Finish) => Input::Finish,
            Ok(StepVerdict::Halt(reason)) => Input::Halt(reason),
            Err(error) => Input::ModelFailed(error),
        });
        false
    }

    /// Applies the decision of the gates before a round, and returns whether to run its calls.
    pub(super) fn before_round(&mut self, decision: Result<RoundVerdict, Error>) -> bool {
        match decision {
            Ok(RoundVerdict::Continue) => return true,
            Ok(RoundVerdict::Ask(pending)) => self.machine.input(Input::Ask(Box::new(pending))),
            Ok(RoundVerdict::Skip(reason)) => self.machine.input(Input::SkipRound(reason)),
            Ok(RoundVerdict::Halt(reason)) => {
                self.machine.input(Input::TakeBack);
                self.machine.input(Input::Halt(reason));
            }
            Err(error) => self.machine.input(Input::RoundRefused(error)),
        }
        false
    }

    /// Applies the decision of the gates before the end of the run.
    pub(super) fn before_finish(&mut self, decision: Result<Said<FinishVerdict>, Error>) {
        let verdict = decision.map(|decision| {
            self.push_turns(decision.turns);
            decision.verdict
        });
        self.machine.input(match verdict {
            Ok(FinishVerdict::Finish) => Input::Finish,
            Ok(FinishVerdict::Continue) => Input::Continue,
            Ok(FinishVerdict::Reject) => Input::Reject,
            Ok(FinishVerdict::Ask(pending)) => Input::Ask(Box::new(pending)),
            Ok(FinishVerdict::Halt(reason)) => Input::Halt(reason),
            Err(error) => Input::Failed(error),
        });
    }

    fn push_turns(&mut self, turns: Vec<Turn>) {
        for turn in turns {
            self.machine.push(turn);
        }
    }
}

/// Returns the names of the gates that raised the answered interrupts.
fn raised_by(answered: Option<&StepResume>) -> impl Iterator<Item = &str> {
    let names = answered.and_then(|answered| answered.on.state.as_ref()?.as_array());
    names.into_iter().flatten().filter_map(|name| name.as_str())
}
