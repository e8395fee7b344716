use super::state::Turn;
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response body for [`Session`](super::Session): the agent's items, unchanged.
    ///
    /// The session stores the result of the turn before it yields [`Event::Finish`].
    #[must_use = "streams do nothing unless polled"]
    pub struct TurnBody<A, B> {
        // Dropped before `turn`, whose drop reads the effects of the run.
        #[pin]
        inner: B,
        // Released at the terminal item or on drop.
        turn: Option<Turn<A>>,
    }
}

impl<A, B> TurnBody<A, B> {
    pub(super) const fn new(inner: B, turn: Option<Turn<A>>) -> Self {
        Self { inner, turn }
    }
}

impl<A, B> Stream for TurnBody<A, B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = ready!(this.inner.poll_next(cx));
        match &item {
            Some(Ok(Event::Finish(finish))) => {
                if let Some(mut turn) = this.turn.take() {
                    turn.finish(finish);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                if let Some(mut turn) = this.turn.take() {
                    turn.fail(error);
                }
            }
            None => *this.turn = None,
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(TurnBody<A, B>);
