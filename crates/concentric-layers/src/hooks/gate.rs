use super::Hooks;
use concentric_core::{
    BoxError,
    agent::{BeforeFinish, BeforeRound, BeforeStep, StepGate, StepView},
};
use std::{fmt, future::Future, sync::Arc};

/// The step methods of [`Hooks`], as a [`StepGate`].
pub struct OnStep<H>(pub(super) Arc<H>);

impl<H> StepGate for OnStep<H>
where
    H: Hooks,
{
    fn name(&self) -> &str {
        self.0.id()
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

impl<H> fmt::Debug for OnStep<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStep").finish_non_exhaustive()
    }
}
