use concentric_core::{Event, Str};

/// Decides whether a run continues. Returned by [`Hooks::before_run`](super::Hooks::before_run).
///
/// If the request resumes an interrupted run
/// ([`ChatRequest::resume`](concentric_core::ChatRequest::resume)), an answer or a halt ends that
/// run: the replies are consumed, the open round is closed, and the
/// [`Finish`](concentric_core::Finish) contains its transcript and usage. The calls of the round
/// get these outcomes:
///
/// | the call | outcome |
/// |---|---|
/// | done, failed, denied | unchanged |
/// | executed by the client, with its result among the replies | that result |
/// | indeterminate: started by a process that ended | [`Unknown`](concentric_core::ToolStatus::Unknown) |
/// | not executed, whatever was replied | [`Cancelled`](concentric_core::ToolStatus::Cancelled) |
///
/// The replies are validated as an agent does, and the run fails with the same errors. If an
/// *inner* layer stores the run, the run remains suspended there and the end has no transcript.
/// Hooks that answer or halt runs must therefore be inside
/// [`SuspendLayer`](crate::suspend::SuspendLayer), which then receives the end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunFlow {
    /// Continues the run.
    Continue,
    /// Ends the run with this text as its answer, which is added to the transcript.
    Answer(Str),
    /// Ends the run with the outcome [`Halted`](concentric_core::Outcome::Halted), for this reason.
    Halt(Str),
}

impl RunFlow {
    /// Ends the run with an answer.
    pub fn answer(text: impl Into<Str>) -> Self {
        Self::Answer(text.into())
    }

    /// Halts the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }
}

/// Decides whether a model is called. Returned by
/// [`Hooks::before_model`](super::Hooks::before_model).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelFlow {
    /// Calls the model.
    Continue,
    /// Answers with these events without calling the model. If the last one is not an
    /// [`Event::Finish`], one is added that reports no tokens.
    Answer(Vec<Event>),
    /// Ends the run with the outcome [`Halted`](concentric_core::Outcome::Halted), for this reason.
    /// Earlier messages and results are kept.
    Halt(Str),
}

impl ModelFlow {
    /// Answers with a text without calling the model.
    pub fn answer(text: impl Into<Str>) -> Self {
        Self::Answer(vec![Event::text(text)])
    }

    /// Halts the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }
}
