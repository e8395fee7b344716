//! Another attempt at a tool call that failed: a policy for tower's own retry.
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
//! Only a tool that may run again is called again: one that is
//! [read-only](crate::Tool::read_only), idempotent or [keyed](crate::Tool::keyed). It receives the
//! same call, with the same [idempotency key](concentric_core::Context::idempotency_key).
//!
//! | the attempt | is followed by another |
//! |---|---|
//! | a layer returns an error | yes |
//! | the tool's function returns `Err` | yes |
//! | a layer returns an error that another attempt would repeat, such as [`ErrorKind::Permission`] | no |
//! | the error is [`fatal`](crate::fatal) | no |
//! | the call [waits](Error::pending) for a reply, or the run was cancelled | no |
//! | the tool's function returns [`ToolOutcome::failed`], times out or panics, or the arguments are invalid | no; with [`RetryTool::failures_too`], yes |
//! | any other outcome, also an unknown one | no |
//!
//! # Place in the stack
//!
//! Outside of what is to be done for each attempt, as a time limit; inside of what is to be told of
//! each call once, as [hooks](crate::hooks). An attempt that follows waits until the rest of the
//! stack is ready again.
//!
//! # Cancel safety
//!
//! Dropping the call's future ends the attempt, or the pause before the next one. No attempt follows
//! once the run is cancelled, nor one for which the run's deadline leaves no time.

use crate::is_fatal;
use concentric_core::{
    Attempts, BoxError, Context, Error, ErrorKind, ToolCall, ToolOutcome, ToolStatus,
    context::Sleep,
};
use std::time::Duration;
use tower::retry::Policy;

/// Calls a tool again that only reads or is idempotent, if the call fails.
///
/// See the [module docs](self) for an example.
#[derive(Clone, Debug)]
pub struct RetryTool {
    attempts: u32,
    // Of the call that this clone is for.
    made: u32,
    pause: Duration,
    longest: Duration,
    failures_too: bool,
}

impl RetryTool {
    /// Makes at most `attempts` attempts at a call, the first of them included; 0 means 1.
    ///
    /// The pause before the next one is half a second at first, and doubles up to 10 seconds; a
    /// random part of its second half is left out.
    pub const fn new(attempts: u32) -> Self {
        Self {
            attempts,
            made: 1,
            pause: Duration::from_millis(500),
            longest: Duration::from_secs(10),
            failures_too: false,
        }
    }

    /// Sets the pause before the second attempt, and the longest there may be; one that an
    /// [error asks for](Error::retry_after) may be longer. [`Duration::ZERO`] means no pause. A pause
    /// that the run's deadline leaves no time for ends the attempts; without a deadline, a pause of
    /// [`Duration::MAX`] lasts until the run is cancelled.
    #[must_use]
    pub const fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.pause = first;
        self.longest = longest;
        self
    }

    /// Retries every outcome with [`ToolStatus::Failed`], whatever its reason.
    #[must_use]
    pub const fn failures_too(mut self) -> Self {
        self.failures_too = true;
        self
    }

    fn after_outcome(&mut self, call: &ToolCall, outcome: &ToolOutcome) -> Option<Sleep> {
        // An unknown outcome is never followed by another attempt.
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

    /// The pause before the next attempt, if there is to be one.
    fn again(&mut self, context: &Context, least: Option<Duration>) -> Option<Sleep> {
        if self.made >= self.attempts || context.is_cancelled() {
            return None;
        }
        let doubled = 1_u32.checked_shl(self.made - 1).unwrap_or(u32::MAX);
        let pause = self.pause.saturating_mul(doubled).min(self.longest);
        // Calls that failed together are not to come back together.
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
            // It ends early if the run is cancelled; then whoever runs it drops the call.
            let _ = context.sleep(pause).await;
        }))
    }
}

/// Whether `call` can be made twice.
fn is_repeatable(call: &ToolCall) -> bool {
    let runs = call.settled().is_none() && call.refusal().is_none();
    runs && call.spec().is_some_and(|spec| spec.may_run_again())
}

/// Whether what failed may not fail the next time.
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
    !lasting && !is_fatal(error) && error.pending().is_none()
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
