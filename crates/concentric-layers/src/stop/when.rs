use super::{Condition, turns};
use concentric_core::{
    BoxError, Str,
    agent::{StepDecision, StepDraft, StepGate},
    hooks::Interest,
};

/// Ends a run before its next step when a [`Condition`] holds.
///
/// The tool calls of the previous step are executed first, so the history contains all their
/// results. A run whose model answers without a tool call ends without this gate.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools};
/// use concentric_layers::stop::{StopWhen, called, output_tokens, steps};
///
/// let agent = AgentLayer::new(NoTools)
///     .gate(StopWhen::finish(called("submit").and(steps(2)).or(steps(10))))
///     .gate(StopWhen::halt("the output token limit is reached", output_tokens(50_000)));
/// # let _ = agent;
/// ```
#[derive(Clone, Debug)]
pub struct StopWhen {
    name: Str,
    condition: Condition,
    // `None` ends the run normally.
    reason: Option<Str>,
}

impl StopWhen {
    /// Ends the run normally ([`Completed`](concentric_core::Outcome::Completed)) when `condition`
    /// holds.
    ///
    /// The gate is named `stop/finish`.
    pub fn finish(condition: Condition) -> Self {
        Self {
            name: Str::from_static("stop/finish"),
            condition,
            reason: None,
        }
    }

    /// Halts the run for `reason` ([`Halted`](concentric_core::Outcome::Halted)) when `condition`
    /// holds.
    ///
    /// The gate is named `stop/halt`.
    pub fn halt(reason: impl Into<Str>, condition: Condition) -> Self {
        Self {
            name: Str::from_static("stop/halt"),
            condition,
            reason: Some(reason.into()),
        }
    }

    /// Sets the name of the gate, which must be unique within an agent.
    #[must_use]
    pub fn named(mut self, name: impl Into<Str>) -> Self {
        self.name = name.into();
        self
    }
}

impl StepGate for StopWhen {
    fn name(&self) -> &str {
        &self.name
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        // Records the beginning of the run even if the condition does not read the turns yet.
        turns::note_begin(draft)?;
        Ok(match (self.condition.holds(draft)?, &self.reason) {
            (false, _) => StepDecision::Continue,
            (true, None) => StepDecision::Finish,
            (true, Some(reason)) => StepDecision::halt(reason.clone()),
        })
    }
}
