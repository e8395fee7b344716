use super::turn::Turn;
use crate::end::{Polled, observe_end};
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
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        // A run without an owner.
        Passed { #[pin] body: B },
        // The turn is taken at the terminal item.
        Turn { #[pin] body: B, turn: Option<Box<Turn>> },
    }
}

impl<B> DynamicMemoryBody<B> {
    pub(super) fn new(body: B, turn: Option<Box<Turn>>) -> Self {
        let inner = match turn {
            None => Inner::Passed { body },
            turn => Inner::Turn { body, turn },
        };
        Self { inner }
    }
}

// Not inlined into the path of an event of a run without an owner.
#[inline(never)]
fn poll_turn<B>(body: Pin<&mut B>, turn: &mut Option<Box<Turn>>, cx: &mut Context<'_>) -> Polled
where
    B: Stream<Item = Result<Event, Error>>,
{
    let item = body.poll_next(cx);
    observe_end(&item, |end| {
        if let Some(turn) = turn.take()
            && let End::Finished(finish) = end
        {
            turn.finish(finish);
        }
    });
    item
}

impl<B> Stream for DynamicMemoryBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.project().inner.project() {
            InnerProj::Passed { body } => body.poll_next(cx),
            InnerProj::Turn { body, turn } => poll_turn(body, turn, cx),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.inner {
            Inner::Passed { body } | Inner::Turn { body, .. } => body.size_hint(),
        }
    }
}

concentric_core::opaque_debug!(DynamicMemoryBody<B>);
