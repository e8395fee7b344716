use super::{
    change::{Appended, Saving},
    turn::{Turn, is_interrupted},
};
use crate::{
    body::{Passed, body, is_event},
    end::{Last, replace_end},
};
use concentric_core::{Error, Event, store::StoreError};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

body! {
    /// Response body for [`Conversation`](super::Conversation): the items of the inner body.
    ///
    /// The turn is stored before it yields [`Event::Finish`].
    pub struct ConversationBody<B>(Passed<B, KeptBody<B>>);
}

impl<B> ConversationBody<B> {
    pub(super) fn new(body: B, turn: Option<Box<Turn>>) -> Self {
        let inner = match turn {
            None => Passed::Inner { body },
            Some(turn) => Passed::Other {
                body: KeptBody {
                    inner: body,
                    turn: Some(turn),
                    saving: None,
                },
            },
        };
        Self { inner }
    }
}

pin_project! {
    /// A body whose turn is stored.
    pub(crate) struct KeptBody<B> {
        #[pin]
        inner: B,
        // Taken at the terminal item.
        turn: Option<Box<Turn>>,
        // The last item, while the turn is stored.
        saving: Option<(Saving, Last)>,
    }

    impl<B> PinnedDrop for KeptBody<B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let Some(turn) = this.turn.take() else {
                return;
            };
            match this.saving.take() {
                Some((saving, _)) => turn.save_later(saving),
                None => turn.defer(),
            }
        }
    }
}

impl<B> Stream for KeptBody<B>
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

fn end(
    saving: &mut Option<(Saving, Last)>,
    turn: &mut Option<Box<Turn>>,
    mut last: Last,
    cx: &mut Context<'_>,
) -> Poll<Last> {
    let Some(run) = turn.as_deref() else {
        return Poll::Ready(last);
    };
    let work = match &mut last {
        Last::Finished(finish) => run.finish(finish),
        Last::Failed(error) => run.give_up(Some(error)),
        Last::Truncated => run.give_up(None),
    };
    match work {
        Ok(Some(work)) => {
            *saving = Some((work, last));
            poll_saving(saving, turn, cx)
        }
        Ok(None) => Poll::Ready(delivered(turn, Ok(None), last)),
        Err(error) => Poll::Ready(delivered(turn, Err(error), last)),
    }
}

/// Waits until the turn is stored, and returns the end.
#[cold]
fn poll_saving(
    saving: &mut Option<(Saving, Last)>,
    turn: &mut Option<Box<Turn>>,
    cx: &mut Context<'_>,
) -> Poll<Last> {
    let Some((work, _)) = saving else {
        return Poll::Pending;
    };
    let stored = ready!(work.poll(cx));
    let last = saving.take().map_or(Last::Truncated, |(_, last)| last);
    let waits = matches!(&last, Last::Finished(finish) if is_interrupted(finish));
    if let (Some(turn), Err(StoreError::Failed(_)), false) = (&turn, &stored, waits) {
        turn.report_unstored();
    }
    let stored = stored.map(Some).map_err(Error::from);
    Poll::Ready(delivered(turn, stored, last))
}

/// The end, after the turn was stored or not.
fn delivered(
    turn: &mut Option<Box<Turn>>,
    stored: Result<Option<Appended>, Error>,
    mut last: Last,
) -> Last {
    let Some(turn) = turn.take() else {
        return last;
    };
    let stored = match (stored, &mut last) {
        (Ok(Some(appended)), Last::Finished(finish)) if is_interrupted(finish) => {
            turn.suspend(finish, Some(appended))
        }
        (stored, _) => stored.map(drop),
    };
    let Err(error) = stored else {
        return last;
    };
    match last {
        Last::Finished(finish) => match turn.refuse(error, &finish) {
            Some(error) => Last::Failed(error),
            None => Last::Finished(finish),
        },
        // The error of the run is more important.
        last => {
            turn.warn(&error);
            last
        }
    }
}
