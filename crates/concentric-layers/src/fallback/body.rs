use concentric_core::{Error, Event, EventStream};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`Fallback`](super::Fallback): the items of the model that answers, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct FallbackBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        First { #[pin] body: B },
        Other { #[pin] body: EventStream },
    }
}

impl<B> FallbackBody<B> {
    pub(super) const fn first(body: B) -> Self {
        Self {
            inner: Inner::First { body },
        }
    }

    pub(super) const fn other(body: EventStream) -> Self {
        Self {
            inner: Inner::Other { body },
        }
    }
}

impl<B> Stream for FallbackBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.project().inner.project() {
            InnerProj::First { body } => body.poll_next(cx),
            InnerProj::Other { body } => body.poll_next(cx),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.inner {
            Inner::First { body } => body.size_hint(),
            Inner::Other { body } => body.size_hint(),
        }
    }
}

concentric_core::opaque_debug!(FallbackBody<B>);
