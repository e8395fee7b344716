use super::model::ModelSpan;
use crate::end::Polled;
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
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        // Without a span.
        Passed { #[pin] body: B },
        // The body is dropped before the span ends.
        Traced { #[pin] body: B, span: ModelSpan },
    }
}

impl<B> TracedBody<B> {
    /// The body of an answer without a span.
    pub(super) const fn passed(body: B) -> Self {
        let inner = Inner::Passed { body };
        Self { inner }
    }

    pub(super) const fn traced(body: B, span: ModelSpan) -> Self {
        let inner = Inner::Traced { body, span };
        Self { inner }
    }
}

// Not inlined into the path of an event without a span.
#[inline(never)]
fn poll_traced<B>(body: Pin<&mut B>, span: &mut ModelSpan, cx: &mut Context<'_>) -> Polled
where
    B: Stream<Item = Result<Event, Error>>,
{
    let entered = span.enter();
    let item = body.poll_next(cx);
    drop(entered);
    span.observe(&item);
    item
}

impl<B> Stream for TracedBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.project().inner.project() {
            InnerProj::Passed { body } => body.poll_next(cx),
            InnerProj::Traced { body, span } => poll_traced(body, span, cx),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.inner {
            Inner::Passed { body } | Inner::Traced { body, .. } => body.size_hint(),
        }
    }
}

concentric_core::opaque_debug!(TracedBody<B>);
