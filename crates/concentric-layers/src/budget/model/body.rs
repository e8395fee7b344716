use super::spending::Spending;
use concentric_core::{Error, Event, Usage};
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
    }
}

impl<B> ModelBudgetBody<B> {
    pub(super) const fn new(inner: B, spending: Option<Spending>) -> Self {
        Self { inner, spending }
    }
}

// Not inlined into the path of each event.
#[cold]
fn settle(spending: &mut Option<Spending>, usage: Option<Usage>) {
    if let Some(mut spending) = spending.take()
        && let Some(usage) = usage
    {
        spending.used(usage);
    }
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
        match &item {
            Poll::Ready(Some(Ok(Event::Finish(finish)))) => {
                settle(this.spending, Some(finish.attempt_usage()));
            }
            Poll::Ready(Some(Ok(event))) => {
                if let Some(spending) = this.spending {
                    spending.saw(event);
                }
            }
            Poll::Ready(None | Some(Err(_))) => settle(this.spending, None),
            Poll::Pending => {}
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
