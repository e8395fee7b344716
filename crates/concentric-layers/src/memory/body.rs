use super::turn::Turn;
use crate::end::{Last, at_end};
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`DynamicMemory`](super::DynamicMemory): the items of the inner body, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct DynamicMemoryBody<B> {
        #[pin]
        inner: B,
        // Taken at the terminal item.
        turn: Option<Box<Turn>>,
    }
}

impl<B> DynamicMemoryBody<B> {
    pub(super) const fn new(inner: B, turn: Option<Box<Turn>>) -> Self {
        Self { inner, turn }
    }
}

// Not inlined into the path of each event.
#[cold]
fn end(turn: &mut Option<Box<Turn>>, last: Last) -> Last {
    if let Some(turn) = turn.take()
        && let Last::Finished(finish) = &last
    {
        turn.finish(finish);
    }
    last
}

impl<B> Stream for DynamicMemoryBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = this.inner.poll_next(cx);
        at_end(item, |last| Poll::Ready(end(this.turn, last)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(DynamicMemoryBody<B>);
