use super::{
    Flow, Hooks, Interest,
    tool_shared::{After, Before, Running, Shared},
};
use crate::{fatal::is_fatal, panic::catch, service::ToolService, tool_call::ToolCall};
use concentric_proto::{Error, ErrorKind, Str, ToolOutcome, ToolStatus};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};
use tower_service::Service;

pin_project! {
    /// Response future for [`HookedTool`](super::HookedTool).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct CallFuture<S, H>
    where
        S: Service<ToolCall>,
        H: Hooks,
    {
        // Dropped before `guard`, which reports the cancellation.
        #[pin]
        step: Step<S>,
        guard: Guard<H>,
    }
}

pin_project! {
    #[project = StepProj]
    pub(super) enum Step<S>
    where
        S: Service<ToolCall>,
    {
        Before {
            running: Running<Before>,
            inner: S,
        },
        Inner {
            #[pin]
            future: S::Future,
        },
        Settled {
            result: Option<After>,
            took: Duration,
        },
        After {
            running: Running<After>,
        },
    }
}

/// A call that entered a hook; reports a cancellation if it is dropped with the call.
pub(super) struct Guard<H>
where
    H: Hooks,
{
    shared: Arc<Shared<H>>,
    call: Option<ToolCall>,
    // The start time of the inner layers, if a method needs the duration.
    started: Option<SystemTime>,
}

impl<H> Guard<H>
where
    H: Hooks,
{
    pub(super) const fn new(shared: Arc<Shared<H>>) -> Self {
        Self {
            shared,
            call: None,
            started: None,
        }
    }

    /// Calls `after_call` with the outcome of a settled call, and ignores its return value.
    pub(super) fn observe(mut self, call: ToolCall) -> impl Future<Output = ()> + Send {
        self.call = Some(call);
        async move {
            let Some(call) = self.call.take() else { return };
            let Some(outcome) = call.settled().cloned() else {
                return;
            };
            if self.shared.interest.contains(Interest::AFTER_CALL) {
                let mut running = self.shared.start_after(call, Ok(outcome), Duration::ZERO);
                let _ = poll_fn(|cx| self.shared.poll_after(&mut running, cx)).await;
            }
        }
    }

    /// Calls `before_call` for a call that is not made.
    pub(super) async fn ask(self, call: ToolCall) -> (ToolCall, Result<Flow<ToolOutcome>, Error>) {
        let shared = &self.shared;
        if !shared.interest.contains(Interest::BEFORE_CALL) || !may_run(&call) {
            return (call, Ok(Flow::Continue));
        }
        let mut running = shared.start_before(call);
        let (call, flow) = poll_fn(|cx| shared.poll_before(&mut running, cx)).await;
        let call = call.into_inner();
        let error = match flow {
            Ok(Ok(flow)) => return (call, Ok(flow)),
            Ok(Err(error)) => Error::from(error),
            Err(panic) => panic.error(),
        };
        let answer = failed(shared, &call, error).map(Flow::Answer);
        (call, answer)
    }

    fn start(&mut self, call: &ToolCall) {
        let timed = Interest::AFTER_CALL | Interest::ON_CALL_ERROR;
        if self.shared.interest.intersects(timed) && may_run(call) {
            self.started = Some(call.context.now());
        }
    }

    fn took(&self) -> Duration {
        let since = |(call, started): (&ToolCall, SystemTime)| {
            call.context.now().duration_since(started).ok()
        };
        let started = self.call.as_ref().zip(self.started);
        started.and_then(since).unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.call.as_ref().map_or("", |call| call.name())
    }
}

impl<H> Drop for Guard<H>
where
    H: Hooks,
{
    fn drop(&mut self) {
        if let Some(call) = self.call.take()
            && self.shared.interest.contains(Interest::CALL_CANCELLED)
            && let Err(panic) = catch(|| self.shared.hooks.call_cancelled(&call))
        {
            self.shared.failed("call_cancelled", panic.error(), &call);
        }
    }
}

/// Whether a call may still run.
fn may_run(call: &ToolCall) -> bool {
    call.settled().is_none() && call.refusal().is_none()
}

/// Calls `before_call`. Returns the step that waits for the hook.
pub(super) fn begin<S, H>(
    guard: &mut Guard<H>,
    inner: &mut S,
    call: ToolCall,
    cx: &mut Context<'_>,
) -> Result<Step<S>, Running<Before>>
where
    S: Service<ToolCall>,
    H: Hooks,
{
    guard.call = Some(call.clone());
    if !guard.shared.interest.contains(Interest::BEFORE_CALL) || !may_run(&call) {
        return Ok(enter(guard, inner, call));
    }
    let mut running = guard.shared.start_before(call);
    match guard.shared.poll_before(&mut running, cx) {
        Poll::Ready(before) => Ok(decide(guard, inner, before)),
        Poll::Pending => Err(running),
    }
}

/// Applies the result of `before_call`.
fn decide<S, H>(guard: &mut Guard<H>, inner: &mut S, (call, flow): Before) -> Step<S>
where
    S: Service<ToolCall>,
    H: Hooks,
{
    if call.is_edited() {
        guard.call = Some((*call).clone());
    }
    let call = call.into_inner();
    let result = match flow {
        Ok(Ok(Flow::Continue)) => return enter(guard, inner, call),
        Ok(Ok(Flow::Answer(outcome))) => Ok(match outcome.status {
            ToolStatus::Denied => call.state().settle_unexecuted(outcome),
            _ => outcome,
        }),
        Ok(Ok(Flow::Halt(reason))) => {
            let halted = ToolOutcome::cancelled(reason.clone()).and_halt(reason);
            Ok(call.state().settle_unexecuted(halted))
        }
        Ok(Err(error)) => failed(&guard.shared, &call, Error::from(error)),
        Err(panic) => failed(&guard.shared, &call, panic.error()),
    };
    Step::Settled {
        result: Some(result),
        took: Duration::ZERO,
    }
}

/// The outcome of a call whose hook failed.
fn failed<H>(shared: &Shared<H>, call: &ToolCall, error: Error) -> After
where
    H: Hooks,
{
    if waits(&error) || is_fatal(&error) || error.kind() == ErrorKind::Halted {
        return Err(error);
    }
    shared.failed("before_call", error, call);
    Ok(not_checked())
}

fn not_checked() -> ToolOutcome {
    ToolOutcome::failed(Str::from_static(
        "A check of this call failed. The call was not run.",
    ))
}

fn waits(error: &Error) -> bool {
    error.kind() == ErrorKind::Waiting || error.suspension().is_some()
}

/// Calls the inner layers.
fn enter<S, H>(guard: &mut Guard<H>, inner: &mut S, call: ToolCall) -> Step<S>
where
    S: Service<ToolCall>,
    H: Hooks,
{
    guard.start(&call);
    match catch(|| inner.call(call)) {
        Ok(future) => Step::Inner { future },
        Err(panic) => Step::Settled {
            result: Some(Ok(panic.outcome(guard.name()))),
            took: guard.took(),
        },
    }
}

impl<S, H> CallFuture<S, H>
where
    S: Service<ToolCall>,
    H: Hooks,
{
    pub(super) const fn new(guard: Guard<H>, step: Step<S>) -> Self {
        Self { step, guard }
    }
}

impl<S, H> Future for CallFuture<S, H>
where
    S: ToolService,
    H: Hooks,
{
    type Output = Result<ToolOutcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut step, guard) = (this.step, this.guard);
        loop {
            let next = match step.as_mut().project() {
                StepProj::Before { running, inner } => {
                    let before = ready!(guard.shared.poll_before(running, cx));
                    decide(guard, inner, before)
                }
                StepProj::Inner { future } => {
                    let result = match catch(|| future.poll(cx)) {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(result)) => result.map_err(|e| Error::from(e.into())),
                        Err(panic) => Ok(panic.outcome(guard.name())),
                    };
                    Step::Settled {
                        result: Some(result),
                        took: guard.took(),
                    }
                }
                StepProj::Settled { result, took } => {
                    let result = result.take().expect("polled after completion");
                    let interest = guard.shared.interest;
                    let is_observed = match &result {
                        Ok(_) => interest.contains(Interest::AFTER_CALL),
                        Err(error) => interest.contains(Interest::ON_CALL_ERROR) && !waits(error),
                    };
                    match guard.call.take() {
                        Some(call) if is_observed => Step::After {
                            running: guard.shared.start_after(call, result, *took),
                        },
                        _ => return Poll::Ready(result),
                    }
                }
                StepProj::After { running } => return guard.shared.poll_after(running, cx),
            };
            // The completed step is dropped before the hook is called; its panic is ignored.
            let _ = catch(|| step.set(next));
        }
    }
}

impl<S, H> fmt::Debug for CallFuture<S, H>
where
    S: Service<ToolCall>,
    H: Hooks,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").finish_non_exhaustive()
    }
}
