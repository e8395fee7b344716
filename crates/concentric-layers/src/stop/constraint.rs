use super::turns;
use concentric_core::{
    BoxError, Role, Str, Turn,
    agent::{BeforeFinish, BeforeModel, StepGate, StepView},
};
use std::{fmt, sync::Arc};

/// Has a run end only with an answer that is as it is to be.
///
/// Your function judges the text of the answer. What it complains of is told to the model, which is
/// called again; when that was done often enough, the run is halted
/// ([`Halted`](concentric_core::Outcome::Halted)), and the reason is the constraint's name and the
/// complaint.
///
/// Each try is a step, and counts like any other. A run that is interrupted, halted, cancelled or at
/// its step limit has no answer to be judged.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools};
/// use concentric_layers::stop::OutputConstraint;
///
/// let short = OutputConstraint::new("short", |answer: &str| match answer.len() {
///     0..=280 => Ok(()),
///     n => Err(format!("Your answer has {n} bytes. Say it in 280.")),
/// });
/// let agent = AgentLayer::new(NoTools).gate(short.tries(3));
/// # let _ = agent;
/// ```
#[derive(Clone)]
pub struct OutputConstraint {
    name: Str,
    judge: Arc<Judge>,
    tries: usize,
}

type Judge = dyn Fn(&str) -> Result<(), Str> + Send + Sync;

impl OutputConstraint {
    /// Creates the constraint `name`, which no other gate of the agent is named. `judge` returns what
    /// the model is to be told, if the answer is not as it is to be.
    pub fn new<F, E>(name: impl Into<Str>, judge: F) -> Self
    where
        F: Fn(&str) -> Result<(), E> + Send + Sync + 'static,
        E: Into<Str>,
    {
        Self {
            name: name.into(),
            judge: Arc::new(move |answer| judge(answer).map_err(Into::into)),
            tries: 2,
        }
    }

    /// Sets how often the model may try again in a run; the default is 2.
    #[must_use]
    pub fn tries(mut self, tries: usize) -> Self {
        self.tries = tries;
        self
    }
}

impl StepGate for OutputConstraint {
    fn name(&self) -> &str {
        &self.name
    }

    async fn before_model(&self, step: &StepView) -> Result<BeforeModel, BoxError> {
        turns::note_begin(step)?;
        Ok(BeforeModel::Continue)
    }

    async fn before_finish(&self, step: &StepView) -> Result<BeforeFinish, BoxError> {
        // An answer without a word is no turn.
        let last = step.transcript.last().map(Turn::as_message);
        let answer = last.filter(|message| message.role == Role::Assistant);
        let text = answer.map(|answer| answer.text()).unwrap_or_default();
        let Err(complaint) = (self.judge)(&text) else {
            return Ok(BeforeFinish::Finish);
        };
        if turns::times_said_by(&self.name, step)? >= self.tries {
            return Ok(BeforeFinish::halt(format!("{}: {complaint}", self.name)));
        }
        let correction = turns::said_by(&self.name, complaint)?;
        Ok(BeforeFinish::Continue(vec![correction]))
    }
}

impl fmt::Debug for OutputConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputConstraint")
            .field("name", &self.name)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}
