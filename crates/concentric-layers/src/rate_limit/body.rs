use super::bucket::Reservation;
use crate::tokens::length;
use concentric_core::{Error, Event, PartKind, Usage};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`RateLimit`](super::RateLimit): the inner body's items, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct RateLimitBody<B> {
        #[pin]
        inner: B,
        // Whether the received text must be counted.
        counts: bool,
        settlement: Settlement,
    }
}

/// Settles a reservation at the terminal item or on drop.
struct Settlement {
    reservation: Option<Reservation>,
    // Bytes of text.
    text: u64,
    // Bytes of arguments: of their pieces, which are previews, and of complete calls.
    previews: u64,
    calls: u64,
}

impl Settlement {
    fn received(&self) -> u64 {
        self.text + self.previews.max(self.calls)
    }

    // Not inlined into the path of the events of an answer that is not counted.
    #[inline(never)]
    fn count(&mut self, event: &Event) {
        match event {
            Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
                self.text += length(text);
            }
            Event::Part(part) => {
                if let PartKind::Text(text) | PartKind::Reasoning(text) | PartKind::Refusal(text) =
                    &part.kind
                {
                    self.text += length(text);
                }
            }
            Event::ToolCallDelta(delta) => self.previews += length(&delta.arguments),
            Event::ToolCall(call) => self.calls += length(call.call.arguments.as_str()),
            _ => {}
        }
    }

    #[cold]
    fn finished(&mut self, usage: Usage) {
        let received = self.received();
        if let Some(reservation) = &mut self.reservation {
            reservation.received(received);
            reservation.used(usage);
        }
        self.reservation = None;
    }

    #[cold]
    fn failed(&mut self, error: &Error) {
        if let Some(reservation) = &mut self.reservation {
            reservation.broke_off(error);
        }
        self.ended();
    }

    #[cold]
    fn ended(&mut self) {
        let received = self.received();
        if let Some(reservation) = &mut self.reservation {
            reservation.received(received);
        }
        self.reservation = None;
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.ended();
    }
}

impl<B> RateLimitBody<B> {
    pub(super) fn new(inner: B, reservation: Reservation) -> Self {
        Self {
            inner,
            counts: reservation.counts_output(),
            settlement: Settlement {
                reservation: Some(reservation),
                text: 0,
                previews: 0,
                calls: 0,
            },
        }
    }
}

impl<B> Stream for RateLimitBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = this.inner.poll_next(cx);
        match &item {
            Poll::Ready(Some(Ok(Event::Finish(finish)))) => {
                this.settlement.finished(finish.usage);
            }
            Poll::Ready(Some(Ok(event))) => {
                if *this.counts {
                    this.settlement.count(event);
                }
            }
            Poll::Pending => {}
            Poll::Ready(Some(Err(error))) => this.settlement.failed(error),
            Poll::Ready(None) => this.settlement.ended(),
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(RateLimitBody<B>);
