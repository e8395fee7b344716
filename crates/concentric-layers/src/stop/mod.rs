//! When a run ends: gates that stop one, and gates that don't let one end yet.
//!
//! A loop ends by itself when its model answers without a call, or at the agent's limit on steps. What
//! else is to end it, or to keep it going, is a [`StepGate`](concentric_core::agent::StepGate): of an
//! agent ([`AgentLayer::gate`](concentric_core::AgentLayer::gate)), or of one run
//! ([`StepGates`](concentric_core::agent::StepGates)).
//!
//! ```
//! use concentric_core::{AgentLayer, NoTools};
//! use concentric_layers::stop::{
//!     ErrorLimit, LoopDetector, StepApproval, StopWhen, called, steps, total_tokens,
//! };
//!
//! let agent = AgentLayer::new(NoTools)
//!     // Enough was done: this is a normal end.
//!     .gate(StopWhen::finish(steps(20).or(called("submit"))))
//!     // Too much was done: this is a halt.
//!     .gate(StopWhen::halt("the tokens are used up", total_tokens(200_000)))
//!     // The model goes in circles, or nothing works.
//!     .gate(LoopDetector::new(3))
//!     .gate(ErrorLimit::new().consecutive(3).total(10))
//!     // Somebody says whether it is worth more than 8 steps.
//!     .gate(StepApproval::after(8));
//! # let _ = agent;
//! ```
//!
//! | gate | is asked | the run |
//! |---|---|---|
//! | [`StopWhen`] | before the model is called | finishes ([`Completed`]), or is halted ([`Halted`]), when a [`Condition`] holds |
//! | [`LoopDetector`] | before a round | is halted, or the round skipped, or the model warned after it, when a call was made too often |
//! | [`ErrorLimit`] | before the model is called | is halted when the calls of too many rounds have failed |
//! | [`StepApproval`] | before the model is called | waits for somebody to allow more steps, and is halted if nobody does |
//! | [`OutputConstraint`] | before the run ends | makes another step when the answer is rejected, and fails when that was tried often enough |
//!
//! All of them are asked, and the strictest answer counts: to halt, to finish, to ask, to go on. A run
//! that a gate has come to a normal end does not ask an [`OutputConstraint`].
//!
//! # Place in the stack
//!
//! Before the end, the first gate that has the run go on is the last that is asked
//! ([`StepGate`](concentric_core::agent::StepGate)). An [`OutputConstraint`] is of the answer that the
//! run ends with, and goes after the gates that may have it go on for something else: a `Steering`,
//! whose messages are still to be answered, and the gate of a typed answer, which asks for a value
//! that is then what is judged. Of several constraints, the first that complains is told to the model;
//! those after it are asked about the next answer. An [`OutputConstraint`] before one of the other two
//! fails each run with [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! # What counts
//!
//! What the run has done, and not the turns before it: they count from where the conversation stood
//! when one of these gates was first asked, which is written down with the run
//! ([`state`](concentric_core::state)). The rest is read from the conversation, so that a run that
//! waited, or whose process died, counts nothing twice.
//!
//! In an agent that stands in a model's place, the run is that of the loop around it, whose rounds
//! count, too.
//!
//! [`Completed`]: concentric_core::Outcome::Completed
//! [`Halted`]: concentric_core::Outcome::Halted

mod approval;
mod condition;
mod constraint;
mod errors;
mod loops;
mod rejected;
mod turns;
mod when;

pub use self::{
    approval::{MORE_STEPS, StepApproval},
    condition::{
        Condition, called, called_times, cost, finish_reason, holds, input_tokens, output_tokens,
        steps, total_tokens,
    },
    constraint::{Judgement, OutputConstraint},
    errors::ErrorLimit,
    loops::{LoopAction, LoopDetector},
    rejected::RejectedAnswer,
    when::StopWhen,
};
