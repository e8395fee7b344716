//! A policy for tower's retry layer that repeats failed tool calls.
//!
//! ```
//! use concentric_tools::{NoArguments, RetryTool, Toolset, tool};
//! use std::time::Duration;
//! use tower::{retry::RetryLayer, timeout::TimeoutLayer};
//!
//! let tools = Toolset::new()
//!     .tool(tool("search", "", |NoArguments {}| async { "found" }).read_only())
//!     .layer(RetryLayer::new(RetryTool::new(3)))
//!     // For each attempt.
//!     .layer(TimeoutLayer::new(Duration::from_secs(5)));
//! # let _ = tools;
//! ```
//!
//! Only tools that may run again are retried: [read-only](crate::Tool::read_only), idempotent or
//! [keyed](crate::Tool::keyed) ones. Each attempt receives the same call with the same [idempotency
//! key](concentric_core::Context::idempotency_key).
//!
//! | result of the attempt | retried |
//! |---|---|
//! | a layer returns an error | yes |
//! | the tool's function returns `Err` | yes |
//! | a layer returns an error that would recur, such as [`ErrorKind::Permission`] | no |
//! | the error is [`fatal`](crate::fatal) | no |
//! | the call [is suspended](Error::suspension), or the run was cancelled | no |
//! | the tool's function returns [`ToolOutcome::failed`], times out or panics, or the arguments are invalid | no; with [`RetryTool::failures_too`], yes |
//! | any other outcome, including an unknown one | no |
//!
//! # Place in the stack
//!
//! Outside of layers for each attempt, such as a timeout; inside of layers for each call, such as
//! [hooks](concentric_core::hooks). A retry waits until the inner service is ready again.
//!
//! # Cancel safety
//!
//! Dropping the call's future drops the attempt or the pause. There is no retry after the run is
//! cancelled, or if the pause would exceed the run's deadline.

use crate::is_fatal;
use concentric_core::{
    Attempts, BoxError, Context, Error, ErrorKind, ToolCall, ToolOutcome, ToolStatus,
    context::Sleep,
};
use std::time::Duration;
use tower::retry::Policy;

/// Retries failed calls of tools that are read-only, idempotent or keyed.
///
/// See the [module docs](self) for an example.
#[derive(Clone, Debug)]
pub struct RetryTool {
    attempts: u32,
    // The number of attempts at the call of this clone.
    made: u32,
    pause: Duration,
    longest: Duration,
    failures_too: bool,
}

impl RetryTool {
    /// Limits the attempts at a call to `attempts`, including the first; 0 means 1.
    ///
    /// The first pause is half a second and doubles up to 10 seconds; each pause is shortened
    /// randomly by up to one half.
    pub const fn new(attempts: u32) -> Self {
        Self {
            attempts,
            made: 1,
            pause: Duration::from_millis(500),
            longest: Duration::from_secs(10),
            failures_too: false,
        }
    }

    /// Sets the first and the longest pause; an [error's request](Error::retry_after) may exceed
    /// the longest. [`Duration::ZERO`] means no pause. A pause that would exceed the run's deadline
    /// ends the attempts; without a deadline, [`Duration::MAX`] lasts until the run is cancelled.
    #[must_use]
    pub const fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.pause = first;
        self.longest = longest;
        self
    }

    /// Retries every outcome with [`ToolStatus::Failed`], independent of the reason.
    #[must_use]
    pub const fn failures_too(mut self) -> Self {
        self.failures_too = true;
        self
    }

    fn after_outcome(&mut self, call: &ToolCall, outcome: &ToolOutcome) -> Option<Sleep> {
        // Unknown outcomes are never retried.
        let has_failed = outcome.status == ToolStatus::Failed && outcome.halt.is_none();
        let with_error = || call.attempts().is_some_and(Attempts::ended_with_error);
        let again = has_failed && (self.failures_too || with_error());
        again.then(|| self.again(&call.context, None)).flatten()
    }

    fn after_error(&mut self, call: &ToolCall, error: &Error) -> Option<Sleep> {
        let again = may_pass(error);
        again
            .then(|| self.again(&call.context, error.retry_after()))
            .flatten()
    }

    /// Returns the pause before the next attempt; `None` if there is none.
    fn again(&mut self, context: &Context, least: Option<Duration>) -> Option<Sleep> {
        if self.made >= self.attempts || context.is_cancelled() {
            return None;
        }
        let doubled = 1_u32.checked_shl(self.made - 1).unwrap_or(u32::MAX);
        let pause = self.pause.saturating_mul(doubled).min(self.longest);
        // Jitter: calls that failed together must not retry together.
        let random = context.environment().random().next_u64();
        let share = 0.5 + 0.5 * (random as f64 / u64::MAX as f64);
        let share = Duration::try_from_secs_f64(pause.as_secs_f64() * share).unwrap_or(pause);
        let pause = share.max(least.unwrap_or_default());
        if context.remaining().is_some_and(|left| left <= pause) {
            return None;
        }
        self.made += 1;
        let context = context.clone();
        Some(Box::pin(async move {
            // Ends early if the run is cancelled; the caller then drops the call.
            let _ = context.sleep(pause).await;
        }))
    }
}

/// Whether `call` may be made twice.
fn is_repeatable(call: &ToolCall) -> bool {
    let runs = call.settled().is_none() && call.refusal().is_none();
    runs && call.spec().is_some_and(|spec| spec.may_run_again())
}

/// Whether a retry after `error` may succeed.
fn may_pass(error: &Error) -> bool {
    let lasting = matches!(
        error.kind(),
        ErrorKind::Waiting
            | ErrorKind::Cancelled
            | ErrorKind::Halted
            | ErrorKind::Authentication
            | ErrorKind::Permission
            | ErrorKind::NotFound
            | ErrorKind::InvalidRequest
            | ErrorKind::ContextWindow
            | ErrorKind::ContentFilter
            | ErrorKind::Quota
            | ErrorKind::TooLarge
            | ErrorKind::Configuration
            | ErrorKind::Conflict
    );
    !lasting && !is_fatal(error) && error.suspension().is_none()
}

impl Policy<ToolCall, ToolOutcome, Error> for RetryTool {
    type Future = Sleep;

    fn retry(
        &mut self,
        call: &mut ToolCall,
        result: &mut Result<ToolOutcome, Error>,
    ) -> Option<Sleep> {
        match result {
            Ok(outcome) => self.after_outcome(call, outcome),
            Err(error) => self.after_error(call, error),
        }
    }

    fn clone_request(&mut self, call: &ToolCall) -> Option<ToolCall> {
        is_repeatable(call).then(|| call.clone())
    }
}

impl Policy<ToolCall, ToolOutcome, BoxError> for RetryTool {
    type Future = Sleep;

    fn retry(
        &mut self,
        call: &mut ToolCall,
        result: &mut Result<ToolOutcome, BoxError>,
    ) -> Option<Sleep> {
        match result {
            Ok(outcome) => self.after_outcome(call, outcome),
            Err(error) => self.after_error(call, &Error::of(&**error)),
        }
    }

    fn clone_request(&mut self, call: &ToolCall) -> Option<ToolCall> {
        is_repeatable(call).then(|| call.clone())
    }
}
