use super::{Condition, turns};
use concentric_core::{
    BoxError, Str,
    agent::{BeforeStep, StepGate, StepView},
};

/// Ends a run before its next step, when a [`Condition`] holds.
///
/// What a step has called is run first: the history has all its results. An answer without a call
/// ends the run by itself.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools};
/// use concentric_layers::stop::{StopWhen, called, output_tokens, steps};
///
/// let agent = AgentLayer::new(NoTools)
///     .gate(StopWhen::finish(called("submit").and(steps(2)).or(steps(10))))
///     .gate(StopWhen::halt("it said too much", output_tokens(50_000)));
/// # let _ = agent;
/// ```
#[derive(Clone, Debug)]
pub struct StopWhen {
    name: Str,
    condition: Condition,
    // A normal end, if there is none.
    reason: Option<Str>,
}

impl StopWhen {
    /// Has the run come to a normal end ([`Completed`](concentric_core::Outcome::Completed)).
    ///
    /// The gate's name is `stop/finish`.
    pub fn finish(condition: Condition) -> Self {
        Self {
            name: Str::from_static("stop/finish"),
            condition,
            reason: None,
        }
    }

    /// Has the run stopped for `reason` ([`Halted`](concentric_core::Outcome::Halted)).
    ///
    /// The gate's name is `stop/halt`.
    pub fn halt(reason: impl Into<Str>, condition: Condition) -> Self {
        Self {
            name: Str::from_static("stop/halt"),
            condition,
            reason: Some(reason.into()),
        }
    }

    /// Names the gate, if an agent has several.
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

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        // A condition may look at the turns for the first time later on.
        turns::note_begin(step)?;
        Ok(match (self.condition.holds(step)?, &self.reason) {
            (false, _) => BeforeStep::Continue,
            (true, None) => BeforeStep::Finish,
            (true, Some(reason)) => BeforeStep::halt(reason.clone()),
        })
    }
}
