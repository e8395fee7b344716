use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`MapEvents`](super::MapEvents).
    #[must_use = "streams do nothing unless polled"]
    pub struct MapEventsBody<B, M> {
        #[pin]
        inner: B,
        map: M,
    }
}

impl<B, M> MapEventsBody<B, M> {
    pub(super) const fn new(inner: B, map: M) -> Self {
        Self { inner, map }
    }
}

impl<B, M> Stream for MapEventsBody<B, M>
where
    B: Stream<Item = Result<Event, Error>>,
    M: FnMut(&mut Event),
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let mut item = this.inner.poll_next(cx);
        if let Poll::Ready(Some(Ok(event))) = &mut item {
            (this.map)(event);
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(MapEventsBody<B, M>);
