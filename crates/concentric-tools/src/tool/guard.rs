use super::{Core, body::Work};
use crate::{
    Overlong, fatal,
    overlong::{Sink, cut},
    panic::{self, Caught},
};
use concentric_core::{
    Context, Environment, Error, ErrorKind, Str, ToolCall, ToolCallPart, ToolOutcome,
    context::Sleep, method::catch,
};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

/// What a call may take and give.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(super) timeout: Option<Duration>,
    pub(super) timeout_is_fatal: bool,
    pub(super) max_result_bytes: usize,
    pub(super) on_overlong: Option<Sink>,
}

/// What the guard of a call needs to know of it later: nothing, for most tools.
pub(super) struct Kept {
    clock: Option<Environment>,
    call: Option<Box<(ToolCallPart, Context)>>,
}

impl Kept {
    pub(super) fn of(call: &ToolCall, limits: &Limits) -> Self {
        Self {
            clock: limits.timeout.map(|_| call.context.environment().clone()),
            call: limits
                .on_overlong
                .as_ref()
                .map(|_| Box::new((call.part().clone(), call.context.clone()))),
        }
    }
}

/// A function's call, kept within its limits.
pub(super) struct Guard {
    core: Arc<Core>,
    work: Caught<Work>,
    kept: Kept,
    // Made when the function first waits.
    timer: Option<Sleep>,
}

impl Guard {
    pub(super) const fn new(core: Arc<Core>, work: Work, kept: Kept) -> Self {
        Self {
            core,
            work: Caught::new(work),
            kept,
            timer: None,
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
        self.work.clear();
        let name = &self.core.spec.name;
        Poll::Ready(if self.core.limits.timeout_is_fatal {
            Err(fatal(Error::new(
                ErrorKind::Timeout,
                format!("the tool `{name}` timed out after {limit:?}"),
            )))
        } else {
            Ok(ToolOutcome::failed(format!(
                "The tool timed out after {limit:?}."
            )))
        })
    }

    /// Leaves of `outcome` what the model is to read.
    #[inline]
    fn limit(&mut self, mut outcome: ToolOutcome) -> ToolOutcome {
        let limits = &self.core.limits;
        if let Some(short) = cut(&outcome.content, limits.max_result_bytes) {
            let whole = std::mem::replace(&mut outcome.content, short);
            if let (Some(Sink(sink)), Some(call)) = (&limits.on_overlong, self.kept.call.take()) {
                let (call, context) = *call;
                let overlong = Overlong::new(call, context, whole);
                // The tool has done its work, whatever becomes of what it said.
                if catch(|| sink(overlong)).is_err() {
                    let tool = &self.core.spec.name;
                    tracing::error!(%tool, "the sink of overlong results panicked");
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
        let name: &Str = &this.core.spec.name;
        let outcome = match Pin::new(&mut this.work).poll(cx) {
            Poll::Pending => return this.poll_timeout(cx),
            Poll::Ready(Ok(Ok(outcome))) => outcome,
            Poll::Ready(Ok(Err(error))) => match error.settle(name) {
                Ok(outcome) => outcome,
                Err(error) => return Poll::Ready(Err(error)),
            },
            Poll::Ready(Err(panic)) => panic::outcome(&panic, name),
        };
        Poll::Ready(Ok(this.limit(outcome)))
    }
}
