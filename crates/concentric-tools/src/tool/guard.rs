use super::{Core, blocking::StartOnce, body::Work};
use crate::{
    Truncation,
    error::FailedCall,
    fatal,
    panic::Caught,
    truncation::{Sink, cut},
};
use concentric_core::{
    Attempts, Error, ErrorKind, ToolCall, ToolOutcome, ToolStatus, context::Sleep, panic::catch,
};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

/// Time and size limits of a call.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(super) timeout: Option<Duration>,
    pub(super) timeout_is_fatal: bool,
    pub(super) max_result_bytes: usize,
    pub(super) on_truncation: Option<Sink>,
}

/// A call whose function is started.
pub(super) struct Kept {
    // The parts that most calls do not need are not cloned.
    call: ToolCall,
    attempts: Option<Attempts>,
}

impl Kept {
    pub(super) fn of(call: &ToolCall) -> Self {
        Self {
            call: call.clone(),
            attempts: call.attempts().cloned(),
        }
    }

    /// Records that the function starts, if layers outside count the attempts.
    pub(super) fn start(&mut self) -> Option<Attempts> {
        self.attempts.take().inspect(Attempts::start)
    }
}

/// A running function, with its limits.
pub(super) struct Guard {
    core: Arc<Core>,
    work: Caught<Work>,
    // Only for a function on another thread.
    start: Option<Arc<StartOnce>>,
    kept: Kept,
    // Made when the function is first polled.
    attempt: Option<Attempts>,
    // Made when the function first waits.
    timer: Option<Sleep>,
}

impl Guard {
    pub(super) const fn new(
        core: Arc<Core>,
        work: Work,
        start: Option<Arc<StartOnce>>,
        kept: Kept,
    ) -> Self {
        Self {
            core,
            work: Caught::new(work),
            start,
            kept,
            attempt: None,
            timer: None,
        }
    }

    /// Stops a function that was polled, and returns whether it may have executed.
    fn give_up(&mut self) -> bool {
        let is_revoked = self.start.take().is_some_and(|start| start.revoke());
        if is_revoked {
            self.end(ToolStatus::Cancelled, false);
        }
        self.work.clear();
        !is_revoked
    }

    fn end(&mut self, status: ToolStatus, with_error: bool) {
        if let Some(attempt) = self.attempt.take() {
            attempt.end(status, with_error);
        }
    }

    fn poll_timeout(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<ToolOutcome, Error>> {
        let Some(limit) = self.core.limits.timeout else {
            return Poll::Pending;
        };
        let context = &self.kept.call.context;
        let timer = self
            .timer
            .get_or_insert_with(|| context.environment().clock().sleep(limit));
        if timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let may_have_executed = self.give_up();
        let name = &self.core.spec.name;
        if self.core.limits.timeout_is_fatal {
            return Poll::Ready(Err(fatal(Error::new(
                ErrorKind::Timeout,
                format!("the tool `{name}` timed out after {limit:?}"),
            ))));
        }
        let outcome = ToolOutcome::failed(format!("The tool timed out after {limit:?}."));
        Poll::Ready(Ok(self.ended(outcome, may_have_executed)))
    }

    /// Ends the attempt with `outcome`, or with an unknown outcome if the function was stopped.
    fn ended(&mut self, outcome: ToolOutcome, given_up: bool) -> ToolOutcome {
        let outcome = match given_up {
            true => self.core.given_up(outcome),
            false => outcome,
        };
        self.end(outcome.status, false);
        outcome
    }

    /// Truncates `outcome` to the size limit.
    #[inline]
    fn limit(&self, mut outcome: ToolOutcome) -> ToolOutcome {
        let limits = &self.core.limits;
        if let Some(short) = cut(&outcome.content, limits.max_result_bytes) {
            let whole = std::mem::replace(&mut outcome.content, short);
            if let Some(Sink(sink)) = &limits.on_truncation {
                let call = &self.kept.call;
                let truncation = Truncation::new(call.part().clone(), call.context.clone(), whole);
                // The call has succeeded, so a failing callback must not change its outcome.
                if catch(|| sink(truncation)).is_err() {
                    let tool = &self.core.spec.name;
                    tracing::error!(%tool, "the `on_truncation` callback panicked");
                }
            }
        }
        outcome
    }
}

impl Future for Guard {
    type Output = Result<ToolOutcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(attempt) = this.kept.start() {
            this.attempt = Some(attempt);
        }
        let core = &this.core;
        let (name, format) = (&core.spec.name, core.error_format.as_ref());
        let failed = FailedCall {
            tool: name,
            id: this.kept.call.id(),
            run: this.kept.call.context.run_id(),
        };
        let outcome = match Pin::new(&mut this.work).poll(cx) {
            Poll::Pending => return this.poll_timeout(cx),
            Poll::Ready(Ok(Ok(outcome))) => match core.check_output(&outcome) {
                Ok(()) => this.ended(outcome, false),
                Err(error) => {
                    let outcome = error.failed(failed, format);
                    this.end(ToolStatus::Done, false);
                    outcome
                }
            },
            Poll::Ready(Ok(Err(error))) => {
                match (error.is_given_up(), error.settle(failed, format)) {
                    (true, Ok(outcome)) if !this.core.spec.may_run_again() => {
                        this.ended(outcome, true)
                    }
                    (_, Ok(outcome)) => {
                        this.end(outcome.status, true);
                        outcome
                    }
                    (_, Err(error)) => {
                        this.end(ToolStatus::Failed, false);
                        return Poll::Ready(Err(error));
                    }
                }
            }
            Poll::Ready(Err(panic)) => {
                let outcome = panic.outcome(name);
                this.ended(outcome, true)
            }
        };
        Poll::Ready(Ok(this.limit(outcome)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A function that still waits for a thread never starts.
        if self.attempt.is_some() || self.start.is_some() {
            self.give_up();
        }
    }
}
