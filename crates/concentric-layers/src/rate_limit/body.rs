use super::bucket::Reservation;
use crate::estimate::length;
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
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

impl<B> Stream for RateLimitBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = ready!(this.inner.poll_next(cx));
        if let Some(reservation) = this.reservation {
            match &item {
                Some(Ok(Event::TextDelta(text) | Event::ReasoningDelta(text))) => {
                    reservation.seen(length(text));
                }
                Some(Ok(Event::Finish(finish))) => {
                    reservation.used(finish.usage);
                    *this.reservation = None;
                }
                None | Some(Err(_)) => *this.reservation = None,
                _ => {}
            }
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(RateLimitBody<B>);
