use super::turns;
use concentric_core::{
    BoxError, Str, ToolStatus,
    agent::{StepDecision, StepDraft, StepGate},
    hooks::Interest,
};

/// Halts a run after too many failed tool calls.
///
/// A call with the status [`Failed`](ToolStatus::Failed) is an error: the tool failed or does not
/// exist, the arguments were invalid, or a limit was exceeded. A denied call is an error only if
/// [configured](Self::counting_denied). A call that was cancelled, or whose outcome is unknown, is
/// neither an error nor a success.
///
/// A round counts as failed if at least one of its calls failed and none succeeded. It counts once,
/// because the model makes the calls of a round before it sees any of their errors. To count each
/// call instead, use [`counting_calls`](Self::counting_calls).
///
/// The run is halted before its next step ([`Halted`](concentric_core::Outcome::Halted)). The
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
    /// Creates a limit of three consecutive failed rounds, without a limit on the total. The gate
    /// is named `error_limit`.
    pub const fn new() -> Self {
        Self {
            name: Str::from_static("error_limit"),
            consecutive: 3,
            total: None,
            denied: false,
            calls: false,
        }
    }

    /// Sets the number of consecutive failed rounds that halts the run (at least 1).
    ///
    /// A round in which a call succeeded resets the count.
    #[must_use]
    pub fn consecutive(mut self, errors: usize) -> Self {
        self.consecutive = errors.max(1);
        self
    }

    /// Sets the total number of failed rounds that halts the run (at least 1).
    #[must_use]
    pub fn total(mut self, errors: usize) -> Self {
        self.total = Some(errors.max(1));
        self
    }

    /// Counts failed calls instead of failed rounds.
    ///
    /// The consecutive count includes only rounds without a successful call; the total includes all
    /// rounds.
    #[must_use]
    pub fn counting_calls(mut self) -> Self {
        self.calls = true;
        self
    }

    /// Counts denied calls as errors.
    #[must_use]
    pub fn counting_denied(mut self) -> Self {
        self.denied = true;
        self
    }

    /// Sets the name of the gate, which must be unique within an agent.
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

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP
    }

    async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
        let (mut consecutive, mut total, mut in_a_row) = (0, 0, true);
        for turn in turns::of_run(draft)? {
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
            StepDecision::halt(format!("{consecutive} consecutive {what} failed"))
        } else if self.total.is_some_and(|limit| total >= limit) {
            StepDecision::halt(format!("{total} {what} failed"))
        } else {
            StepDecision::Continue
        })
    }
}
