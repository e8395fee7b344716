use concentric_core::{Event, Str};

/// Whether a run goes on, as [`Hooks::before_run`](super::Hooks::before_run) says.
///
/// One that was interrupted, and is to go on with what was replied
/// ([`ChatRequest::resume`](concentric_core::ChatRequest::resume)), is over with an answer or a halt:
/// it is taken, its open round is closed, and its transcript and what it used are told.
///
/// | what a call of the round was | comes out as |
/// |---|---|
/// | done, failed, denied | that |
/// | the client's own, with its result among the replies | that result |
/// | in doubt: begun by a process that ended | [`Unknown`](concentric_core::ToolStatus::Unknown) |
/// | not run, whatever was replied about it | [`Cancelled`](concentric_core::ToolStatus::Cancelled) |
///
/// The replies are checked as an agent would, and the run fails with the error it would fail with. A
/// run that a layer *inside* of the hook has waits on there, and the end has no transcript: such hooks
/// go inside of [`SuspendLayer`](crate::suspend::SuspendLayer), which is told of the end then.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunFlow {
    /// It does.
    Continue,
    /// It does not: this text is the answer, and stands in the transcript.
    Answer(Str),
    /// It does not, on purpose: its outcome is [`Halted`](concentric_core::Outcome::Halted), for
    /// this reason.
    Halt(Str),
}

impl RunFlow {
    /// Answers in the agent's place.
    pub fn answer(text: impl Into<Str>) -> Self {
        Self::Answer(text.into())
    }

    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }
}

/// Whether a model is called, as [`Hooks::before_model`](super::Hooks::before_model) says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelFlow {
    /// It is.
    Continue,
    /// It is not: these events are its answer. If the last one is not an [`Event::Finish`], one is
    /// added, which says that no tokens were used.
    Answer(Vec<Event>),
    /// It is not, and the run is stopped: its outcome is
    /// [`Halted`](concentric_core::Outcome::Halted), for this reason. What was said and done before
    /// is kept.
    Halt(Str),
}

impl ModelFlow {
    /// Answers a text in the model's place.
    pub fn answer(text: impl Into<Str>) -> Self {
        Self::Answer(vec![Event::text(text)])
    }

    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }
}
