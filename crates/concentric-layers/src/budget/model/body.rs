use super::spending::Spending;
use crate::end::{Last, at_end};
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`ModelBudget`](super::ModelBudget): the inner body's items, unchanged.
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct ModelBudgetBody<B> {
        #[pin]
        inner: B,
        // Settled on drop: at the terminal item, or earlier.
        spending: Option<Spending>,
        // Whether a limit depends on the number of received bytes.
        counts: bool,
    }
}

impl<B> ModelBudgetBody<B> {
    pub(super) fn new(inner: B, spending: Option<Spending>) -> Self {
        let counts = spending.as_ref().is_some_and(Spending::counts);
        Self {
            inner,
            spending,
            counts,
        }
    }
}

// Not inlined into the path of each event.
#[cold]
fn end(spending: &mut Option<Spending>, last: Last) -> Last {
    if let Some(mut spending) = spending.take()
        && let Last::Finished(finish) = &last
    {
        spending.used(finish.attempt_usage());
    }
    last
}

impl<B> Stream for ModelBudgetBody<B>
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
            && let Poll::Ready(Some(Ok(event))) = &item
            && let Some(spending) = this.spending
        {
            spending.saw(event);
        }
        at_end(item, |last| Poll::Ready(end(this.spending, last)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
