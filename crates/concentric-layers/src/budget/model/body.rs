use super::spending::Spending;
use crate::end::{Polled, observe_end};
use concentric_core::{Error, Event, hooks::End};
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

// Not inlined into the path of the events of a call whose bytes are not counted.
#[inline(never)]
fn poll_counted<B>(
    body: Pin<&mut B>,
    spending: &mut Option<Spending>,
    cx: &mut Context<'_>,
) -> Polled
where
    B: Stream<Item = Result<Event, Error>>,
{
    let item = body.poll_next(cx);
    if let Poll::Ready(Some(Ok(event))) = &item
        && let Some(spending) = spending
    {
        spending.saw(event);
    }
    item
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
        let item = match *this.counts {
            false => this.inner.poll_next(cx),
            true => poll_counted(this.inner, this.spending, cx),
        };
        observe_end(&item, |end| {
            if let Some(mut spending) = this.spending.take()
                && let End::Finished(finish) = end
            {
                spending.used(finish.attempt_usage());
            }
        });
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
