use super::task::Source;
use crate::{
    body::{Polled, is_event},
    rest::Rest,
};
use concentric_core::{Error, Event, Finish, store::RunStore};
use futures_core::Stream;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

/// Response body for [`Suspend`](super::Suspend): the inner body's items. The last one is yielded
/// after the store has recorded the end of the run.
///
/// Dropping the body before its end stops the run.
#[must_use = "streams do nothing unless polled"]
pub struct SuspendBody<B, St>
where
    St: RunStore + ?Sized,
{
    // The inner body, unless the source has it. Dropped before the source, which records the end of the run.
    rest: Rest<B>,
    source: Inner<B, St>,
}

/// The source of the items that are not events of the inner body.
enum Inner<B, St>
where
    St: RunStore + ?Sized,
{
    /// The inner body, since the run belongs to a calling agent.
    Pass,
    /// The interrupts of a waiting run, which is not claimed. `None` after they were yielded.
    Waiting(Option<Box<Finish>>),
    Run(Source<B, St>),
}

impl<B, St> SuspendBody<B, St>
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    pub(super) fn pass(body: B) -> Self {
        let (rest, source) = (Rest::body(body), Inner::Pass);
        Self { rest, source }
    }

    pub(super) fn waiting(finish: Finish) -> Self {
        let source = Inner::Waiting(Some(Box::new(finish)));
        let rest = Rest::Over;
        Self { rest, source }
    }

    pub(super) fn new(mut source: Source<B, St>) -> Self {
        let rest = source.lend();
        let source = Inner::Run(source);
        Self { rest, source }
    }

    /// Returns the next item after a poll of the inner body that returned no event.
    // Not inlined into the path of each event.
    #[inline(never)]
    fn poll_source(&mut self, read: Polled, cx: &mut Context<'_>) -> Polled {
        match &mut self.source {
            Inner::Run(source) => source.poll_item(&mut self.rest, read, cx),
            Inner::Pass => read,
            Inner::Waiting(finish) => Poll::Ready(finish.take().map(|it| Ok(Event::Finish(it)))),
        }
    }
}

impl<B, St> Stream for SuspendBody<B, St>
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut item = self.rest.poll_body(cx);
        if !is_event(&item) {
            item = self.poll_source(item, cx);
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match (&self.source, &self.rest) {
            (Inner::Pass, Rest::Body(body)) => body.size_hint(),
            (Inner::Waiting(finish), _) => {
                let left = usize::from(finish.is_some());
                (left, Some(left))
            }
            (Inner::Run(source), _) if !source.is_over() => (0, None),
            _ => (0, Some(0)),
        }
    }
}

impl<B, St> fmt::Debug for SuspendBody<B, St>
where
    St: RunStore + ?Sized,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendBody").finish_non_exhaustive()
    }
}
