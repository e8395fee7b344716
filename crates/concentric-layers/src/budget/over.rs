use super::Dimension;
use concentric_core::Error;
use std::{error::Error as StdError, fmt};

/// The [code](Error::code) of an error that says that a budget is used up.
pub const OVER_BUDGET: &str = "over_budget";

/// There is not enough left of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverBudget {
    /// Of what.
    pub dimension: Dimension,
    /// The most that there may be.
    pub limit: u64,
    /// What is spent, and set aside for calls that are not over.
    pub used: u64,
    /// What would have come on top.
    pub wanted: u64,
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            dimension,
            limit,
            used,
            wanted,
        } = self;
        write!(
            f,
            "the budget is used up: {used} of {limit} {dimension}, and {wanted} more wanted"
        )
    }
}

impl StdError for OverBudget {}

/// Of the kind [`ErrorKind::Halted`](concentric_core::ErrorKind::Halted), with the code [`OVER_BUDGET`].
impl From<OverBudget> for Error {
    fn from(over: OverBudget) -> Self {
        Self::halted(over.to_string())
            .with_code(OVER_BUDGET)
            .with_source(over)
    }
}
