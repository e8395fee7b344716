use std::time::Duration;

/// How long a provider may take, before the call fails with
/// [`ErrorKind::Timeout`](concentric_core::ErrorKind::Timeout). `None` is for ever.
///
/// Time is counted while we wait for the service, and not while the consumer of the answer has yet
/// to take what is there: a slow consumer is no stall. Lengths are measured by the
/// [clock](concentric_core::context::Clock) of the run. The run's own
/// [deadline](concentric_core::Context::deadline) holds, too.
///
/// The clock of a run is tokio's unless its [`Environment`](concentric_core::Environment) has another
/// one, and tokio's timers panic outside of a runtime that has them: elsewhere, a service that keeps
/// us waiting needs a clock of yours, or [`off`](Self::off) and no deadline.
///
/// | limit | by default | code of the error |
/// |---|---|---|
/// | [`idle`](Self::idle) | 10 minutes: what OpenAI's and Anthropic's own clients wait for the next bytes | `idle` |
/// | [`progress`](Self::progress) | 10 minutes | `no_progress` |
/// | [`total`](Self::total) | 1 hour: what Anthropic's own client reckons with for the longest answers (128,000 tokens) | `deadline` |
/// | [`error`](Self::error) | 5 seconds | that of the error |
///
/// Zero fails a call as soon as there is something to wait for; a time of more than a year counts as
/// one.
///
/// A provider's layer has others where more is known of its service: DeepSeek sends signs of life
/// while a request waits, so that five minutes without any are a stall; and it gives up a request
/// after 30 minutes, which is its time for progress.
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
    /// Without a byte. The head of the response counts as one, and so do comments and pings.
    pub idle: Option<Duration>,
    /// Without progress: a chunk that makes an event or changes the answer. Comments, pings and
    /// chunks that say nothing are none, nor are the bytes of a chunk that is not whole.
    pub progress: Option<Duration>,
    /// From the call to the end of the answer, the consumer's own time not counted.
    pub total: Option<Duration>,
    /// From the head of an answer whose status says that it failed to the end of its body. What has
    /// come by then is what the error says; its kind is known by the status.
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

    /// None at all.
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
