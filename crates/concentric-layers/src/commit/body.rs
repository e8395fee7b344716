use crate::body::Polled;
use concentric_core::{Error, Event};
use futures_core::Stream;
use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

/// Response body for [`Commit`](super::Commit): the held events, then the rest of the inner body.
#[must_use = "streams do nothing unless polled"]
pub struct CommitBody<B> {
    held: VecDeque<Event>,
    // Boxed, since it is polled before the future moves it into the response.
    inner: Pin<Box<B>>,
}

impl<B> CommitBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    pub(super) fn new(inner: B) -> Self {
        Self {
            held: VecDeque::new(),
            inner: Box::pin(inner),
        }
    }

    pub(super) fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Option<B::Item>> {
        self.inner.as_mut().poll_next(cx)
    }

    // Not inlined into the path of each event.
    #[cold]
    fn pop(&mut self) -> Polled {
        Poll::Ready(self.held.pop_front().map(Ok))
    }

    pub(super) fn hold(&mut self, event: Event) {
        self.held.push_back(event);
    }
}

impl<B> Stream for CommitBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.held.is_empty() {
            true => self.inner.as_mut().poll_next(cx),
            false => self.pop(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.inner.size_hint();
        let held = self.held.len();
        (
            least.saturating_add(held),
            most.and_then(|most| most.checked_add(held)),
        )
    }
}

impl<B> fmt::Debug for CommitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitBody")
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}
