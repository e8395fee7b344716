use concentric_proto::{Interrupt, Str, Turn};

/// Where a [`StepGate`](super::StepGate) stands among those that are asked before the run ends.
///
/// The first that has the run continue is the last that is asked, so some have to be asked before
/// others. Each variant must be asked before those below it; [`Any`](Self::Any) stands anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GateOrder {
    /// Anywhere.
    #[default]
    Any,
    /// It adds messages, which the model has still to answer, as `Steering` does.
    Message,
    /// It asks for the answer in a form, as the gate of a typed answer does.
    Answer,
    /// It judges the answer that the run ends with, as `OutputConstraint` does.
    Judgement,
}

/// What a [`StepGate`](super::StepGate) says before a step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeStep {
    /// The model is called.
    Continue,
    /// It is called after this was said.
    Say(Vec<Turn>),
    /// Somebody is asked first.
    Ask(Box<Interrupt>),
    /// The run comes to its own end here ([`Outcome::Completed`](crate::Outcome::Completed)).
    Finish,
    /// The run is stopped ([`Outcome::Halted`](crate::Outcome::Halted)).
    Halt(Str),
}

/// What a [`StepGate`](super::StepGate) says before a round of tool calls.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeRound {
    /// The calls go to their gates.
    Continue,
    /// Somebody is asked first.
    Ask(Box<Interrupt>),
    /// No call is run; the model is told that each was denied, and why.
    Skip(Str),
    /// No call is run, and the run is stopped.
    Halt(Str),
}

/// What a [`StepGate`](super::StepGate) says before the run ends.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeFinish {
    /// It ends.
    Finish,
    /// This is said, and the model is called again, if the run may make another step. The gates after
    /// this one are not asked, unless there are [replies](super::StepView::replies).
    Continue(Vec<Turn>),
    /// The answer is rejected: the consumer is told by [`Event::Reset`](crate::Event::Reset) that it is
    /// void, this is said, and the model is called again. The conversation keeps the answer, so that
    /// the model sees what was wrong. At the run's step limit the answer stands.
    Reject(Vec<Turn>),
    /// Somebody is asked first.
    Ask(Box<Interrupt>),
    /// It is stopped.
    Halt(Str),
}

impl BeforeStep {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Has somebody asked.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}

impl BeforeRound {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Runs no call of the round.
    pub fn skip(reason: impl Into<Str>) -> Self {
        Self::Skip(reason.into())
    }

    /// Has somebody asked.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}

impl BeforeFinish {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Has somebody asked.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}
