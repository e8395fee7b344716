use super::Context;
use crate::{
    hub::LiveInterrupts,
    outbox::{EmitError, Outbox},
};
use concentric_proto::{Event, PartKind};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::atomic::Ordering,
    task::{self, Poll},
};

impl Context {
    /// How many events the run has delivered to its consumer so far, over all its loops; events that
    /// layers outside the loop add or drop are not counted.
    ///
    /// It is counted from 0 again when a run is resumed, and is 0 for a run without an agent.
    pub fn event_index(&self) -> u64 {
        self.run.events.load(Ordering::Relaxed)
    }

    /// Puts `event` into the run's stream, after all that was put there before.
    ///
    /// It is an [`Event::State`], an [`Event::Custom`], an [`Event::SubAgent`] or an
    /// [`Event::Part`]: what the model says and what its tools did is not for others to tell.
    ///
    /// # Errors
    ///
    /// The event is none of these, the consumer is 1,024 events behind, or the run has ended.
    pub fn emit(&self, event: Event) -> Result<(), EmitError> {
        if !may_emit(&event) {
            return Err(EmitError::NotAllowed);
        }
        self.run.outbox.push(event).map_err(|(error, _)| error)
    }

    /// Puts `event` into the run's stream, and waits for room if the consumer is behind.
    ///
    /// Nobody reads before the model has begun to answer: a layer inside the loop that has much to
    /// say before it calls on uses [`emit`](Self::emit), and is told that it says too much.
    ///
    /// # Errors
    ///
    /// The event is one that [`emit`](Self::emit) does not take, or the run has ended. There was no
    /// room ([`EmitError::Full`]) before the run was cancelled or passed its deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while it waits leaves the event out.
    pub async fn send(&self, event: Event) -> Result<(), EmitError> {
        if !may_emit(&event) {
            return Err(EmitError::NotAllowed);
        }
        // Most events find room at once, which needs no timer.
        let event = match self.run.outbox.push(event) {
            Ok(()) => return Ok(()),
            Err((EmitError::Full, event)) => event,
            Err((error, _)) => return Err(error),
        };
        let mut sent = pin!(self.run.outbox.send(event));
        let mut stop = pin!(self.stopped());
        poll_fn(|cx| match sent.as_mut().poll(cx) {
            Poll::Pending => stop.as_mut().poll(cx).map(|()| Err(EmitError::Full)),
            sent => sent,
        })
        .await
    }

    /// Takes the next event that was emitted into the run's stream, or wakes `cx` when there is one.
    ///
    /// For the driver of a custom loop only: an agent takes the events of its run itself, and one
    /// task at a time is woken.
    pub fn poll_emitted(&self, cx: &mut task::Context<'_>) -> Poll<Event> {
        self.run.outbox.poll_pop(cx.waker())
    }

    /// What is asked in the run while it stays open, and in the runs inside it: theirs is that of
    /// the outermost.
    pub fn live(&self) -> &LiveInterrupts {
        match self.parent() {
            Some(outer) => outer.live(),
            None => self.run.live.get_or_init(LiveInterrupts::new),
        }
    }

    #[inline]
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.run.outbox
    }

    #[inline]
    pub(crate) fn count_event(&self) {
        // Only the run's driver counts, so this need not be one atomic step.
        let events = self.run.events.load(Ordering::Relaxed);
        self.run.events.store(events + 1, Ordering::Relaxed);
    }
}

fn may_emit(event: &Event) -> bool {
    match event {
        Event::State(_) | Event::Custom(_) | Event::SubAgent(_) => true,
        Event::Part(part) => !matches!(part.kind, PartKind::ToolCall(_) | PartKind::ToolResult(_)),
        _ => false,
    }
}
