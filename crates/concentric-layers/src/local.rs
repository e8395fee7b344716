//! Errors of model calls that were not made.

/// Codes of errors that a layer inside returns without calling the model.
pub(crate) const LOCAL: [&str; 4] = [
    "circuit_open",
    "over_budget",
    "over_quota",
    "rate_limited_locally",
];
