use super::bucket::Reservation;
use crate::tokens::length;
use concentric_core::{Error, Event, hooks::End};
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
    received: u64,
}

impl Settlement {
    // Not inlined into the path of each event.
    #[cold]
    fn settle(&mut self, end: &End<'_>) {
        let Some(mut reservation) = self.reservation.take() else {
            return;
        };
        reservation.received(self.received);
        match end {
            End::Finished(finish) => reservation.used(finish.usage),
            End::Failed(error) => reservation.broke_off(error),
            _ => {}
        }
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.settle(&End::Dropped);
    }
}

impl<B> RateLimitBody<B> {
    pub(super) fn new(inner: B, reservation: Reservation) -> Self {
        Self {
            inner,
            counts: reservation.counts_output(),
            settlement: Settlement {
                reservation: Some(reservation),
                received: 0,
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
        if *this.counts
            && let Poll::Ready(Some(Ok(Event::TextDelta(text) | Event::ReasoningDelta(text)))) =
                &item
        {
            this.settlement.received += length(text);
        }
        match &item {
            Poll::Ready(Some(Ok(Event::Finish(finish)))) => {
                this.settlement.settle(&End::Finished(finish));
            }
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
            Poll::Ready(Some(Err(error))) => this.settlement.settle(&End::Failed(error)),
            Poll::Ready(None) => this.settlement.settle(&End::Truncated),
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(RateLimitBody<B>);
