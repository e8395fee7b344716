use super::{
    Flow, ToolHooks,
    shared::{After, Before, Running, Shared},
};
use crate::{is_fatal, layers::Observation, panic};
use concentric_core::{
    Error, ErrorKind, Str, ToolCall, ToolOutcome, ToolService, method::catch, service::BoxFuture,
};
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
    pub struct ResponseFuture<S, H>
    where
        S: Service<ToolCall>,
        H: ToolHooks,
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
        Matching {
            matching: BoxFuture<bool>,
            rest: Option<(S, ToolCall)>,
        },
        // The hook does not apply to the call.
        Passing {
            #[pin]
            future: S::Future,
        },
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
    H: ToolHooks,
{
    shared: Arc<Shared<H>>,
    call: Option<ToolCall>,
    // The start time of the inner layers, if a method needs the duration.
    started: Option<SystemTime>,
}

impl<H> Guard<H>
where
    H: ToolHooks,
{
    pub(super) const fn new(shared: Arc<Shared<H>>) -> Self {
        Self {
            shared,
            call: None,
            started: None,
        }
    }

    /// A guard for a call that the hook applies to.
    pub(super) fn of(shared: Arc<Shared<H>>, call: ToolCall) -> Self {
        Self {
            shared,
            call: Some(call),
            started: None,
        }
    }

    /// Calls `after` with the outcome of a settled call, and ignores its return value.
    pub(super) fn observed(mut self) -> Observation {
        Box::pin(async move {
            let Some(call) = self.call.take() else { return };
            let Some(outcome) = call.settled().cloned() else {
                return;
            };
            if self.shared.has.after {
                let mut running = self.shared.start_after(call, Ok(outcome), Duration::ZERO);
                let _ = poll_fn(|cx| self.shared.poll_after(&mut running, cx)).await;
            }
        })
    }

    fn start(&mut self, call: &ToolCall) {
        let has = self.shared.has;
        if (has.after || has.on_error) && is_to_run(call) {
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
    H: ToolHooks,
{
    fn drop(&mut self) {
        if let Some(call) = self.call.take()
            && let Err(panic) = catch(|| self.shared.hooks.cancelled(&call))
        {
            self.shared.failed("cancelled", &panic.error(), &call);
        }
    }
}

/// Whether a call may still run.
fn is_to_run(call: &ToolCall) -> bool {
    call.settled().is_none() && call.refusal().is_none()
}

/// Whether a hook applies to a call.
pub(super) fn matched<H>(result: Result<bool, Error>, hooks: &H) -> bool
where
    H: ToolHooks,
{
    result.unwrap_or_else(|error| {
        let hook = hooks.id();
        tracing::warn!(hook, %error, "the matcher of a hook failed; the hook applies");
        true
    })
}

/// Calls the hook's `before`. Returns the step that waits for the hook.
pub(super) fn begin<S, H>(
    guard: &mut Guard<H>,
    inner: &mut S,
    call: ToolCall,
    cx: &mut Context<'_>,
) -> Result<Step<S>, Running<Before>>
where
    S: Service<ToolCall>,
    H: ToolHooks,
{
    guard.call = Some(call.clone());
    if !guard.shared.has.before || !is_to_run(&call) {
        return Ok(enter(guard, inner, call));
    }
    let mut running = guard.shared.start_before(call);
    match guard.shared.poll_before(&mut running, cx) {
        Poll::Ready(before) => Ok(decide(guard, inner, before)),
        Poll::Pending => Err(running),
    }
}

/// Applies the result of `before`.
fn decide<S, H>(guard: &mut Guard<H>, inner: &mut S, (call, flow): Before) -> Step<S>
where
    S: Service<ToolCall>,
    H: ToolHooks,
{
    if call.is_edited() {
        guard.call = Some((*call).clone());
    }
    let call = call.into_inner();
    let result = match flow {
        Ok(Ok(Flow::Continue)) => return enter(guard, inner, call),
        Ok(Ok(Flow::Answer(outcome))) => Ok(outcome),
        Ok(Ok(Flow::Block(reason))) => {
            Ok(call.state().settle_unexecuted(ToolOutcome::denied(reason)))
        }
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
    H: ToolHooks,
{
    if waits(&error) || is_fatal(&error) || error.kind() == ErrorKind::Halted {
        return Err(error);
    }
    shared.failed("before", &error, call);
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
    H: ToolHooks,
{
    guard.start(&call);
    match catch(|| inner.call(call)) {
        Ok(future) => Step::Inner { future },
        Err(panic) => Step::Settled {
            result: Some(Ok(panic::outcome(&panic, guard.name()))),
            took: guard.took(),
        },
    }
}

impl<S, H> ResponseFuture<S, H>
where
    S: Service<ToolCall>,
    H: ToolHooks,
{
    pub(super) const fn new(guard: Guard<H>, step: Step<S>) -> Self {
        Self { step, guard }
    }
}

impl<S, H> Future for ResponseFuture<S, H>
where
    S: ToolService,
    H: ToolHooks,
{
    type Output = Result<ToolOutcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut step, guard) = (this.step, this.guard);
        loop {
            let next = match step.as_mut().project() {
                StepProj::Passing { future } => {
                    return future.poll(cx).map_err(|e| Error::from(e.into()));
                }
                StepProj::Matching { matching, rest } => {
                    let result = ready!(matching.as_mut().poll(cx));
                    let (mut inner, call) = rest.take().expect("polled after completion");
                    if matched(result, &guard.shared.hooks) {
                        match begin(guard, &mut inner, call, cx) {
                            Ok(step) => step,
                            Err(running) => Step::Before { running, inner },
                        }
                    } else {
                        let future = inner.call(call);
                        Step::Passing { future }
                    }
                }
                StepProj::Before { running, inner } => {
                    let before = ready!(guard.shared.poll_before(running, cx));
                    decide(guard, inner, before)
                }
                StepProj::Inner { future } => {
                    let result = match catch(|| future.poll(cx)) {
                        Ok(Poll::Pending) => return Poll::Pending,
                        Ok(Poll::Ready(result)) => result.map_err(|e| Error::from(e.into())),
                        Err(panic) => Ok(panic::outcome(&panic, guard.name())),
                    };
                    Step::Settled {
                        result: Some(result),
                        took: guard.took(),
                    }
                }
                StepProj::Settled { result, took } => {
                    let result = result.take().expect("polled after completion");
                    let has = guard.shared.has;
                    let is_told = match &result {
                        Ok(_) => has.after,
                        Err(error) => has.on_error && !waits(error),
                    };
                    match guard.call.take() {
                        Some(call) if is_told => Step::After {
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

impl<S, H> fmt::Debug for ResponseFuture<S, H>
where
    S: Service<ToolCall>,
    H: ToolHooks,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
