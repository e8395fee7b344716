//! Drives a run: by the polls of its consumer until it is stored, then in a separate task.

use super::run::Drive;
use crate::{body::Polled, rest::Rest, wait::Stop};
use concentric_core::{
    ChatResponse, Error, ErrorKind, Event, Outcome, Phase, SideEffects, panic::catch,
    store::RunStore,
};
use futures_core::Stream;
use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::AbortHandle,
};
use tracing::instrument::{Instrument, WithSubscriber};

/// The next item of a run for its consumer.
pub(super) enum Step {
    /// The response head.
    Head(ChatResponse<()>),
    /// An item of the body, or the error of the future.
    Item(Result<Event, Error>),
}

/// A run that is driven, until its end is recorded in the store.
pub(super) struct Run<B, St>
where
    St: RunStore + ?Sized,
{
    // Dropped before `drive`, which records the end of the run.
    rest: Rest<B>,
    drive: Drive<St>,
    // The last item, while the end of the run is being recorded.
    last: Option<Option<Result<Event, Error>>>,
    items: u32,
    spawn: Spawn<B, St>,
}

/// [`Task::spawn`] for bodies that can be moved, which only the layer requires.
pub(super) type Spawn<B, St> = fn(Box<Run<B, St>>, &Handle) -> Task;

/// The message of the error of a body without a terminal item.
const TRUNCATED: &str = "the response body ended before its terminal event";

/// The maximum number of consecutive items before the lease is checked.
const ITEMS: u32 = 64;

impl<B, St> Run<B, St>
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    pub(super) const fn new(rest: Rest<B>, mut drive: Drive<St>, spawn: Spawn<B, St>) -> Self {
        drive.start();
        Self {
            rest,
            drive,
            last: None,
            items: 0,
            spawn,
        }
    }

    const fn is_over(&self) -> bool {
        matches!(self.rest, Rest::Over) && self.last.is_none()
    }

    /// Returns the next step, or `None` at the end. `read` is the item of the body, if it was polled.
    fn poll(&mut self, read: Option<Polled>, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        // Before the tools continue: another process may have the run.
        if self.last.is_none()
            && !matches!(self.rest, Rest::Over)
            && self.drive.is_late()
            && let lost @ Poll::Ready(_) = self.poll_lost(cx)
        {
            return lost;
        }
        if let Rest::Call(call) = &mut self.rest {
            match call.as_mut().poll(cx) {
                Poll::Ready(Ok(response)) => {
                    let rest = &mut self.rest;
                    let head = response.map_body(|body| *rest = Rest::body(body));
                    return Poll::Ready(Some(Step::Head(head)));
                }
                Poll::Ready(Err(error)) => self.settle(Some(Err(error))),
                Poll::Pending => return self.poll_lost(cx),
            }
        } else if self.rest.is_body() {
            match read.unwrap_or_else(|| self.rest.poll_body(cx)) {
                Poll::Ready(Some(Ok(event))) if !event.is_finish() => {
                    self.items = self.items.wrapping_add(1);
                    if self.items.is_multiple_of(ITEMS)
                        && let lost @ Poll::Ready(_) = self.poll_lost(cx)
                    {
                        return lost;
                    }
                    return Poll::Ready(Some(Step::Item(Ok(event))));
                }
                Poll::Ready(last) => self.settle(last),
                Poll::Pending => return self.poll_lost(cx),
            }
        }
        if self.last.is_none() {
            return Poll::Ready(None);
        }
        let written = ready!(self.drive.poll_last(cx));
        let last = self.last.take().flatten();
        let last = match (written, last) {
            (Err(error), Some(Ok(_))) => Some(Err(error)),
            (Err(error), last) => {
                tracing::warn!(%error, "the store did not record the end of a failed run");
                last
            }
            (Ok(()), last) => last,
        };
        Poll::Ready(last.map(Step::Item))
    }

    /// Starts recording the end of the run, whose body ends with `last`.
    fn settle(&mut self, last: Option<Result<Event, Error>>) {
        match &last {
            Some(Ok(Event::Finish(finish))) => match (&finish.outcome, &finish.state) {
                (Outcome::Interrupted, Some(state)) => self.drive.suspend((**state).clone()),
                (outcome, _) => self.drive.end(Ok(outcome.clone())),
            },
            Some(Err(error)) => self.drive.give_up(Some(error)),
            _ => self
                .drive
                .give_up(Some(&Error::new(ErrorKind::Truncated, TRUNCATED))),
        }
        self.last = Some(last);
        self.rest = Rest::Over;
    }

    /// Renews the lease. Resolves to the run's last item when the claim is lost.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        let lost = ready!(self.drive.poll_lost(cx));
        // The tools of this process are dropped before the error is returned.
        self.rest = Rest::Over;
        Poll::Ready(Some(Step::Item(Err(lost))))
    }

    /// Ends a run whose poll has panicked.
    fn panicked(&mut self, error: Error) {
        // Dropping the rest may panic, too.
        let rest = self.rest.take();
        let _ = catch(|| drop(rest));
        self.settle(Some(Err(error)));
    }
}

/// The source of the steps for the consumer of a run.
pub(super) enum Source<B, St>
where
    St: RunStore + ?Sized,
{
    /// The run is not stored, and is driven by polls.
    Here(Box<Run<B, St>>),
    /// The run is driven by a task.
    There(Task),
    Over,
}

impl<B, St> Source<B, St>
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    pub(super) fn new(run: Run<B, St>) -> Self {
        Self::Here(Box::new(run))
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// Lends the body of a run that is not stored, whose events are passed on as they are.
    ///
    /// The lender polls it, and calls [`poll_item`](Self::poll_item) when a poll returned no event.
    pub(super) fn lend(&mut self) -> Rest<B> {
        match self {
            Self::Here(run) if !run.drive.is_stored() => run.rest.take(),
            _ => Rest::Over,
        }
    }

    /// Returns the next item of the run. `read` is that of its body, if that was [lent](Self::lend). Takes the body
    /// back if it has ended, or if the run is stored by now.
    pub(super) fn poll_item(
        &mut self,
        lent: &mut Rest<B>,
        read: Polled,
        cx: &mut Context<'_>,
    ) -> Polled {
        let read = match self {
            Self::Here(run) if !matches!(lent, Rest::Over) => {
                if read.is_pending() && !run.drive.is_stored() {
                    return Poll::Pending;
                }
                run.rest = lent.take();
                run.rest.is_body().then_some(read)
            }
            _ => None,
        };
        self.poll_step(read, cx).map(|step| match step {
            Some(Step::Item(item)) => Some(item),
            Some(Step::Head(_)) | None => None,
        })
    }

    /// Returns the next step, or `None` if the run has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        self.poll_step(None, cx)
    }

    fn poll_step(&mut self, read: Option<Polled>, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        // Taken while it is polled, so a run that panicked is not polled again.
        if matches!(self, Self::Here(_))
            && let Self::Here(mut run) = mem::replace(self, Self::Over)
            && !matches!(run.rest, Rest::Panicked { .. })
        {
            let polled = run.poll(read, cx);
            if run.is_over() {
                return polled;
            }
            let runtime = run.drive.is_stored().then(Handle::try_current);
            let Some(Ok(runtime)) = runtime else {
                *self = Self::Here(run);
                return polled;
            };
            let spawn = run.spawn;
            *self = Self::There(spawn(run, &runtime));
            if polled.is_ready() {
                return polled;
            }
        }
        let Self::There(task) = self else {
            return Poll::Ready(None);
        };
        let step = ready!(task.poll(cx));
        if !matches!(step, Some(Step::Head(_) | Step::Item(Ok(_))))
            || matches!(&step, Some(Step::Item(Ok(event))) if event.is_finish())
        {
            *self = Self::Over;
        }
        Poll::Ready(step)
    }
}

/// A run that is driven by a task. Dropping this value aborts the task.
pub(super) struct Task {
    steps: mpsc::UnboundedReceiver<Sent>,
    task: AbortHandle,
}

/// A step, or `None` for a body without a terminal item; and the room that it occupies.
type Sent = (Option<Step>, Option<OwnedSemaphorePermit>);

impl Task {
    pub(super) fn spawn<B, St>(run: Box<Run<B, St>>, runtime: &Handle) -> Self
    where
        B: Stream<Item = Result<Event, Error>> + Send + 'static,
        St: RunStore + ?Sized,
    {
        let (sender, steps) = mpsc::unbounded_channel();
        let room = run.drive.buffer().clamp(1, Semaphore::MAX_PERMITS);
        let room = Room::new(room, &run);
        // Logs of the task belong to the consumer's span.
        let task = drive(run, sender, room)
            .instrument(tracing::Span::current())
            .with_current_subscriber();
        Self {
            steps,
            task: runtime.spawn(task).abort_handle(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        match ready!(self.steps.poll_recv(cx)) {
            Some((step, _room)) => Poll::Ready(step),
            None => Poll::Ready(Some(Step::Item(Err(stopped())))),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the error of a run whose task was stopped before the run ended.
pub(super) fn stopped() -> Error {
    let stopped = "the task of a stored run was stopped, for example by a runtime shutdown; the \
                   run can be resumed after its lease expires";
    Error::new(ErrorKind::Cancelled, stopped)
        .with_code("task_stopped")
        .with_phase(Phase::Run)
        .with_effects(SideEffects::Possible)
}

/// Drives a run to its end.
async fn drive<B, St>(mut run: Box<Run<B, St>>, steps: mpsc::UnboundedSender<Sent>, mut room: Room)
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    let mut has_panicked = false;
    loop {
        let polled = poll_fn(|cx| match catch(|| run.poll(None, cx)) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        });
        let step = match polled.await {
            Ok(step) => step,
            Err(panic) => {
                tracing::error!(panic = panic.text(), "a stored run panicked");
                let error = panic
                    .error()
                    .with_phase(Phase::Run)
                    .with_effects(SideEffects::Possible);
                if has_panicked {
                    let _ = steps.send((Some(Step::Item(Err(error))), None));
                    return;
                }
                has_panicked = true;
                run.panicked(error);
                continue;
            }
        };
        // The end is recorded, so the task does not wait for the consumer.
        if run.is_over() {
            let _ = steps.send((step, None));
            return;
        }
        match room.take(&mut run).await {
            Ok(permit) => drop(steps.send((step, permit))),
            Err(lost) => {
                let _ = steps.send((step, None));
                let _ = steps.send((lost, None));
                return;
            }
        }
    }
}

/// Limits how far a run may be ahead of its consumer.
struct Room {
    permits: Arc<Semaphore>,
    // Resolves when the run is cancelled or its deadline passes; then set to `None`.
    stop: Option<Stop>,
    // The number of steps that may still follow without waiting for the consumer.
    spare: u32,
}

/// The maximum number of steps at the end of a run: one for each of its calls, and a few more.
const SPARE: u32 = 4096;

impl Room {
    fn new<B, St>(permits: usize, run: &Run<B, St>) -> Self
    where
        St: RunStore + ?Sized,
    {
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            stop: Some(Stop::new(run.drive.context())),
            spare: SPARE,
        }
    }

    /// Waits until there is room for one more step, or the run must end without waiting. Renews the
    /// lease meanwhile.
    ///
    /// # Errors
    ///
    /// Returns the run's last step if the claim is lost.
    async fn take<B, St>(
        &mut self,
        run: &mut Run<B, St>,
    ) -> Result<Option<OwnedSemaphorePermit>, Option<Step>>
    where
        B: Stream<Item = Result<Event, Error>>,
        St: RunStore + ?Sized,
    {
        let mut permit = pin!(Arc::clone(&self.permits).acquire_owned());
        poll_fn(|cx| {
            if let Poll::Ready(permit) = permit.as_mut().poll(cx) {
                // The semaphore is never closed.
                return Poll::Ready(Ok(permit.ok()));
            }
            if let Some(stop) = &mut self.stop
                && stop.poll("its consumer", cx).is_ready()
            {
                self.stop = None;
            }
            if self.stop.is_none() && self.spare > 0 {
                self.spare -= 1;
                return Poll::Ready(Ok(None));
            }
            run.poll_lost(cx).map(Err)
        })
        .await
    }
}
