use crate::end::observe_end;
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::OwnedSemaphorePermit;

pin_project! {
    /// Response body for [`InFlightLimit`](super::InFlightLimit): the inner body's items,
    /// unchanged.
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct InFlightBody<B> {
        #[pin]
        inner: B,
        // Released at the terminal item or on drop.
        permit: Option<OwnedSemaphorePermit>,
    }
}

impl<B> InFlightBody<B> {
    pub(super) const fn new(inner: B, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { inner, permit }
    }
}

impl<B> Stream for InFlightBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = this.inner.poll_next(cx);
        observe_end(&item, |_| *this.permit = None);
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
