use super::answer::{Answer, AnswerEnd};
use crate::body::{Passed, body};
use concentric_core::{
    Context as RunContext, Error, Event, ResponseHead, durable::Recorded, service::BoxFuture,
};
use futures_core::Stream;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::sync::mpsc;

body! {
    /// Response body for [`Durable`](super::Durable).
    pub struct DurableBody<B>(Passed<B, Box<Step>>);
}

impl<B> DurableBody<B> {
    pub(super) const fn passed(body: B) -> Self {
        let inner = Passed::Inner { body };
        Self { inner }
    }

    pub(super) fn step(step: Step) -> Self {
        let body = Box::new(step);
        let inner = Passed::Other { body };
        Self { inner }
    }
}

/// A part of an answer that is being made.
pub(super) enum Live {
    Head(ResponseHead),
    Event(Event),
}

/// The answer of a step.
pub(super) enum Step {
    /// The model is answering; the step ends after the last event.
    Live(mpsc::Receiver<Live>, BoxFuture<Recorded>),
    /// The recorded events, and the end.
    Replayed(std::vec::IntoIter<Event>, Option<AnswerEnd>),
    /// The end of an answer whose events were forwarded.
    Ended,
}

impl Step {
    /// The recorded answer, or its error before there was any; `None` if the run did not wait for one.
    pub(super) fn replay(
        recorded: &Recorded,
        context: &RunContext,
    ) -> Result<Option<(ResponseHead, Self)>, Error> {
        let answer: Answer = recorded.read()?;
        answer.changes.apply(context, true);
        match (answer.head, answer.end) {
            (None, AnswerEnd::Failed(error)) => Err(error.to_error()),
            (None, AnswerEnd::Left) => Ok(None),
            (None, _) => Err(Error::truncated()),
            (Some(head), end) => {
                let events = answer.events.into_iter();
                Ok(Some((head.into_head(), Self::Replayed(events, Some(end)))))
            }
        }
    }
}

fn last(end: AnswerEnd) -> Option<Result<Event, Error>> {
    match end {
        AnswerEnd::Finished(finish) => Some(Ok(Event::Finish(finish))),
        AnswerEnd::Failed(error) => Some(Err(error.to_error())),
        AnswerEnd::Truncated | AnswerEnd::Left => None,
    }
}

impl Stream for Step {
    type Item = Result<Event, Error>;

    // Not inlined into the path of a call without a journal.
    #[inline(never)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = match &mut *self {
            Self::Live(events, step) => {
                // The step makes progress as it is polled by its journal; here only its result is awaited.
                if let Poll::Ready(live) = events.poll_recv(cx)
                    && let Some(Live::Event(event)) = live
                {
                    return Poll::Ready(Some(Ok(event)));
                }
                let recorded = ready!(step.as_mut().poll(cx));
                // What was sent before the step ended.
                if let Ok(Live::Event(event)) = events.try_recv() {
                    let step: BoxFuture<Recorded> = Box::pin(std::future::ready(recorded));
                    if let Self::Live(_, pending) = &mut *self {
                        *pending = step;
                    }
                    return Poll::Ready(Some(Ok(event)));
                }
                match recorded.and_then(|recorded| recorded.read::<Answer>()) {
                    Ok(answer) => last(answer.end),
                    Err(error) => Some(Err(error)),
                }
            }
            Self::Replayed(events, end) => match events.next() {
                Some(event) => return Poll::Ready(Some(Ok(event))),
                // Dropped without another poll, as in the run.
                None if matches!(end, Some(AnswerEnd::Left)) => return Poll::Pending,
                None => end.take().and_then(last),
            },
            Self::Ended => None,
        };
        // A body that has ended holds nothing.
        *self = Self::Ended;
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Live(..) => (0, None),
            Self::Replayed(events, end) => {
                let events = events.len();
                (events, Some(events + usize::from(end.is_some())))
            }
            Self::Ended => (0, Some(0)),
        }
    }
}
