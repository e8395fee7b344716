use super::task::Source;
use crate::body::{Polled, is_event};
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
pub struct SuspendBody<B, St>(Inner<B, St>)
where
    St: RunStore + ?Sized;

enum Inner<B, St>
where
    St: RunStore + ?Sized,
{
    /// The run belongs to a calling agent.
    Pass(Pin<Box<B>>),
    /// The interrupts of a waiting run, which is not claimed. `None` after they were yielded.
    Waiting(Option<Box<Finish>>),
    Run(Source<B, St>),
}

impl<B, St> SuspendBody<B, St>
where
    St: RunStore + ?Sized,
{
    pub(super) fn pass(body: B) -> Self {
        Self(Inner::Pass(Box::pin(body)))
    }

    pub(super) fn waiting(finish: Finish) -> Self {
        Self(Inner::Waiting(Some(Box::new(finish))))
    }

    pub(super) const fn new(source: Source<B, St>) -> Self {
        Self(Inner::Run(source))
    }
}

impl<B, St> Inner<B, St>
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    /// Returns the next item of a body that is not that of a [run](Source::Here) which is driven by polls.
    // Not inlined into the path of each event of such a run, like the next method.
    #[inline(never)]
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Polled {
        match self {
            Self::Run(source) => source.poll_item(None, cx),
            Self::Pass(body) => body.as_mut().poll_next(cx),
            Self::Waiting(finish) => Poll::Ready(finish.take().map(|it| Ok(Event::Finish(it)))),
        }
    }

    /// Replaces an item of the run's body by the next item of the run.
    #[inline(never)]
    fn take(&mut self, item: Polled, cx: &mut Context<'_>) -> Polled {
        match self {
            Self::Run(source @ Source::Here(_)) => source.poll_item(Some(item), cx),
            _ => item,
        }
    }

    #[inline(always)]
    fn is_stored(&self) -> bool {
        match self {
            Self::Run(Source::Here(run)) => run.is_stored(),
            _ => false,
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
        let mut item = match &mut self.0 {
            Inner::Run(Source::Here(run)) => run.poll_body(cx),
            other => other.poll_next(cx),
        };
        if !is_event(&item) || self.0.is_stored() {
            item = self.0.take(item, cx);
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Inner::Pass(body) => body.size_hint(),
            Inner::Waiting(finish) => {
                let left = usize::from(finish.is_some());
                (left, Some(left))
            }
            Inner::Run(source) if source.is_over() => (0, Some(0)),
            Inner::Run(_) => (0, None),
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
