use super::bucket::Reservation;
use crate::tokens::length;
use concentric_core::{Error, Event, Usage};
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
        // Settled at the terminal item or on drop.
        reservation: Option<Reservation>,
    }
}

impl<B> RateLimitBody<B> {
    pub(super) const fn new(inner: B, reservation: Reservation) -> Self {
        Self {
            inner,
            reservation: Some(reservation),
        }
    }
}

// Not inlined into the path of each event.
#[cold]
fn settle(reservation: &mut Option<Reservation>, usage: Option<Usage>) {
    if let Some(mut reservation) = reservation.take()
        && let Some(usage) = usage
    {
        reservation.used(usage);
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
            Poll::Ready(Some(Ok(Event::TextDelta(text) | Event::ReasoningDelta(text)))) => {
                if let Some(reservation) = this.reservation {
                    reservation.seen(length(text));
                }
            }
            Poll::Ready(Some(Ok(Event::Finish(finish)))) => {
                settle(this.reservation, Some(finish.usage));
            }
            Poll::Ready(None | Some(Err(_))) => settle(this.reservation, None),
            _ => {}
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(RateLimitBody<B>);
