mod kind;

pub use self::kind::{ErrorKind, SideEffects};

use crate::{
    interrupt::{SuspendedBy, Suspension},
    phase::Phase,
    rate_limits::RateLimits,
    text::Str,
};
use std::{convert::Infallible, error::Error as StdError, fmt, sync::Arc, time::Duration};

/// A boxed error of any type, as tower's own layers return it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// An error of a run, a model call or a tool call.
///
/// Cloning is cheap. [`Error::of`] converts any [`BoxError`]: it returns an `Error` that a layer
/// boxed unchanged, and maps tower's own errors to an [`ErrorKind`] (feature `tower`, which
/// `concentric-core` enables).
///
/// # Formatting
///
/// `{error}` prints this error only, on one line; `{error:#}` also prints its
/// [sources](StdError::source). Neither these nor `Debug` print secrets: API keys are never part of
/// an error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    phase: Option<Phase>,
    effects: SideEffects,
    message: Str,
    code: Option<Str>,
    type_: Option<Str>,
    retry_after: Option<Duration>,
    status: Option<u16>,
    request_id: Option<Str>,
    provider: Option<Str>,
    attempts: u32,
    advice: Option<bool>,
    rate_limits: Option<Box<RateLimits>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<Str>) -> Self {
        Self(Arc::new(Inner {
            kind,
            phase: None,
            effects: SideEffects::None,
            message: message.into(),
            code: None,
            type_: None,
            retry_after: None,
            status: None,
            request_id: None,
            provider: None,
            attempts: 1,
            advice: None,
            rate_limits: None,
            source: None,
        }))
    }

    fn with(mut self, set: impl FnOnce(&mut Inner)) -> Self {
        set(Arc::make_mut(&mut self.0));
        self
    }

    /// Replaces the message, such as by one without personal data. Also removes the source, whose text may
    /// repeat the message.
    #[must_use]
    pub fn with_message(self, message: impl Into<Str>) -> Self {
        self.with(|e| {
            e.message = message.into();
            e.source = None;
        })
    }

    /// Sets the part of the run in which the error occurred.
    #[must_use]
    pub fn with_phase(self, phase: Phase) -> Self {
        self.with(|e| e.phase = Some(phase))
    }

    /// Sets whether tools may have had side effects.
    #[must_use]
    pub fn with_effects(self, effects: SideEffects) -> Self {
        self.with(|e| e.effects = effects)
    }

    /// Sets the service's own error code.
    #[must_use]
    pub fn with_code(self, code: impl Into<Str>) -> Self {
        self.with(|e| e.code = Some(code.into()))
    }

    /// Sets the service's own error type.
    #[must_use]
    pub fn with_type(self, type_: impl Into<Str>) -> Self {
        self.with(|e| e.type_ = Some(type_.into()))
    }

    /// Sets the delay before another attempt, as the service requested it.
    #[must_use]
    pub fn with_retry_after(self, after: Duration) -> Self {
        self.with(|e| e.retry_after = Some(after))
    }

    /// Sets the HTTP status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        self.with(|e| e.status = Some(status))
    }

    /// Sets the provider's id of the request.
    #[must_use]
    pub fn with_request_id(self, id: impl Into<Str>) -> Self {
        self.with(|e| e.request_id = Some(id.into()))
    }

    /// Sets the provider that failed.
    #[must_use]
    pub fn with_provider(self, provider: impl Into<Str>) -> Self {
        self.with(|e| e.provider = Some(provider.into()))
    }

    /// Sets the number of [attempts](Self::attempts).
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> Self {
        self.with(|e| e.attempts = attempts.max(1))
    }

    /// Sets the [advice](Self::advice) about another attempt.
    #[must_use]
    pub fn with_advice(self, advice: bool) -> Self {
        self.with(|e| e.advice = Some(advice))
    }

    /// Sets the [rate limits](Self::rate_limits).
    #[must_use]
    pub fn with_rate_limits(self, limits: RateLimits) -> Self {
        self.with(|e| e.rate_limits = Some(Box::new(limits)))
    }

    /// Sets the underlying error.
    #[must_use]
    pub fn with_source(self, source: impl Into<BoxError>) -> Self {
        let source = Arc::from(source.into());
        self.with(|e| e.source = Some(source))
    }

    /// Creates an error that halts the run deliberately.
    ///
    /// Any layer inside an agent loop can return it. The loop finishes with
    /// [`Outcome::Halted`](crate::Outcome::Halted) for this reason, and keeps all previous messages
    /// and tool outcomes.
    ///
    /// The error is not [retryable](Self::is_retryable). A layer further out may handle it, such as
    /// a fallback to a cheaper model when a budget is exhausted. Outside a loop it is an ordinary
    /// error.
    pub fn halted(reason: impl Into<Str>) -> Self {
        Self::new(ErrorKind::Halted, reason)
    }

    /// Creates the error for a body that ended before its terminal event.
    pub fn truncated() -> Self {
        Self::new(
            ErrorKind::Truncated,
            "the answer ended before its terminal event",
        )
    }

    /// Creates the error for a run whose deadline has passed.
    pub fn deadline() -> Self {
        Self::new(ErrorKind::Timeout, "the run's deadline has passed")
    }

    /// Creates the error by which a tool, or a layer around one, suspends the call.
    ///
    /// The round stays open, and the call is repeated with the replies once they arrive. Layers
    /// pass this error through and do not count it as a failure.
    pub fn suspended(on: Suspension) -> Self {
        Self::suspended_by(SuspendedBy::Tool, on)
    }

    /// Creates the error by which `by` suspends a call.
    pub fn suspended_by(by: SuspendedBy, on: Suspension) -> Self {
        Self::new(ErrorKind::Waiting, "the call waits for a reply").with_source(Waits(on, by))
    }

    /// The suspension of the call, and the component that suspended it.
    pub fn suspension(&self) -> Option<(&Suspension, SuspendedBy)> {
        let Waits(on, by) = self.source()?.downcast_ref()?;
        Some((on, *by))
    }

    /// The category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The part of the run in which the error occurred.
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// Whether tools may have had side effects before the error.
    pub fn effects(&self) -> SideEffects {
        self.0.effects
    }

    /// The message, without the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The service's own error code.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// The service's own error type.
    pub fn error_type(&self) -> Option<&str> {
        self.0.type_.as_deref()
    }

    /// The delay before another attempt, as the service requested it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// The provider's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// The provider that failed.
    pub fn provider(&self) -> Option<&str> {
        self.0.provider.as_deref()
    }

    /// The number of attempts that have failed, this one included: 1, unless a retry or fallback layer
    /// made more.
    ///
    /// A layer further out that retries does not multiply them: it returns an error with more than one.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Whether another attempt may succeed: as the provider stated it (`x-should-retry`), or `false` if a
    /// retry policy has given up. `None` if neither is known.
    pub fn advice(&self) -> Option<bool> {
        self.0.advice
    }

    /// The account's rate limits, as the service reported them with the error.
    pub fn rate_limits(&self) -> Option<&RateLimits> {
        self.0.rate_limits.as_deref()
    }

    /// Returns whether another attempt at the same call may succeed and cannot repeat side effects.
    ///
    /// This applies only if the call's future failed. After a body has emitted content, the call is
    /// never retried.
    pub fn is_retryable(&self) -> bool {
        self.effects() == SideEffects::None
            && matches!(
                self.kind(),
                ErrorKind::RateLimited
                    | ErrorKind::Overloaded
                    | ErrorKind::Server
                    | ErrorKind::Timeout
                    | ErrorKind::Connection
                    | ErrorKind::Truncated
            )
    }

    /// Returns the first `Error` among an error and its sources, for a policy that receives a [`BoxError`], or a
    /// new one with the text of `error` and the kind of the last source that has one: those of tower and
    /// [`std::io`].
    pub fn of(error: &(dyn StdError + 'static)) -> Self {
        let mut kind = ErrorKind::Other;
        for link in chain(error) {
            if let Some(inner) = link.downcast_ref::<Self>() {
                // A layer wrapped an `Error`; policies need the fields of the inner one.
                return inner.clone();
            }
            kind = kind_of(link).unwrap_or(kind);
        }
        Self::new(kind, error.to_string())
    }
}

#[derive(Debug)]
struct Waits(Suspension, SuspendedBy);

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.0.interrupts.iter().map(|i| i.id.as_str());
        f.write_str(&ids.collect::<Vec<_>>().join(", "))
    }
}

impl StdError for Waits {}

/// Iterates over an error and its sources.
fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

fn kind_of(error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
    use std::io::ErrorKind as Io;
    #[cfg(feature = "tower")]
    if let Some(kind) = kind_of_tower(error) {
        return Some(kind);
    }
    match error.downcast_ref::<std::io::Error>()?.kind() {
        Io::TimedOut => Some(ErrorKind::Timeout),
        Io::ConnectionRefused
        | Io::ConnectionReset
        | Io::ConnectionAborted
        | Io::NotConnected
        | Io::HostUnreachable
        | Io::NetworkUnreachable
        | Io::NetworkDown
        | Io::BrokenPipe
        | Io::UnexpectedEof => Some(ErrorKind::Connection),
        // Other I/O errors, such as those of files, are not related to a provider.
        _ => None,
    }
}

#[cfg(feature = "tower")]
fn kind_of_tower(error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
    use tower::{buffer, load_shed, timeout};
    if error.is::<timeout::error::Elapsed>() || error.is::<tokio::time::error::Elapsed>() {
        Some(ErrorKind::Timeout)
    } else if error.is::<load_shed::error::Overloaded>() {
        Some(ErrorKind::Overloaded)
    } else if error.is::<buffer::error::Closed>() {
        // The buffer's worker has ended and does not restart.
        Some(ErrorKind::Other)
    } else {
        None
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Error");
        s.field("kind", &self.0.kind)
            .field("message", &self.0.message);
        macro_rules! some {
            ($($field:ident)*) => {$(
                if let Some(value) = &self.0.$field {
                    s.field(stringify!($field), value);
                }
            )*};
        }
        // Excludes the source, because its `Debug` output may contain secrets.
        some!(phase code retry_after status request_id provider advice);
        if self.0.attempts > 1 {
            s.field("attempts", &self.0.attempts);
        }
        s.field("effects", &self.0.effects).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(provider) = &self.0.provider {
            write!(f, "{provider}: ")?;
        }
        if self.0.kind != ErrorKind::Other {
            write!(f, "{}", self.0.kind)?;
            if let Some(status) = self.0.status {
                write!(f, " (HTTP {status})")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.0.message)?;
        if f.alternate() {
            let mut said = self.0.message.to_string();
            for source in self.source().into_iter().flat_map(chain) {
                let source = source.to_string();
                // Many errors repeat their source.
                if !said.contains(&source) {
                    write!(f, ": {source}")?;
                    said = source;
                }
            }
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<BoxError> for Error {
    fn from(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => *error,
            Err(error) => {
                let ours = Self::of(&*error);
                // An `Error` that was found inside another error has its own source.
                if chain(&*error).any(|link| link.is::<Self>()) {
                    ours
                } else {
                    ours.with_source(error)
                }
            }
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::from(BoxError::from(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boxed_error_is_returned_unchanged() {
        let boxed: BoxError = Error::new(ErrorKind::RateLimited, "slow down")
            .with_retry_after(Duration::from_secs(3))
            .into();
        let error = Error::from(boxed);
        assert_eq!(error.kind(), ErrorKind::RateLimited);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn attempts_and_advice_survive_boxing_and_are_printed() {
        let error = Error::new(ErrorKind::Server, "no");
        assert_eq!((error.attempts(), error.advice()), (1, None));
        let boxed: BoxError = error.clone().with_attempts(3).with_advice(false).into();
        let other = Error::of(&*boxed);
        assert_eq!((other.attempts(), other.advice()), (3, Some(false)));
        let text = format!("{other:?}");
        assert!(
            text.contains("advice: false") && text.contains("attempts: 3"),
            "{text}"
        );
        assert!(!format!("{error:?}").contains("attempts"));
        assert_eq!(error.with_attempts(0).attempts(), 1);
    }

    #[cfg(feature = "tower")]
    #[test]
    fn tower_errors_are_mapped_to_their_kinds() {
        let elapsed: BoxError = tower::timeout::error::Elapsed::new().into();
        assert_eq!(Error::from(elapsed).kind(), ErrorKind::Timeout);
        let shed: BoxError = tower::load_shed::error::Overloaded::new().into();
        assert_eq!(Error::from(shed).kind(), ErrorKind::Overloaded);
    }
}
