use crate::{
    interrupt::Interrupt,
    run_state::MachineState,
    text::Str,
    transcript::Transcript,
    usage::{FinishReason, Outcome, Usage},
};
use serde::{Deserialize, Serialize};

/// How a service's answer ended, and what it cost.
///
/// The last item of a body that did not fail; see `ChatResponse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finish {
    /// Why the model stopped (`gen_ai.response.finish_reasons`).
    pub reason: FinishReason,
    /// The reason in the provider's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_reason: Option<Str>,
    /// The tokens used: of one call if a model answers; of all calls of the run if an agent does,
    /// those before it was interrupted and resumed included.
    ///
    /// To sum the tokens of several attempts at a run, take [`attempt_usage`](Self::attempt_usage).
    pub usage: Usage,
    // The part that no earlier finish has reported, if it is not all of `usage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<Usage>,
    /// How the run came out.
    pub outcome: Outcome,
    /// The conversation with this turn in it, for the next one, if an agent answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Transcript>,
    /// What an agent needs to go on, if the outcome is [`Outcome::Interrupted`].
    ///
    /// It is not written with the rest: whoever can write a run's state decides what runs.
    #[serde(skip)]
    pub state: Option<Box<MachineState>>,
}

impl Finish {
    /// Creates the end of an answer that completed.
    pub fn new(reason: FinishReason, usage: Usage) -> Self {
        Self {
            reason,
            provider_reason: None,
            usage,
            attempt: None,
            outcome: Outcome::Completed,
            transcript: None,
            state: None,
        }
    }

    /// Creates the end of an answer that shows again what a stored run waits for, without resuming
    /// it. Its [`attempt_usage`](Self::attempt_usage) is zero: the finish that first showed it has
    /// these tokens.
    ///
    /// ```
    /// use concentric_proto::{Finish, Outcome, run_state::MachineState};
    ///
    /// fn show_again(stored: MachineState) -> Finish {
    ///     let finish = Finish::waiting(stored);
    ///     assert_eq!(finish.outcome, Outcome::Interrupted);
    ///     finish
    /// }
    /// # let _ = show_again;
    /// ```
    pub fn waiting(state: MachineState) -> Self {
        let MachineState(run) = &state;
        let reason = run.reason.clone().unwrap_or(FinishReason::Stop);
        let mut finish = Self::new(reason, run.usage).with_outcome(Outcome::Interrupted);
        finish.report(run.usage, Usage::default());
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

    /// The part of [`usage`](Self::usage) that this attempt reports: what was used since the run was
    /// last interrupted.
    ///
    /// An interrupted run ends with a finish, and ends with another one when it is resumed. The
    /// `usage` of each counts from the run's beginning; the `attempt_usage` of all of them add up to
    /// the `usage` of the last. So who bills by finish sums these. Tokens of an attempt whose
    /// process died are in the next one's, as far as they were stored.
    pub fn attempt_usage(&self) -> Usage {
        self.attempt.unwrap_or(self.usage)
    }

    /// Sets the tokens that were used so far, and those of them that no earlier finish has reported.
    pub(crate) fn report(&mut self, usage: Usage, unreported: Usage) {
        self.usage = usage;
        self.attempt = (unreported != usage).then_some(unreported);
    }

    /// What the run waits for, if the outcome is [`Outcome::Interrupted`].
    pub fn interrupts(&self) -> Vec<&Interrupt> {
        let state = self.state.as_deref();
        state.map(MachineState::interrupts).unwrap_or_default()
    }

    /// Keeps the reason in the provider's own words.
    #[must_use]
    pub fn with_provider_reason(mut self, reason: impl Into<Str>) -> Self {
        self.provider_reason = Some(reason.into());
        self
    }
}
