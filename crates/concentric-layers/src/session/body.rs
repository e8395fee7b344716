use super::{keep::Saving, state::Turn};
use concentric_core::{Error, Event, Finish};
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
        // The finish, while its result is stored.
        saving: Option<(Saving, Box<Finish>)>,
    }
}

impl<A, B> TurnBody<A, B> {
    pub(super) const fn new(inner: B, turn: Option<Turn<A>>) -> Self {
        Self {
            inner,
            turn,
            saving: None,
        }
    }
}

impl<A, B> Stream for TurnBody<A, B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        if this.saving.is_some() {
            return poll_saving(this.saving, this.turn, cx);
        }
        let item = ready!(this.inner.as_mut().poll_next(cx));
        match &item {
            Some(Ok(Event::Finish(finish))) => {
                if let Some(turn) = this.turn {
                    match turn.save(finish) {
                        Ok(None) => turn.finish(finish),
                        Ok(Some(saving)) => {
                            *this.saving = Some((saving, finish.clone()));
                            return poll_saving(this.saving, this.turn, cx);
                        }
                        Err(error) => {
                            *this.turn = None;
                            return Poll::Ready(Some(Err(error)));
                        }
                    }
                    *this.turn = None;
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

/// Waits until the result of a turn is stored, and returns its finish.
fn poll_saving<A>(
    saving: &mut Option<(Saving, Box<Finish>)>,
    turn: &mut Option<Turn<A>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Event, Error>>> {
    let Some((stored, _)) = saving else {
        return Poll::Pending;
    };
    let stored = ready!(stored.poll(cx));
    let (finish, turn) = (saving.take().map(|(_, finish)| finish), turn.take());
    Poll::Ready(finish.zip(turn).map(|(finish, mut turn)| {
        turn.saved(stored)?;
        turn.finish(&finish);
        Ok(Event::Finish(finish))
    }))
}

concentric_core::opaque_debug!(TurnBody<A, B>);
