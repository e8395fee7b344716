//! C58: what makes no sense at a place can't be said there.

use concentric_core::{
    BoxError,
    agent::{BeforeRound, BeforeStep, StepGate, StepView},
};

struct Gate;

impl StepGate for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    async fn before_step(&self, _: &StepView) -> Result<BeforeStep, BoxError> {
        // There are no calls yet to be skipped.
        Ok(BeforeRound::skip("not now"))
    }
}

fn main() {}
