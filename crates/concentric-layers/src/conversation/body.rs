use super::turn::{Saving, Turn};
use concentric_core::{Error, Event, Finish};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response body for [`Conversation`](super::Conversation): the items of the inner body.
    ///
    /// The turn is stored before it yields [`Event::Finish`].
    #[must_use = "streams do nothing unless polled"]
    pub struct ConversationBody<B> {
        #[pin]
        inner: B,
        // Taken at the terminal item.
        turn: Option<Box<Turn>>,
        // The finish, while its turn is stored.
        saving: Option<(Saving, Box<Finish>)>,
    }
}

impl<B> ConversationBody<B> {
    pub(super) const fn new(inner: B, turn: Option<Box<Turn>>) -> Self {
        Self {
            inner,
            turn,
            saving: None,
        }
    }
}

impl<B> Stream for ConversationBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if this.saving.is_some() {
            return poll_saving(this.saving, this.turn, cx);
        }
        let item = ready!(this.inner.poll_next(cx));
        // Other events are not moved.
        match &item {
            Some(Ok(Event::Finish(_))) => {}
            Some(Ok(_)) => return Poll::Ready(item),
            Some(Err(_)) | None => *this.turn = None,
        }
        match item {
            Some(Ok(Event::Finish(finish))) => finish_turn(this.saving, this.turn, finish, cx),
            other => Poll::Ready(other),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

type Polled = Poll<Option<Result<Event, Error>>>;

fn finish_turn(
    saving: &mut Option<(Saving, Box<Finish>)>,
    turn: &mut Option<Box<Turn>>,
    mut finish: Box<Finish>,
    cx: &mut Context<'_>,
) -> Polled {
    let Some(run) = turn.as_deref() else {
        return Poll::Ready(Some(Ok(Event::Finish(finish))));
    };
    match run.finish(&mut finish) {
        Ok(None) => *turn = None,
        Ok(Some(work)) => {
            *saving = Some((work, finish));
            return poll_saving(saving, turn, cx);
        }
        Err(error) => return Poll::Ready(Some(delivered(turn, Err(error), finish))),
    }
    Poll::Ready(Some(Ok(Event::Finish(finish))))
}

/// Waits until the turn is stored, and returns the last item.
fn poll_saving(
    saving: &mut Option<(Saving, Box<Finish>)>,
    turn: &mut Option<Box<Turn>>,
    cx: &mut Context<'_>,
) -> Polled {
    let Some((work, _)) = saving else {
        return Poll::Pending;
    };
    let stored = ready!(work.poll(cx)).map_err(Error::from);
    let finish = saving.take().map(|(_, finish)| finish);
    Poll::Ready(finish.map(|finish| delivered(turn, stored, finish)))
}

fn delivered(
    turn: &mut Option<Box<Turn>>,
    stored: Result<(), Error>,
    finish: Box<Finish>,
) -> Result<Event, Error> {
    let refused = turn.take().zip(stored.err());
    match refused.and_then(|(turn, error)| turn.refuse(error)) {
        Some(error) => Err(error),
        None => Ok(Event::Finish(finish)),
    }
}

concentric_core::opaque_debug!(ConversationBody<B>);
