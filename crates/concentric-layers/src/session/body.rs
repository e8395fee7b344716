use super::{keep::Saving, state::Turn};
use crate::{
    body::is_event,
    end::{Last, replace_end},
};
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

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let mut item = match this.saving {
            None => this.inner.poll_next(cx),
            Some(_) => poll_saving(this.saving, this.turn, cx).map(Last::into_item),
        };
        // An end that has been saved is not changed.
        if !is_event(&item) {
            item = replace_end(item, |last| end(this.saving, this.turn, last, cx));
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

fn end<A>(
    saving: &mut Option<(Saving, Box<Finish>)>,
    turn: &mut Option<Turn<A>>,
    last: Last,
    cx: &mut Context<'_>,
) -> Poll<Last> {
    let Some(mut running) = turn.take() else {
        return Poll::Ready(last);
    };
    match last {
        Last::Finished(finish) => match running.save(&finish) {
            Ok(None) => {
                running.finish(&finish);
                Poll::Ready(Last::Finished(finish))
            }
            Ok(Some(work)) => {
                *saving = Some((work, finish));
                *turn = Some(running);
                poll_saving(saving, turn, cx)
            }
            Err(error) => Poll::Ready(Last::Failed(error)),
        },
        Last::Failed(error) => {
            running.fail(&error);
            Poll::Ready(Last::Failed(error))
        }
        Last::Truncated => Poll::Ready(Last::Truncated),
    }
}

/// Waits until the result of a turn is stored, and returns its finish.
#[cold]
fn poll_saving<A>(
    saving: &mut Option<(Saving, Box<Finish>)>,
    turn: &mut Option<Turn<A>>,
    cx: &mut Context<'_>,
) -> Poll<Last> {
    let Some((stored, _)) = saving else {
        return Poll::Pending;
    };
    let stored = ready!(stored.poll(cx));
    let (finish, turn) = (saving.take().map(|(_, finish)| finish), turn.take());
    Poll::Ready(match finish.zip(turn) {
        Some((finish, mut turn)) => match turn.saved(stored) {
            Ok(()) => {
                turn.finish(&finish);
                Last::Finished(finish)
            }
            Err(error) => Last::Failed(error),
        },
        None => Last::Truncated,
    })
}

concentric_core::opaque_debug!(TurnBody<A, B>);
