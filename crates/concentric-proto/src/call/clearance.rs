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
    /// A gate allowed the call, or a person approved it, with these arguments. If it arrives with
    /// others, approval is requested for those.
    Decided(Arguments),
    /// Layers changed the arguments to these, and the changed call was approved. It runs with
    /// these arguments only.
    Approved(Arguments),
    /// The call does not run and has this outcome. It does not reach the tool stack, but hooks may
    /// observe it.
    Settled(Arc<ToolOutcome>),
}
