use crate::message::{Arguments, ToolOutcome};
use std::sync::Arc;

/// What a round service lets a call do.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Permit {
    /// It runs with whatever arguments it arrives with.
    #[default]
    Any,
    /// No gate minds it with these arguments; if it arrives with others, the gates are asked again.
    Passed(Arguments),
    /// It runs with these arguments; if it arrives with others, somebody is asked.
    Exactly(Arguments),
    /// It runs with these arguments, which it arrived with before; with others it does not run.
    AsAsked(Arguments),
    /// It does not run, and this is its outcome. It does not enter the stack; hooks may observe it.
    Settled(Arc<ToolOutcome>),
}
