use crate::{
    interrupt::Interrupt,
    response_head::ResponseHead,
    run_state::RunState,
    run_usage::RunUsage,
    text::Str,
    transcript::Transcript,
    usage::{FinishReason, Outcome, Usage},
};
use serde::{Deserialize, Serialize};

/// The final event of a response: its outcome and its token usage.
///
/// The last `Ok` item of a body; see `ChatResponse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finish {
    /// Why the model stopped (`gen_ai.response.finish_reasons`).
    pub reason: FinishReason,
    /// The finish reason as the provider reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_reason: Option<Str>,
    /// The tokens used: of one call for a model; of all calls of the run for an agent, including
    /// those before the run was interrupted and resumed.
    ///
    /// To sum the tokens of several attempts at a run, use [`attempt_usage`](Self::attempt_usage).
    pub usage: Usage,
    // The part of `usage` that no earlier finish has reported; `None` if that is all of it. Boxed,
    // since only runs that were interrupted have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<Box<Usage>>,
    // The tokens of all models of the run, if they were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_usage: Option<Box<RunUsage>>,
    /// The outcome of the run.
    pub outcome: Outcome,
    /// The conversation including this turn, for the next request; set by agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Transcript>,
    /// The state to resume the run from, if the outcome is [`Outcome::Interrupted`].
    ///
    /// The state is not serialized with the finish: a writer of a run's state controls which tools
    /// run.
    #[serde(skip)]
    pub state: Option<Box<RunState>>,
}

impl Finish {
    /// Creates the finish of a completed response.
    pub fn new(reason: FinishReason, usage: Usage) -> Self {
        Self {
            reason,
            provider_reason: None,
            usage,
            attempt: None,
            run_usage: None,
            outcome: Outcome::Completed,
            transcript: None,
            state: None,
        }
    }

    /// Creates a finish that reports the interrupts of a stored run without resuming it.
    ///
    /// Its [`attempt_usage`](Self::attempt_usage) is zero, because the finish that first reported
    /// these interrupts has already counted the tokens.
    ///
    /// ```
    /// use concentric_proto::{Finish, Outcome, run_state::RunState};
    ///
    /// fn show_again(stored: RunState) -> Finish {
    ///     let finish = Finish::waiting(stored);
    ///     assert_eq!(finish.outcome, Outcome::Interrupted);
    ///     finish
    /// }
    /// # let _ = show_again;
    /// ```
    pub fn waiting(state: RunState) -> Self {
        let RunState(run) = &state;
        let reason = run.reason.clone().unwrap_or(FinishReason::Stop);
        let mut finish = Self::new(reason, run.usage).with_outcome(Outcome::Interrupted);
        finish.report(run.usage, Some(&Usage::default()));
        finish.run_usage.clone_from(&run.run_usage);
        finish.provider_reason.clone_from(&run.provider_reason);
        finish.transcript = Some(run.transcript.clone());
        finish.state = Some(Box::new(state));
        finish
    }

    /// Sets the outcome.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// The part of [`usage`](Self::usage) since the run was last interrupted.
    ///
    /// An interrupted run emits one finish when it is interrupted and another when it is resumed.
    /// `usage` counts from the start of the run; the sum of all `attempt_usage` values equals the
    /// `usage` of the last finish. To bill by finish, sum `attempt_usage`. Stored tokens of an
    /// attempt whose process died are included in the next attempt.
    pub fn attempt_usage(&self) -> Usage {
        self.attempt.as_deref().copied().unwrap_or(self.usage)
    }

    /// The tokens of all model calls of the run, by model: beside [`usage`](Self::usage), those of nested
    /// agents, of judges and other layers that call models, and of attempts that were rejected or
    /// repeated, from the start of the run.
    ///
    /// If no model has recorded its tokens, this is `usage`.
    pub fn run_usage(&self) -> RunUsage {
        self.run_usage.as_deref().cloned().unwrap_or_else(|| {
            let mut run = RunUsage::default();
            run.record(&ResponseHead::default(), self.usage);
            run
        })
    }

    /// Sets the [tokens of all model calls](Self::run_usage). For drivers.
    pub fn set_run_usage(&mut self, usage: RunUsage) {
        self.run_usage = Some(Box::new(usage));
    }

    /// Whether an earlier finish has reported a part of [`usage`](Self::usage).
    pub(crate) fn is_partly_reported(&self) -> bool {
        self.attempt.is_some()
    }

    /// Sets the tokens used so far, and the part of them that no earlier finish has reported; `None`
    /// for all of them.
    pub(crate) fn report(&mut self, usage: Usage, unreported: Option<&Usage>) {
        self.usage = usage;
        let part = unreported.filter(|unreported| **unreported != usage);
        self.attempt = part.map(|part| Box::new(*part));
    }

    /// The interrupts that the run waits for, if the outcome is [`Outcome::Interrupted`].
    pub fn interrupts(&self) -> Vec<&Interrupt> {
        let state = self.state.as_deref();
        state.map(RunState::interrupts).unwrap_or_default()
    }
}
