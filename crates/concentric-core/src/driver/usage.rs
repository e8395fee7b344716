//! The tokens of model calls that their models do not record.

use super::run::Run;
use crate::context::Context;
use concentric_proto::{Finish, Phase, ResponseHead, Usage};

/// The tokens of a run that were not recorded.
#[derive(Debug)]
pub(super) enum Unrecorded {
    None,
    /// Those of the machine's attempt, which need not be counted again: most models record nothing,
    /// and most runs need no total.
    All,
    Part(Box<Usage>),
}

impl<M, R> Run<M, R> {
    /// Counts the tokens of an answer, before the machine does.
    pub(super) fn count_unrecorded(&mut self, finish: &Finish) {
        let is_recorded =
            |call: &Context| call.has_recorded() && call.take_recorded_call(finish.attempt_usage());
        if self.step.as_ref().is_none_or(is_recorded) {
            if let Unrecorded::All = self.unrecorded {
                self.unrecorded = Unrecorded::Part(Box::new(self.machine.attempt_usage()));
            }
            return;
        }
        match &mut self.unrecorded {
            Unrecorded::All => {}
            Unrecorded::Part(sum) => **sum += finish.attempt_usage(),
            Unrecorded::None if self.machine.attempt_usage() == Usage::default() => {
                self.unrecorded = Unrecorded::All;
            }
            Unrecorded::None => {
                self.unrecorded = Unrecorded::Part(Box::new(finish.attempt_usage()));
            }
        }
    }

    /// Records the tokens of models that do not record them. The total is needed only where another
    /// model has recorded its own, or a run around this one may read it.
    pub(super) fn record_usage(&mut self) {
        self.record_unrecorded();
        self.unrecorded = Unrecorded::None;
        if self.context.phase() == Phase::Model {
            self.context.mark_recorded_call();
        }
    }

    /// Like [`record_usage`](Self::record_usage), while the run goes on.
    pub(super) fn record_unrecorded(&mut self) {
        let context = &self.context;
        let is_needed =
            context.phase() == Phase::Model || context.parent().is_some() || context.has_recorded();
        if !is_needed {
            return;
        }
        let unrecorded = match std::mem::replace(&mut self.unrecorded, Unrecorded::None) {
            Unrecorded::None => return,
            Unrecorded::All => self.machine.attempt_usage(),
            Unrecorded::Part(sum) => *sum,
        };
        if unrecorded != Usage::default() {
            context.add_usage(&ResponseHead::default(), unrecorded);
        }
    }
}
