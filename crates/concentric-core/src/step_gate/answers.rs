use concentric_proto::{Interrupt, Str};

/// The position of a [`StepGate`](super::StepGate) among the gates before the end of a run.
///
/// A gate that [retries](FinishDecision::Retry) ends the evaluation, so some gates must come before
/// others. Each variant must come before those below it; [`Any`](Self::Any) has no fixed position.
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
pub enum StepDecision {
    /// Calls the model.
    Continue,
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
pub enum RoundDecision {
    /// Passes the calls to their gates.
    Continue,
    /// Raises an interrupt first.
    Ask(Box<Interrupt>),
    /// Runs no call; the model receives a denial with this reason for each.
    Skip(Str),
    /// Runs no call, and ends the run with this text as its answer
    /// ([`Outcome::Completed`](crate::Outcome::Completed)). In the conversation, each call is denied
    /// with the text as the reason.
    Answer(Str),
    /// Runs no call and stops the run.
    Halt(Str),
}

/// The decision of a [`StepGate`](super::StepGate) before the end of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FinishDecision {
    /// Finishes the run. Messages that the gate [pushed](super::StepDraft::push) end the
    /// conversation: the model receives them in the next run.
    Finish,
    /// Calls the model again, unless the run is at its step limit; then the answer stands. The
    /// gates after this one are not evaluated, unless there are
    /// [replies](super::StepView::replies).
    ///
    /// Without a [pushed](super::StepDraft::push) message, the last turn of the conversation is the
    /// answer itself, which the model continues. Some providers refuse this.
    Retry {
        /// Whether [`Event::Reset`](crate::Event::Reset) declares the answer void to the consumer.
        /// The conversation keeps it, so that the model sees its mistake.
        void: bool,
    },
    /// Raises an interrupt first.
    Ask(Box<Interrupt>),
    /// Stops the run.
    Halt(Str),
}

/// Implements the constructors that the decisions have in common.
macro_rules! constructors {
    ($($decision:ident)*) => {
        $(
            impl $decision {
                /// Stops the run.
                pub fn halt(reason: impl Into<Str>) -> Self {
                    Self::Halt(reason.into())
                }

                /// Raises an interrupt.
                pub fn ask(interrupt: Interrupt) -> Self {
                    Self::Ask(Box::new(interrupt))
                }
            }
        )*
    };
}

constructors! { StepDecision RoundDecision FinishDecision }

impl RoundDecision {
    /// Runs no call of the round.
    pub fn skip(reason: impl Into<Str>) -> Self {
        Self::Skip(reason.into())
    }

    /// Runs no call of the round, and ends the run with an answer.
    pub fn answer(text: impl Into<Str>) -> Self {
        Self::Answer(text.into())
    }
}
