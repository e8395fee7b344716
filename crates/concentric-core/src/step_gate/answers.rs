use concentric_proto::{Interrupt, Str, Turn};

/// The position of a [`StepGate`](super::StepGate) among the gates before the end of a run.
///
/// A gate that continues the run ends the evaluation, so some gates must come before others. Each
/// variant must come before those below it; [`Any`](Self::Any) has no fixed position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GateOrder {
    /// Any position.
    #[default]
    Any,
    /// Adds messages that the model has still to answer, as `Steering` does.
    Message,
    /// Requests the answer in a specific form, as the gate of a typed answer does.
    Answer,
    /// Judges the answer that the run ends with, as `OutputConstraint` does.
    Judgement,
}

/// The decision of a [`StepGate`](super::StepGate) before a step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeStep {
    /// Calls the model.
    Continue,
    /// Adds these turns to the conversation, then calls the model.
    Say(Vec<Turn>),
    /// Raises an interrupt first.
    Ask(Box<Interrupt>),
    /// Finishes the run here ([`Outcome::Completed`](crate::Outcome::Completed)).
    Finish,
    /// Stops the run ([`Outcome::Halted`](crate::Outcome::Halted)).
    Halt(Str),
}

/// The decision of a [`StepGate`](super::StepGate) before a round of tool calls.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeRound {
    /// Passes the calls to their gates.
    Continue,
    /// Raises an interrupt first.
    Ask(Box<Interrupt>),
    /// Runs no call; the model receives a denial with this reason for each.
    Skip(Str),
    /// Runs no call and stops the run.
    Halt(Str),
}

/// The decision of a [`StepGate`](super::StepGate) before the end of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BeforeFinish {
    /// Finishes the run.
    Finish,
    /// Adds these turns and calls the model again, unless the run is at its step limit. The gates
    /// after this one are not evaluated, unless there are [replies](super::StepView::replies).
    Continue(Vec<Turn>),
    /// Rejects the answer: [`Event::Reset`](crate::Event::Reset) declares it void to the consumer,
    /// these turns are added, and the model is called again. The conversation keeps the answer, so
    /// that the model sees its mistake. At the run's step limit the answer stands.
    Reject(Vec<Turn>),
    /// Raises an interrupt first.
    Ask(Box<Interrupt>),
    /// Stops the run.
    Halt(Str),
}

impl BeforeStep {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Raises an interrupt.
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

    /// Raises an interrupt.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}

impl BeforeFinish {
    /// Stops the run.
    pub fn halt(reason: impl Into<Str>) -> Self {
        Self::Halt(reason.into())
    }

    /// Raises an interrupt.
    pub fn ask(interrupt: Interrupt) -> Self {
        Self::Ask(Box::new(interrupt))
    }
}
