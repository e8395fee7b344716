use concentric_core::{Event, Str};

/// Whether a run goes on, as [`Hooks::before_run`](super::Hooks::before_run) says.
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
