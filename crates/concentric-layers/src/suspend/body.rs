use super::task::Source;
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

impl<B, St> Stream for SuspendBody<B, St>
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.0 {
            Inner::Run(source) => source.poll_item(cx),
            Inner::Pass(body) => poll_passed(body.as_mut(), cx),
            Inner::Waiting(finish) => Poll::Ready(finish.take().map(|it| Ok(Event::Finish(it)))),
        }
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

// Not inlined into the path of each event of a run.
#[inline(never)]
fn poll_passed<B>(body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Option<B::Item>>
where
    B: Stream,
{
    body.poll_next(cx)
}

impl<B, St> fmt::Debug for SuspendBody<B, St>
where
    St: RunStore + ?Sized,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendBody").finish_non_exhaustive()
    }
}
