//! The tokens of model calls that their models do not record.

use super::run::Run;
use concentric_proto::{Finish, Phase, ResponseHead, Usage};

impl<M, R> Run<M, R> {
    /// Counts the tokens of an answer, before the machine does.
    #[inline]
    pub(super) fn count_unrecorded(&mut self, finish: &Finish) {
        if self.unrecorded.is_some() || self.context.has_recorded() {
            self.count_apart(finish);
        }
    }

    fn count_apart(&mut self, finish: &Finish) {
        let usage = finish.attempt_usage();
        let before = || Box::new(self.machine.attempt_usage());
        let unrecorded = self.unrecorded.get_or_insert_with(before);
        if let Some(call) = &self.step
            && !call.take_recorded_call(usage)
        {
            **unrecorded += usage;
        }
    }

    /// Records the tokens of models that do not record them. The total is needed only where another
    /// model has recorded its own, or a run around this one may read it.
    pub(super) fn record_usage(&mut self) {
        self.record_unrecorded();
        if self.context.phase() == Phase::Model {
            self.context.mark_recorded_call();
        }
        // A run without a claim records its tokens when it ends, and not again when it is dropped.
        if self.claim.is_none() {
            self.unrecorded.get_or_insert_default();
        }
    }

    /// Like [`record_usage`](Self::record_usage), while the run goes on.
    pub(super) fn record_unrecorded(&mut self) {
        let context = &self.context;
        if context.phase() == Phase::Model || context.parent().is_some() || context.has_recorded() {
            let recorded = self.unrecorded.replace(Box::default());
            let unrecorded = recorded.map_or_else(|| self.machine.attempt_usage(), |sum| *sum);
            if unrecorded != Usage::default() {
                context.add_usage(&ResponseHead::default(), unrecorded);
            }
        }
    }
}
