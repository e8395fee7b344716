//! Errors of model calls that were not made.

/// Codes of errors that a layer inside returns without calling the model.
#[cfg(any(feature = "rate-limit", feature = "retry"))]
pub(crate) const LOCAL: [&str; 4] = [
    "circuit_open",
    concentric_core::store::OVER_BUDGET,
    "over_quota",
    "rate_limited_locally",
];

/// The code of an error of a client that found no connection.
#[cfg(any(feature = "budget", feature = "rate-limit"))]
pub(crate) const NOT_CONNECTED: &str = "not_connected";
