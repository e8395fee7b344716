use std::time::SystemTime;

/// The rate limits of an account, as a provider reports them with its responses.
///
/// In the extensions of a response, and in [`Error::rate_limits`](crate::Error::rate_limits). Providers
/// report some of the limits or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimits {
    /// Requests.
    pub requests: Allowance,
    /// Input and output tokens together.
    pub tokens: Allowance,
    /// Input tokens.
    pub input_tokens: Allowance,
    /// Output tokens.
    pub output_tokens: Allowance,
}

/// How much of a limited amount is left. What a provider does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allowance {
    /// The amount of a whole period.
    pub limit: Option<u64>,
    /// The rest of the amount.
    pub remaining: Option<u64>,
    /// The time at which the whole amount is available again.
    pub reset: Option<SystemTime>,
}
