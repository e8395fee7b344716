use super::model::ModelSpan;
use crate::body::{Passed, Polled, body};
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{pin::Pin, task::Context};

body! {
    /// Response body for [`OtelService`](super::OtelService): the items of the inner body, unchanged.
    pub struct OtelBody<B>(Passed<B, Pin<Box<WithSpan<B>>>>);
}

impl<B> OtelBody<B> {
    /// The body of an answer without a span.
    pub(super) const fn passed(body: B) -> Self {
        let inner = Passed::Inner { body };
        Self { inner }
    }

    pub(super) fn traced(body: B, span: ModelSpan) -> Self {
        // Boxed, so that the path of an event without a span does not depend on the place of the body.
        let body = Box::pin(WithSpan { body, span });
        let inner = Passed::Other { body };
        Self { inner }
    }
}

pin_project! {
    struct WithSpan<B> {
        // Dropped before the span ends.
        #[pin]
        body: B,
        span: ModelSpan,
    }
}

impl<B> Stream for WithSpan<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = B::Item;

    // Not inlined into the path of an event without a span.
    #[inline(never)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = self.project();
        let entered = this.span.enter();
        let item = this.body.poll_next(cx);
        drop(entered);
        this.span.observe(&item);
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.body.size_hint()
    }
}
