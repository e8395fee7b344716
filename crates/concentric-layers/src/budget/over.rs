use super::Dimension;
use concentric_core::Error;
use std::{error::Error as StdError, fmt};

/// The [code](Error::code) of an error for a budget that is used up.
pub const OVER_BUDGET: &str = "over_budget";

/// The error for an amount that exceeds the limit of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverBudget {
    /// The exceeded dimension.
    pub dimension: Dimension,
    /// The limit.
    pub limit: u64,
    /// The spending and the reservations.
    pub used: u64,
    /// The additional amount that was requested.
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
            "budget exceeded: {used} of {limit} {dimension} used, {wanted} more requested"
        )
    }
}

impl StdError for OverBudget {}

/// Converts to an error of the kind [`ErrorKind::Halted`](concentric_core::ErrorKind::Halted), with
/// the code [`OVER_BUDGET`].
impl From<OverBudget> for Error {
    fn from(over: OverBudget) -> Self {
        Self::halted(over.to_string())
            .with_code(OVER_BUDGET)
            .with_source(over)
    }
}
