//! Drives a run: where its consumer polls it, until it is stored; in a task of its own from then on.

use super::run::Drive;
use crate::wait::Stop;
use concentric_core::{
    ChatResponse, Effects, Error, ErrorKind, Event, EventStream, Outcome, Phase, method::catch,
    service::BoxFuture, store::RunStore,
};
use futures_core::Stream;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::AbortHandle,
};
use tracing::instrument::{Instrument, WithSubscriber};

/// What a run does next, for its consumer.
pub(super) enum Step {
    /// Its response begins.
    Head(ChatResponse<()>),
    /// Of its body, or the error of its future.
    Item(Result<Event, Error>),
}

/// What is left of a run. It moves, so it is in boxes.
pub(super) enum Rest {
    Call(BoxFuture<ChatResponse<EventStream>>),
    Body(EventStream),
}

/// A run that is driven, and its end in the store.
pub(super) struct Run<St>
where
    St: RunStore + ?Sized,
{
    // `None` once it has ended. Dropped before the drive, which reports what becomes of the run.
    rest: Option<Rest>,
    drive: Drive<St>,
    // The end, while it is written what becomes of the run.
    last: Option<Option<Result<Event, Error>>>,
    items: u32,
}

/// How many items may come in a row before the lease is looked at.
const ITEMS: u32 = 64;

impl<St> Run<St>
where
    St: RunStore + ?Sized,
{
    pub(super) const fn new(rest: Rest, drive: Drive<St>) -> Self {
        Self {
            rest: Some(rest),
            drive,
            last: None,
            items: 0,
        }
    }

    const fn is_over(&self) -> bool {
        self.rest.is_none() && self.last.is_none()
    }

    /// The next step; `None` if there is none.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        match &mut self.rest {
            Some(Rest::Call(call)) => match call.as_mut().poll(cx) {
                Poll::Ready(Ok(response)) => {
                    let rest = &mut self.rest;
                    let head = response.map_body(|body| *rest = Some(Rest::Body(body)));
                    return Poll::Ready(Some(Step::Head(head)));
                }
                Poll::Ready(Err(error)) => self.settle(Some(Err(error))),
                Poll::Pending => return self.poll_lost(cx),
            },
            Some(Rest::Body(body)) => match Pin::new(body).poll_next(cx) {
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
            },
            None => {}
        }
        if self.last.is_none() {
            return Poll::Ready(None);
        }
        let written = ready!(self.drive.poll_last(cx));
        let last = self.last.take().flatten();
        let last = match (written, last) {
            (Err(error), Some(Ok(_))) => Some(Err(error)),
            (Err(error), last) => {
                tracing::warn!(%error, "it was not written what became of a run");
                last
            }
            (Ok(()), last) => last,
        };
        Poll::Ready(last.map(Step::Item))
    }

    /// Has it written what becomes of the run, whose body ends with `last`.
    fn settle(&mut self, last: Option<Result<Event, Error>>) {
        match &last {
            Some(Ok(Event::Finish(finish))) => match (&finish.outcome, &finish.state) {
                (Outcome::Interrupted, Some(state)) => self.drive.suspend((**state).clone()),
                _ => self.drive.end(),
            },
            Some(Err(error)) => self.drive.give_up(Some(error)),
            _ => self.drive.give_up(None),
        }
        self.last = Some(last);
        self.rest = None;
    }

    /// Keeps the claim; resolves to the run's last item once it is lost.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        let lost = ready!(self.drive.poll_lost(cx));
        // The tools of this process stop before anybody is told.
        self.rest = None;
        Poll::Ready(Some(Step::Item(Err(lost))))
    }

    /// Ends a run whose poll has panicked.
    fn panicked(&mut self, error: Error) {
        // What it leaves behind may panic, too.
        let rest = self.rest.take();
        let _ = catch(|| drop(rest));
        self.settle(Some(Err(error)));
    }
}

/// Where a run's consumer gets its steps from.
pub(super) enum Source<St>
where
    St: RunStore + ?Sized,
{
    /// The run is not stored, and is driven as it is polled.
    Here(Box<Run<St>>),
    /// It is driven by a task.
    There(Task),
    Over,
}

impl<St> Source<St>
where
    St: RunStore + ?Sized,
{
    pub(super) fn new(run: Run<St>) -> Self {
        Self::Here(Box::new(run))
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// The next step; `None` if the run has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        // Taken out while it is polled: one that panics is not polled again.
        if matches!(self, Self::Here(_))
            && let Self::Here(mut run) = std::mem::replace(self, Self::Over)
        {
            let polled = run.poll(cx);
            if run.is_over() {
                return polled;
            }
            let runtime = run.drive.is_stored().then(Handle::try_current);
            let Some(Ok(runtime)) = runtime else {
                *self = Self::Here(run);
                return polled;
            };
            *self = Self::There(Task::spawn(run, &runtime));
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

/// A run that is driven by a task, which ends when this is dropped.
pub(super) struct Task {
    steps: mpsc::UnboundedReceiver<Sent>,
    task: AbortHandle,
}

/// A step, or the end of a body that ended early; and the room that it takes.
type Sent = (Option<Step>, Option<OwnedSemaphorePermit>);

impl Task {
    fn spawn<St>(run: Box<Run<St>>, runtime: &Handle) -> Self
    where
        St: RunStore + ?Sized,
    {
        let (sender, steps) = mpsc::unbounded_channel();
        let room = run.drive.buffer().clamp(1, Semaphore::MAX_PERMITS);
        let room = Room::new(room, &run);
        // What it logs is part of what its consumer logs.
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

/// The error of a run whose task has ended before it.
pub(super) fn stopped() -> Error {
    let stopped = "the task of a stored run was stopped, as by a runtime that shuts down; the run can \
                   be resumed once its lease is over";
    Error::new(ErrorKind::Cancelled, stopped)
        .with_code("task_stopped")
        .with_phase(Phase::Run)
        .with_effects(Effects::Possible)
}

/// Drives a run to its end.
async fn drive<St>(mut run: Box<Run<St>>, steps: mpsc::UnboundedSender<Sent>, mut room: Room)
where
    St: RunStore + ?Sized,
{
    let mut has_panicked = false;
    loop {
        let polled = poll_fn(|cx| match catch(|| run.poll(cx)) {
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
                    .with_effects(Effects::Possible);
                if has_panicked {
                    let _ = steps.send((Some(Step::Item(Err(error))), None));
                    return;
                }
                has_panicked = true;
                run.panicked(error);
                continue;
            }
        };
        // The store knows of the end: it waits for nobody.
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

/// How far a run may be ahead of its consumer.
struct Room {
    permits: Arc<Semaphore>,
    // Resolves when the run is cancelled, or its deadline is over; `None` once it has.
    stop: Option<Stop>,
    // How many steps may still follow that: a run that is to end does not wait for its consumer.
    spare: u32,
}

/// How many steps the end of a run may take: one for each of its calls, and a few.
const SPARE: u32 = 4096;

impl Room {
    fn new<St>(permits: usize, run: &Run<St>) -> Self
    where
        St: RunStore + ?Sized,
    {
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            stop: Some(Stop::new(run.drive.context())),
            spare: SPARE,
        }
    }

    /// Waits until the consumer has room for one more step, or need not have it. The claim is kept
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// The run's last step, if the claim is lost.
    async fn take<St>(
        &mut self,
        run: &mut Run<St>,
    ) -> Result<Option<OwnedSemaphorePermit>, Option<Step>>
    where
        St: RunStore + ?Sized,
    {
        let mut permit = pin!(Arc::clone(&self.permits).acquire_owned());
        poll_fn(|cx| {
            if let Poll::Ready(permit) = permit.as_mut().poll(cx) {
                // It is never closed.
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
