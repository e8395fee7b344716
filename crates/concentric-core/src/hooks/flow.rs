use concentric_proto::{Str, ToolOutcome};

/// A hook's choice: continue, answer instead of the inner service, or halt the run.
///
/// `A` is the answer: a text for a run, events for a model call, an outcome for a tool call.
#[derive(Clone, Debug, PartialEq)]
pub enum Flow<A> {
    /// Calls the inner service.
    Continue,
    /// Answers without calling the inner service.
    Answer(A),
    /// Ends the run with the outcome [`Halted`](crate::Outcome::Halted), for this reason. A tool
    /// call is cancelled, as are all calls of its round that have not started; the run ends after
    /// the round.
    Halt(Str),
}

impl<A> Flow<A> {
    /// Answers without calling the inner service.
    pub fn answer(answer: impl Into<A>) -> Self {
        Self::Answer(answer.into())
    }

    /// Halts the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }
}

impl Flow<ToolOutcome> {
    /// Denies a tool call; the model receives the reason.
    pub fn deny(reason: impl Into<Str>) -> Self {
        Self::Answer(ToolOutcome::denied(reason))
    }
}
