use super::turns;
use concentric_core::{
    BoxError, Str, ToolStatus,
    agent::{BeforeStep, StepGate, StepView},
};

/// Stops a run whose tool calls fail.
///
/// A call that [failed](ToolStatus::Failed) is an error: its tool failed, or there is no such tool, or
/// its arguments were wrong, or it was over a limit. A call that was denied is an error if
/// [configured](Self::counting_denied). A call that was cancelled, or is unknown, is neither an error
/// nor a success.
///
/// A round counts once, however many of its calls failed side by side: the model has not seen any of
/// these errors when it makes the others. It counts if a call of it failed and none was done. To count
/// each call, see [`counting_calls`](Self::counting_calls).
///
/// The run is halted before the next step ([`Halted`](concentric_core::Outcome::Halted)), and the
/// reason contains the count.
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
    calls: bool,
}

impl ErrorLimit {
    /// Creates a limit of three failed rounds in a row, and of any number in all. The gate's name is
    /// `error_limit`.
    pub const fn new() -> Self {
        Self {
            name: Str::from_static("error_limit"),
            consecutive: 3,
            total: None,
            denied: false,
            calls: false,
        }
    }

    /// Sets how many failed rounds in a row stop the run; the least is 1.
    ///
    /// A round in which a call was done is a success, and the count begins again after it.
    #[must_use]
    pub fn consecutive(mut self, errors: usize) -> Self {
        self.consecutive = errors.max(1);
        self
    }

    /// Sets how many failed rounds in all stop the run; the least is 1.
    #[must_use]
    pub fn total(mut self, errors: usize) -> Self {
        self.total = Some(errors.max(1));
        self
    }

    /// Counts each call that failed, in place of rounds: in a row, those of rounds in which no call was
    /// done; in all, those of any round.
    #[must_use]
    pub fn counting_calls(mut self) -> Self {
        self.calls = true;
        self
    }

    /// Counts calls that were denied as errors.
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
            let is_success = statuses().any(|status| status == ToolStatus::Done);
            in_a_row &= !is_success;
            let counted = match self.calls {
                true => errors,
                false => usize::from(errors > 0 && !is_success),
            };
            total += counted;
            if in_a_row {
                consecutive += counted;
            }
        }
        let what = match self.calls {
            true => "tool calls",
            false => "rounds of tool calls",
        };
        Ok(if consecutive >= self.consecutive {
            BeforeStep::halt(format!("{consecutive} {what} in a row failed"))
        } else if self.total.is_some_and(|limit| total >= limit) {
            BeforeStep::halt(format!("{total} {what} failed"))
        } else {
            BeforeStep::Continue
        })
    }
}
