use super::{Consumer, runs::DetachedRuns};
use crate::{rest::Rest, wait::Stop};
use concentric_core::{
    ChatResponse, Context as RunContext, Error, Event, Outcome,
    panic::{CaughtPanic, catch},
    store::Resumable,
};
use futures_core::Stream;
use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit};
use tracing::{Instrument, Span};

/// The time that a run may take to end after it was cancelled or passed its deadline.
const GRACE: Duration = Duration::from_secs(30);

/// The data that is needed to continue a run without its consumer.
pub(super) struct Hold {
    context: RunContext,
    consumer: Consumer,
    runs: DetachedRuns,
    within: Duration,
    // The span of the call, in which the run continues.
    span: Span,
    // Whether a layer inside stores the run if it is interrupted.
    is_stored: bool,
}

/// [`Hold::detach`] for bodies that can be moved, which only the layer requires.
pub(super) type Continue<B> = fn(Hold, Rest<B>);

/// The end of a detached run.
enum End {
    Finished(Outcome),
    Failed(Error),
    Truncated,
    Panicked(CaughtPanic),
    Late,
    // Cancelled or past its deadline, and did not end within [`GRACE`].
    Stopped,
}

impl Hold {
    pub(super) fn new(
        context: RunContext,
        consumer: Consumer,
        runs: DetachedRuns,
        within: Duration,
    ) -> Self {
        Self {
            context,
            consumer,
            runs,
            within,
            span: Span::current(),
            is_stored: false,
        }
    }

    /// Records whether the run is stored when it is interrupted.
    pub(super) fn answered<B>(&mut self, answer: &ChatResponse<B>) {
        self.is_stored = answer.extensions.get::<Resumable>().is_some();
    }

    /// Continues the run in a task, if the limit allows it.
    pub(super) fn detach<B>(self, rest: Rest<B>)
    where
        B: Stream<Item = Result<Event, Error>> + Send + 'static,
    {
        self.consumer.leave();
        let run = self.context.run_id();
        let permit = match self.runs.take() {
            Ok(permit) => permit,
            Err(refused) => {
                tracing::warn!(%run, "the consumer disconnected and the run is stopped: {refused}");
                return;
            }
        };
        match Handle::try_current() {
            Ok(runtime) => {
                tracing::debug!(%run, "the consumer disconnected and the run continues");
                let span = self.span.clone();
                runtime.spawn(drive(permit, self, rest).instrument(span));
            }
            Err(_) => {
                tracing::warn!(%run, "the consumer disconnected and the run is stopped: no tokio runtime");
            }
        }
    }
}

/// Drives the rest of a run to its end. The permit is released after the rest is dropped.
async fn drive<B>(_permit: OwnedSemaphorePermit, mut hold: Hold, mut rest: Rest<B>)
where
    B: Stream<Item = Result<Event, Error>>,
{
    let context = &hold.context.clone();
    let clock = context.environment().clock();
    let mut limit = clock.sleep(hold.within);
    let mut stop = Stop::new(context);
    let mut grace = None;
    let end = poll_fn(|cx| {
        match catch(|| hold.poll(&mut rest, cx)) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(end)) => return Poll::Ready(end),
            Err(panic) => return Poll::Ready(End::Panicked(panic)),
        }
        if grace.is_none() && stop.poll("the end of a detached run", cx).is_ready() {
            grace = Some(clock.sleep(GRACE));
        }
        if let Some(grace) = &mut grace {
            // The grace period does not extend the time limit.
            return match grace.as_mut().poll(cx).is_ready() || limit.as_mut().poll(cx).is_ready() {
                true => Poll::Ready(End::Stopped),
                false => Poll::Pending,
            };
        }
        limit.as_mut().poll(cx).map(|()| End::Late)
    })
    .await;
    end.log(&hold);
}

impl Hold {
    fn poll<B>(&mut self, rest: &mut Rest<B>, cx: &mut Context<'_>) -> Poll<End>
    where
        B: Stream<Item = Result<Event, Error>>,
    {
        // After 64 items, yields to other tasks and lets the caller check the limits.
        for _ in 0..64 {
            match rest {
                Rest::Call(call) => match ready!(call.as_mut().poll(cx)) {
                    Ok(answer) => {
                        self.answered(&answer);
                        *rest = Rest::body(answer.body);
                    }
                    Err(error) => return Poll::Ready(End::Failed(error)),
                },
                Rest::Body(body) => match ready!(body.as_mut().poll_next(cx)) {
                    Some(Ok(Event::Finish(finish))) => {
                        return Poll::Ready(End::Finished(finish.outcome));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(End::Failed(error)),
                    None => return Poll::Ready(End::Truncated),
                },
                Rest::Panicked { .. } | Rest::Over => return Poll::Ready(End::Truncated),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl End {
    fn log(&self, hold: &Hold) {
        let run = hold.context.run_id();
        match self {
            Self::Finished(Outcome::Interrupted) if !hold.is_stored => tracing::error!(
                %run,
                "a detached run was interrupted and its state is lost: add `SuspendLayer` inside \
                 `DetachLayer`"
            ),
            Self::Finished(outcome) => tracing::debug!(%run, ?outcome, "a detached run ended"),
            Self::Failed(error) => {
                // Not the message, which may quote the conversation.
                let (kind, code) = (error.kind().as_str(), error.code());
                tracing::warn!(%run, kind, code, "a detached run failed");
            }
            Self::Truncated => tracing::warn!(%run, "a detached run ended without a terminal item"),
            Self::Panicked(panic) => {
                tracing::warn!(%run, panic = panic.text(), "a detached run panicked");
            }
            Self::Late => {
                tracing::warn!(%run, "a detached run exceeded its time limit and is stopped")
            }
            Self::Stopped => {
                tracing::warn!(%run, "a detached run did not end after its cancellation or deadline and is stopped");
            }
        }
    }
}
