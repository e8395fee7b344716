use super::turns;
use concentric_core::{
    BoxError, Str, ToolStatus,
    agent::{BeforeStep, StepGate, StepView},
};

/// Stops a run whose tool calls fail.
///
/// A call that [failed](ToolStatus::Failed) counts: its tool said so, or there is no such tool, or its
/// arguments were wrong, or it was over a limit. Calls that were denied count [if you
/// say](Self::counting_denied). What was cancelled, or is unknown, is neither an error nor a success.
///
/// The run is halted before the next step ([`Halted`](concentric_core::Outcome::Halted)), and the
/// reason says how many calls failed.
///
/// ```
/// use concentric_core::{AgentLayer, NoTools};
/// use concentric_layers::stop::ErrorLimit;
///
/// let agent = AgentLayer::new(NoTools).gate(ErrorLimit::new().consecutive(5).total(20));
/// # let _ = agent;
/// ```
#[derive(Clone, Debug)]
pub struct ErrorLimit {
    name: Str,
    consecutive: usize,
    total: Option<usize>,
    denied: bool,
}

impl ErrorLimit {
    /// Creates a limit of three errors in a row, and of any number in all. The gate's name is
    /// `error_limit`.
    pub const fn new() -> Self {
        Self {
            name: Str::from_static("error_limit"),
            consecutive: 3,
            total: None,
            denied: false,
        }
    }

    /// Sets how many errors in a row stop the run; the least is 1.
    ///
    /// A round in which a call was done is a success, and the count begins again after it; else each
    /// of its errors counts.
    #[must_use]
    pub fn consecutive(mut self, errors: usize) -> Self {
        self.consecutive = errors.max(1);
        self
    }

    /// Sets how many errors in all stop the run; the least is 1.
    #[must_use]
    pub fn total(mut self, errors: usize) -> Self {
        self.total = Some(errors.max(1));
        self
    }

    /// Has calls that were denied count as errors.
    #[must_use]
    pub fn counting_denied(mut self) -> Self {
        self.denied = true;
        self
    }

    /// Names the gate, if an agent has several.
    #[must_use]
    pub fn named(mut self, name: impl Into<Str>) -> Self {
        self.name = name.into();
        self
    }

    fn is_error(&self, status: ToolStatus) -> bool {
        status == ToolStatus::Failed || (self.denied && status == ToolStatus::Denied)
    }
}

impl Default for ErrorLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl StepGate for ErrorLimit {
    fn name(&self) -> &str {
        &self.name
    }

    async fn before_step(&self, step: &StepView) -> Result<BeforeStep, BoxError> {
        let (mut consecutive, mut total, mut in_a_row) = (0, 0, true);
        for turn in turns::of_run(step)? {
            let statuses = || turn.results().iter().map(|result| result.outcome.status);
            let errors = statuses().filter(|status| self.is_error(*status)).count();
            in_a_row &= !statuses().any(|status| status == ToolStatus::Done);
            total += errors;
            if in_a_row {
                consecutive += errors;
            }
        }
        Ok(if consecutive >= self.consecutive {
            BeforeStep::halt(format!("{consecutive} tool calls in a row failed"))
        } else if self.total.is_some_and(|limit| total >= limit) {
            BeforeStep::halt(format!("{total} tool calls failed"))
        } else {
            BeforeStep::Continue
        })
    }
}
