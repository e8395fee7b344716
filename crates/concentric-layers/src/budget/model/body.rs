use super::spending::Spending;
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
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

impl<B> Stream for ModelBudgetBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = ready!(this.inner.poll_next(cx));
        match (&item, this.spending.as_mut()) {
            (Some(Ok(Event::Finish(finish))), Some(spending)) => {
                spending.used(finish.attempt_usage());
                *this.spending = None;
            }
            (Some(Ok(event)), Some(spending)) => spending.saw(event),
            (None | Some(Err(_)), _) => *this.spending = None,
            (Some(Ok(_)), None) => {}
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
