use super::turn::Turn;
use crate::end::observe_end;
use concentric_core::{Error, Event, hooks::End};
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
        // Taken at the terminal item. `None` for a run without an owner.
        turn: Option<Box<Turn>>,
    }
}

impl<B> DynamicMemoryBody<B> {
    pub(super) const fn new(inner: B, turn: Option<Box<Turn>>) -> Self {
        Self { inner, turn }
    }
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
        observe_end(&item, |end| {
            if let Some(turn) = this.turn.take()
                && let End::Finished(finish) = end
            {
                turn.finish(finish);
            }
        });
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(DynamicMemoryBody<B>);
