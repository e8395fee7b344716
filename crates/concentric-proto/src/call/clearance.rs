use crate::message::{Arguments, ToolOutcome};
use std::sync::Arc;

/// The clearance that a round service gives a call.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Clearance {
    /// The call runs with any arguments.
    #[default]
    Ungated,
    /// No gate objects to the call with these arguments. If it arrives with others, the gates
    /// decide again.
    Passed(Arguments),
    /// The call was approved with these arguments. If it arrives with others, the approval is
    /// requested again.
    Decided(Arguments),
    /// The call runs only with these arguments, with which it arrived before.
    Approved(Arguments),
    /// The call does not run and has this outcome. It does not reach the tool stack, but hooks may
    /// observe it.
    Settled(Arc<ToolOutcome>),
}
