use super::{Core, blocking::StartOnce, body::Work};
use crate::{
    Truncation,
    error::FailedCall,
    fatal,
    panic::Caught,
    truncation::{Sink, cut},
};
use concentric_core::{
    Attempts, CallId, Context, Environment, Error, ErrorKind, RunId, ToolCall, ToolCallPart,
    ToolOutcome, ToolStatus, context::Sleep, panic::catch,
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

/// Parts of a call that its guard needs later.
pub(super) struct Kept {
    id: CallId,
    run: RunId,
    clock: Option<Environment>,
    call: Option<Box<(ToolCallPart, Context)>>,
    attempts: Option<Attempts>,
}

impl Kept {
    pub(super) fn of(call: &ToolCall, limits: &Limits) -> Self {
        Self {
            id: call.id().clone(),
            run: call.context.run_id().clone(),
            clock: limits.timeout.map(|_| call.context.environment().clone()),
            call: limits
                .on_truncation
                .as_ref()
                .map(|_| Box::new((call.part().clone(), call.context.clone()))),
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
        let (Some(limit), Some(environment)) = (self.core.limits.timeout, &self.kept.clock) else {
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| environment.clock().sleep(limit));
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
    fn limit(&mut self, mut outcome: ToolOutcome) -> ToolOutcome {
        let limits = &self.core.limits;
        if let Some(short) = cut(&outcome.content, limits.max_result_bytes) {
            let whole = std::mem::replace(&mut outcome.content, short);
            if let (Some(Sink(sink)), Some(call)) = (&limits.on_truncation, self.kept.call.take()) {
                let (call, context) = *call;
                let truncation = Truncation::new(call, context, whole);
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
            id: &this.kept.id,
            run: &this.kept.run,
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
