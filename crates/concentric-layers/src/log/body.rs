use super::lines::ModelLines;
use crate::end::observe_end;
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
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

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = this.inner.poll_next(cx);
        observe_end(&item, |end| this.lines.end(end));
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(LogBody<B>);
