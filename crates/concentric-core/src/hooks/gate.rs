use super::{Hooks, Interest};
use crate::step_gate::{BeforeFinish, BeforeRound, BeforeStep, StepGate, StepView};
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
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeStep, BoxError>> + Send {
        self.0.before_step(step)
    }

    fn before_round(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeRound, BoxError>> + Send {
        self.0.before_round(step)
    }

    fn before_finish(
        &self,
        step: &StepView,
    ) -> impl Future<Output = Result<BeforeFinish, BoxError>> + Send {
        self.0.before_finish(step)
    }
}
