//! Case C058: a decision that has no meaning at a place has no variant there.

use concentric_core::{
    BoxError,
    agent::{RoundDecision, StepDecision, StepDraft, StepGate},
};

struct Gate;

impl StepGate for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    async fn before_step(&self, _: &mut StepDraft) -> Result<StepDecision, BoxError> {
        // There are no calls yet to be skipped.
        Ok(RoundDecision::skip("not now"))
    }
}

fn main() {}
