//! C58: what makes no sense at a place can't be said there.

use concentric_core::{
    BoxError,
    agent::{BeforeModel, BeforeRound, StepGate, StepView},
};

struct Gate;

impl StepGate for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    async fn before_model(&self, _: &StepView) -> Result<BeforeModel, BoxError> {
        // There are no calls yet to be skipped.
        Ok(BeforeRound::skip("not now"))
    }
}

fn main() {}
