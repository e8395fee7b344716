use super::model::ModelSpan;
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`Traced`](super::Traced): the items of the inner body, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct TracedBody<B> {
        // Dropped before the span ends.
        #[pin]
        inner: B,
        span: ModelSpan,
    }
}

impl<B> TracedBody<B> {
    pub(super) const fn new(inner: B, span: ModelSpan) -> Self {
        Self { inner, span }
    }
}

impl<B> Stream for TracedBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let entered = this.span.enter();
        let item = this.inner.poll_next(cx);
        drop(entered);
        if this.span.is_open() {
            this.span.observe(&item);
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(TracedBody<B>);
