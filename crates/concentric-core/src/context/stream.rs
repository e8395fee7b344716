use super::Context;
use crate::{
    hub::InterruptHub,
    outbox::{EmitError, Outbox},
};
use concentric_proto::{Event, PartKind};
use serde_json::Value;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::{self, Poll},
};

impl Context {
    /// The number of events that the run's loops have delivered to its consumer; events that layers
    /// outside the loop add or drop are not counted.
    ///
    /// The count restarts at 0 when a run is resumed, and is 0 for a run without an agent.
    pub fn event_index(&self) -> u64 {
        self.run.events.load(Ordering::Relaxed)
    }

    /// Adds `event` to the run's stream, after the events that were emitted before.
    ///
    /// Only an [`Event::State`], an [`Event::Custom`], an [`Event::SubAgent`] or an [`Event::Part`] can
    /// be emitted; tool calls, their results and the model's deltas come from the loop alone. A custom
    /// event or an event of a nested run has the [id of the tool call](Self::call_id) of this context,
    /// unless it names another.
    ///
    /// ```
    /// use concentric_core::{BoxError, Context, CustomEvent};
    /// use serde::Serialize;
    ///
    /// #[derive(Serialize)]
    /// struct Progress {
    ///     percent: u8,
    /// }
    ///
    /// /// In a tool.
    /// fn progress(context: &Context, percent: u8) -> Result<(), BoxError> {
    ///     context.emit(CustomEvent::from_serialize("progress", &Progress { percent })?)?;
    ///     Ok(())
    /// }
    /// # let _ = progress;
    /// ```
    ///
    /// A state replaces a state that was emitted immediately before and that the consumer has not
    /// read. At most 8 states wait for the consumer; a further state replaces the newest of them.
    ///
    /// # Errors
    ///
    /// The event is none of these, the consumer is 1,024 events behind (unless the event is a state),
    /// or the run has ended.
    pub fn emit(&self, event: impl Into<Event>) -> Result<(), EmitError> {
        let event = self.emitted(event.into())?;
        self.run.outbox.push(event).map_err(|(error, _)| error)
    }

    /// Returns `event` with the id of the tool call, or an error if it must not be emitted.
    fn emitted(&self, mut event: Event) -> Result<Event, EmitError> {
        let call_id = match &mut event {
            Event::State(_) => return Ok(event),
            Event::Part(part) => {
                return match part.kind {
                    PartKind::ToolCall(_) | PartKind::ToolResult(_) => Err(EmitError::NotAllowed),
                    _ => Ok(event),
                };
            }
            Event::Custom(event) => &mut event.call_id,
            Event::SubAgent(event) => &mut event.call_id,
            _ => return Err(EmitError::NotAllowed),
        };
        if call_id.is_none() {
            *call_id = self.call_id().cloned();
        }
        Ok(event)
    }

    /// Adds `event` to the run's stream, and waits for room if the consumer is behind.
    ///
    /// The consumer reads no events before the model starts to respond, so a layer inside the loop that
    /// emits many events before it calls the inner service must use [`emit`](Self::emit), which returns
    /// an error instead of waiting.
    ///
    /// # Errors
    ///
    /// The event is one that [`emit`](Self::emit) rejects, or the run has ended, or there was no room
    /// ([`EmitError::Full`]) before the run was cancelled or its deadline passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it waits, the event is not added.
    pub async fn send(&self, event: impl Into<Event>) -> Result<(), EmitError> {
        let event = self.emitted(event.into())?;
        // There is room for most events at once, and then no timer is needed.
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

    /// Removes and returns the emitted state that the next emitted state would
    /// [replace](Self::emit), so that it can be changed without a copy and emitted again.
    pub fn take_emitted_state(&self) -> Option<Arc<Value>> {
        self.run.outbox.take_state()
    }

    /// Removes the next emitted event, or wakes `cx` when there is one.
    ///
    /// For the driver of a custom loop only: an agent removes the events of its run itself, and only
    /// one task at a time is woken.
    pub fn poll_emitted(&self, cx: &mut task::Context<'_>) -> Poll<Event> {
        self.run.outbox.poll_pop(cx.waker())
    }

    /// The interrupts that wait for a reply while the run stays open; nested runs share those of the
    /// outermost run.
    pub fn live(&self) -> &InterruptHub {
        match self.parent() {
            Some(outer) => outer.live(),
            None => self.run.live.get_or_init(InterruptHub::new),
        }
    }

    #[inline]
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.run.outbox
    }

    #[inline]
    pub(crate) fn count_event(&self) {
        // Only the run's driver writes the count, so the increment need not be atomic.
        let events = self.run.events.load(Ordering::Relaxed);
        self.run.events.store(events + 1, Ordering::Relaxed);
    }
}
