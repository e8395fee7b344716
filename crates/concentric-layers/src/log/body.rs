use super::lines::ModelLines;
use concentric_core::{Error, Event, hooks::End};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response body for [`Log`](super::Log): the items of the inner body, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct LogBody<B> {
        #[pin]
        inner: B,
        lines: ModelLines,
    }
}

impl<B> LogBody<B> {
    pub(super) const fn new(inner: B, lines: ModelLines) -> Self {
        Self { inner, lines }
    }
}

impl<B> Stream for LogBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = ready!(this.inner.poll_next(cx));
        match &item {
            Some(Ok(Event::Finish(finish))) => this.lines.end(End::Finished(finish)),
            Some(Ok(_)) => {}
            Some(Err(error)) => this.lines.end(End::Failed(error)),
            None => this.lines.end(End::Truncated),
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(LogBody<B>);
