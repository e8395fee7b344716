//! The step gates of a run.

use super::run::Run;
use crate::step_gate::{Decided, Moment, PendingDecision, RequestParts, StepDraft, StepView};
use concentric_proto::{Error, ErrorKind, Phase, Suspension, machine::Input, run_state::RunEdits};
use std::{future::ready, sync::Arc};

impl<M, R> Run<M, R> {
    /// Starts the evaluation of the gates for the machine's next action; `None` if no gate applies.
    #[inline]
    pub(super) fn decide(
        &mut self,
        moment: Moment,
        step: u32,
    ) -> Option<PendingDecision<'static, Decided>> {
        match self.gates.is_none() && self.machine.answered().is_none() {
            true => None,
            false => self.decide_or_resume(moment, step),
        }
    }

    fn decide_or_resume(
        &mut self,
        moment: Moment,
        step: u32,
    ) -> Option<PendingDecision<'static, Decided>> {
        let is_here = |gate: &str| self.gates.as_ref().is_some_and(|gates| gates.has(gate));
        let all_here = raised_by(self.machine.answered()).all(is_here);
        let mut pending = match all_here {
            true => self.decided(moment, step),
            false => None,
        };
        // An action that waited for replies requires the gate that raised the interrupt.
        if pending.is_none() && self.machine.take_answers().is_some() {
            let why = "no gate has the name of the gate that raised the answered interrupt; add that gate again";
            let error = Error::new(ErrorKind::Configuration, why);
            pending = Some(Box::pin(ready(Err(error))));
        }
        self.takes_back |= moment == Moment::Round && pending.is_some();
        pending
    }

    fn decided(&mut self, moment: Moment, step: u32) -> Option<PendingDecision<'static, Decided>> {
        let gates = self.gates.as_ref()?;
        let machine = &mut self.machine;
        // A round that was already started keeps its decision.
        if moment == Moment::Round && !machine.is_round_new() {
            return None;
        }
        gates.decide(moment, || {
            let request = RequestParts {
                system: self.system.clone(),
                tools: self.tools.clone(),
                options: Arc::clone(&self.options),
            };
            let view = StepView::new(moment, step, machine, self.context.clone());
            (view, request)
        })
    }

    /// Applies the decision of the gates, and returns whether to make the step or the round.
    pub(super) fn apply(&mut self, moment: Moment, decided: Result<Decided, Error>) -> bool {
        self.trace_decision(moment, &decided);
        let input = match decided {
            Ok(Decided { draft, input }) => {
                draft.into_iter().for_each(|draft| self.edit(draft));
                input
            }
            Err(error) => Some(match moment {
                Moment::Step => Input::ModelFailed(error),
                Moment::Round => Input::RoundRefused(error),
                Moment::Finish => Input::Failed(error),
            }),
        };
        let Some(input) = input else {
            return true;
        };
        if moment == Moment::Round && matches!(input, Input::Halt(_)) {
            self.machine.input(Input::TakeBack);
        }
        self.machine.input(input);
        false
    }

    fn edit(&mut self, draft: StepDraft) {
        let (edits, pushed) = draft.into_edits();
        if let Some(edits) = edits {
            self.keep_edits(edits);
        }
        for turn in pushed {
            self.machine.push(turn);
        }
    }

    /// Makes `edits` lasting. Returns `false`, and changes nothing, if they rewrite another
    /// conversation than that of the run.
    fn keep_edits(&mut self, edits: RunEdits) -> bool {
        let sets_options = edits.options.is_some();
        let is_kept = self.machine.edit(edits);
        if is_kept {
            self.is_choice_spent &= !sets_options;
            self.apply_edits();
        }
        is_kept
    }

    /// Takes the lasting edits with which a layer answered.
    ///
    /// # Errors
    ///
    /// They rewrite another conversation than that of the run.
    pub(super) fn take_edits(&mut self, extensions: &mut http::Extensions) -> Result<(), Error> {
        if extensions
            .remove()
            .is_none_or(|edits| self.keep_edits(edits))
        {
            return Ok(());
        }
        let why = "a layer around the model rewrote a conversation that is not the run's; a layer \
                   outside it had changed the conversation of the request";
        Err(Error::new(ErrorKind::Configuration, why).with_phase(Phase::Model))
    }

    /// Applies the lasting edits of the run to the request of its model calls.
    pub(super) fn apply_edits(&mut self) {
        if let Some(edits) = self.machine.edits() {
            edits.apply(&mut self.system, &mut self.tools, &mut self.options);
        }
        if self.is_choice_spent {
            // Earlier edits may contain the choice.
            self.spend_choice();
        }
    }
}

/// Returns the names of the gates that raised the answered interrupts.
fn raised_by(answered: Option<&Suspension>) -> impl Iterator<Item = &str> {
    let names = answered.and_then(|answered| answered.state.as_ref()?.as_array());
    names.into_iter().flatten().filter_map(|name| name.as_str())
}
