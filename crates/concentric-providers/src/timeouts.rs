use std::time::Duration;

/// The time limits for a provider. A call that exceeds one fails with
/// [`ErrorKind::Timeout`](concentric_core::ErrorKind::Timeout). `None` disables a limit.
///
/// Only the time spent waiting for the service counts, not the time until the consumer polls
/// available data, so a slow consumer does not cause a timeout. Durations are measured with the
/// [clock](concentric_core::context::Clock) of the run. The
/// [deadline](concentric_core::Context::deadline) of the run applies as well.
///
/// The clock of a run is tokio's unless its [`Environment`](concentric_core::Environment) has
/// another. Tokio's timers panic outside of a tokio runtime with time enabled: elsewhere, provide a
/// clock, or use [`off`](Self::off) without a deadline.
///
/// | limit | default | error code |
/// |---|---|---|
/// | [`idle`](Self::idle) | 10 minutes, as in OpenAI's and Anthropic's own clients | `idle` |
/// | [`progress`](Self::progress) | 10 minutes | `no_progress` |
/// | [`total`](Self::total) | 1 hour, which Anthropic's own client assumes for the longest responses (128,000 tokens) | `deadline` |
/// | [`error`](Self::error) | 5 seconds | the code of the error |
///
/// Zero fails a call as soon as it has to wait; a limit of more than a year is reduced to a year.
///
/// A provider layer may have other defaults: DeepSeek sends keep-alive data while a request is
/// queued and closes a request after 30 minutes, so its defaults are five minutes for `idle` and 30
/// minutes for `progress`.
///
/// ```
/// use concentric_providers::{ApiKey, OpenAiLayer, Timeouts};
/// use std::time::Duration;
///
/// let layer = OpenAiLayer::new("gpt-5.5", ApiKey::new("key")).timeouts(
///     Timeouts::default()
///         .idle(Duration::from_secs(60))
///         .progress(Duration::from_secs(120))
///         .total(None),
/// );
/// # let _ = layer;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// The maximum time without a byte. The response head, comments and pings count as bytes.
    pub idle: Option<Duration>,
    /// The maximum time without progress: a chunk that emits an event or changes the response.
    /// Comments, pings, chunks without content and incomplete chunks are not progress.
    pub progress: Option<Duration>,
    /// The maximum time from the call to the end of the response, without the time of the consumer.
    pub total: Option<Duration>,
    /// The maximum time for the body of an error response. At the limit, the error contains the
    /// part of the body that has been received; its kind follows from the status.
    pub error: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::new()
    }
}

impl Timeouts {
    pub(crate) const fn new() -> Self {
        Self {
            idle: Some(Duration::from_mins(10)),
            progress: Some(Duration::from_mins(10)),
            total: Some(Duration::from_hours(1)),
            error: Some(Duration::from_secs(5)),
        }
    }

    /// Disables all limits.
    pub const fn off() -> Self {
        Self {
            idle: None,
            progress: None,
            total: None,
            error: None,
        }
    }

    /// Sets [`idle`](Self::idle).
    #[must_use]
    pub fn idle(mut self, idle: impl Into<Option<Duration>>) -> Self {
        self.idle = idle.into();
        self
    }

    /// Sets [`progress`](Self::progress).
    #[must_use]
    pub fn progress(mut self, progress: impl Into<Option<Duration>>) -> Self {
        self.progress = progress.into();
        self
    }

    /// Sets [`total`](Self::total).
    #[must_use]
    pub fn total(mut self, total: impl Into<Option<Duration>>) -> Self {
        self.total = total.into();
        self
    }

    /// Sets [`error`](Self::error).
    #[must_use]
    pub fn error(mut self, error: impl Into<Option<Duration>>) -> Self {
        self.error = error.into();
        self
    }
}
