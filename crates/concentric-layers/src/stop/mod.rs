//! Gates that end a run, or prevent it from ending.
//!
//! A run ends when the model answers without a tool call, or at the agent's step limit. Other
//! conditions are a [`StepGate`](concentric_core::agent::StepGate), added to an agent
//! ([`AgentLayer::gate`](concentric_core::AgentLayer::gate)) or to a single run
//! ([`RunOverrides::step_gate`](concentric_core::RunOverrides::step_gate)).
//!
//! ```
//! use concentric_core::{AgentLayer, NoTools};
//! use concentric_layers::stop::{
//!     ErrorLimit, LoopDetector, StepApproval, StopWhen, called, steps, total_tokens,
//! };
//!
//! let agent = AgentLayer::new(NoTools)
//!     // Ends the run normally.
//!     .gate(StopWhen::finish(steps(20).or(called("submit"))))
//!     // Halts the run.
//!     .gate(StopWhen::halt("the token limit is reached", total_tokens(200_000)))
//!     // Halts the run if the model repeats a call, or if its calls keep failing.
//!     .gate(LoopDetector::new(3))
//!     .gate(ErrorLimit::new().consecutive(3).total(10))
//!     // Requires approval for more than 8 steps.
//!     .gate(StepApproval::after(8));
//! # let _ = agent;
//! ```
//!
//! | gate | runs before | effect |
//! |---|---|---|
//! | [`StopWhen`] | a model call | completes ([`Completed`]) or halts ([`Halted`]) the run when a [`Condition`] holds |
//! | [`LoopDetector`] | a round | halts the run, skips the round, or warns the model after it, when a call is repeated too often |
//! | [`ErrorLimit`] | a model call | halts the run when too many rounds of calls have failed |
//! | [`StepApproval`] | a model call | interrupts the run until more steps are approved, and halts it if they are not |
//! | [`OutputConstraint`] | the end of the run | adds a step when the answer is rejected, and fails the run after too many tries |
//!
//! All gates are called, and the strictest decision applies: halt, then finish, then interrupt,
//! then continue. An [`OutputConstraint`] is not called if another gate ends the run normally.
//!
//! # Place in the stack
//!
//! Before the end of a run, gates are called in order until one of them requires another step
//! ([`StepGate`](concentric_core::agent::StepGate)). An [`OutputConstraint`] judges the answer that
//! the run ends with. It must therefore be added after gates that require another step for other
//! reasons: a `Steering`, whose messages need an answer, and the gate of a typed answer, which
//! requests the value that the constraint judges. An [`OutputConstraint`] before one of these fails
//! every run with [`Configuration`](concentric_core::ErrorKind::Configuration). Of several
//! constraints, the model receives the complaint of the first one that rejects the answer; later
//! constraints judge the next answer.
//!
//! # Scope of the counts
//!
//! The gates count the turns of the current run only. The number of turns at the first call of a
//! gate is recorded in the run's durable [`state`](concentric_core::state). All other counts are
//! computed from the conversation, so a run that was suspended or whose process died counts nothing
//! twice. Turns that a [rewrite](concentric_core::agent::StepDraft::rewrite) removes no longer count.
//!
//! If an agent is used as the model of another agent, the run is that of the outer loop, and the
//! rounds of both are counted.
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
    loops::LoopDetector,
    rejected::RejectedAnswer,
    when::StopWhen,
};
