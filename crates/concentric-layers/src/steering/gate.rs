use super::Steering;
use concentric_core::{
    BoxError,
    agent::{BeforeFinish, BeforeStep, StepGate, StepView},
};

/// Says in one run what a [`Steering`] is handed; made by [`Steering::gate`].
///
/// Its name is `steering`.
#[derive(Debug)]
pub struct SteeringGate {
    steering: Steering,
    number: u64,
}

impl SteeringGate {
    pub(super) const fn new(steering: Steering, number: u64) -> Self {
        Self { steering, number }
    }
}

impl StepGate for SteeringGate {
    fn name(&self) -> &'static str {
        "steering"
    }

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        let (said, context) = (&step.transcript, &step.context);
        let turns = self.steering.offer(self.number, false, said, context)?;
        Ok(match turns.is_empty() {
            true => BeforeStep::Continue,
            false => BeforeStep::Say(turns),
        })
    }

    async fn before_finish(&self, step: &StepView) -> Result<BeforeFinish, BoxError> {
        let (said, context) = (&step.transcript, &step.context);
        let turns = self.steering.offer(self.number, true, said, context)?;
        Ok(match turns.is_empty() {
            true => BeforeFinish::Finish,
            false => BeforeFinish::Continue(turns),
        })
    }
}

impl Drop for SteeringGate {
    fn drop(&mut self) {
        self.steering.end(self.number);
    }
}
