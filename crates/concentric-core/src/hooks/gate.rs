use super::{Hooks, Interest};
use crate::step_gate::{
    FinishDecision, RoundDecision, StepDecision, StepDraft, StepGate, StepView,
};
use std::{future::Future, sync::Arc};
use tower::BoxError;

/// The methods of hooks between the steps of a run.
pub(super) struct Gate<H>(pub(super) Arc<H>);

impl<H> StepGate for Gate<H>
where
    H: Hooks,
{
    fn name(&self) -> &str {
        self.0.id()
    }

    fn interest(&self) -> Interest {
        self.0.interest()
    }

    fn before_step(
        &self,
        draft: &mut StepDraft,
    ) -> impl Future<Output = Result<StepDecision, BoxError>> + Send {
        self.0.before_step(draft)
    }

    fn before_round(
        &self,
        view: &StepView,
    ) -> impl Future<Output = Result<RoundDecision, BoxError>> + Send {
        self.0.before_round(view)
    }

    fn before_finish(
        &self,
        draft: &mut StepDraft,
    ) -> impl Future<Output = Result<FinishDecision, BoxError>> + Send {
        self.0.before_finish(draft)
    }
}
