#[cfg(doc)]
use super::Error;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The API key is missing or invalid (HTTP 401).
    Authentication,
    /// The API key is valid, but does not permit the request (HTTP 403).
    Permission,
    /// The model or resource does not exist (HTTP 404).
    NotFound,
    /// The request is invalid, and fails again if it is repeated (other HTTP 4xx).
    InvalidRequest,
    /// The conversation does not fit into the model's context window.
    ContextWindow,
    /// The provider's safety system refused the request.
    ContentFilter,
    /// Too many requests or tokens (HTTP 429).
    RateLimited,
    /// The account has no credit left (HTTP 402).
    Quota,
    /// The service has no capacity (HTTP 503, 529; a load-shedding layer).
    Overloaded,
    /// The service failed (other HTTP 5xx).
    Server,
    /// The operation timed out (HTTP 408, 504).
    Timeout,
    /// The connection could not be established, or was lost.
    Connection,
    /// The body ended before its terminal event.
    Truncated,
    /// The response violates the protocol.
    Protocol,
    /// A value exceeds its size limit (HTTP 413).
    TooLarge,
    /// A tool failed in a way that is configured to fail the run.
    Tool,
    /// The service stack is configured incorrectly.
    Configuration,
    /// The run was cancelled.
    Cancelled,
    /// Not a failure: a tool call waits for replies ([`Error::suspension`]).
    Waiting,
    /// The run cannot be resumed: it has been resumed already, or has expired.
    Conflict,
    /// Not a failure: a layer halts the run deliberately ([`Error::halted`]).
    Halted,
    /// Any other error.
    Other,
}

impl ErrorKind {
    /// Returns the kind for the status of an unsuccessful HTTP response.
    pub const fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Authentication,
            402 => Self::Quota,
            403 => Self::Permission,
            404 => Self::NotFound,
            408 | 504 => Self::Timeout,
            413 => Self::TooLarge,
            429 => Self::RateLimited,
            503 | 529 => Self::Overloaded,
            400..=499 => Self::InvalidRequest,
            500..=599 => Self::Server,
            _ => Self::Protocol,
        }
    }

    /// The serialized name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Permission => "permission",
            Self::NotFound => "not_found",
            Self::InvalidRequest => "invalid_request",
            Self::ContextWindow => "context_window",
            Self::ContentFilter => "content_filter",
            Self::RateLimited => "rate_limited",
            Self::Quota => "quota",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Truncated => "truncated",
            Self::Protocol => "protocol",
            Self::TooLarge => "too_large",
            Self::Tool => "tool",
            Self::Configuration => "configuration",
            Self::Cancelled => "cancelled",
            Self::Waiting => "waiting",
            Self::Conflict => "conflict",
            Self::Halted => "halted",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether tools may have had side effects before an error.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum SideEffects {
    /// No tool was started.
    #[default]
    None,
    /// A tool was started, and its outcome is unknown.
    Possible,
    /// A tool has completed.
    Committed,
}
