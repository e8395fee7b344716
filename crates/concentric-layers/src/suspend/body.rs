use super::run::Drive;
use concentric_core::{Error, Event, Outcome, store::RunStore};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response body for [`Suspend`](super::Suspend): the inner body's items, the last one once the
    /// store knows of it.
    #[must_use = "streams do nothing unless polled"]
    pub struct SuspendBody<B, St>
    where
        St: RunStore,
        St: ?Sized,
    {
        // `None` once it has ended.
        #[pin]
        inner: Option<B>,
        // `None`: the run is another's.
        drive: Option<Drive<St>>,
        // The end, while it is written what becomes of the run.
        last: Option<Last>,
        items: u32,
    }
}

/// The end of the inner body.
type Last = Option<Result<Event, Error>>;

/// How many items may come in a row before the lease is looked at.
const ITEMS: u32 = 64;

impl<B, St> SuspendBody<B, St>
where
    St: RunStore + ?Sized,
{
    pub(super) const fn new(inner: B, drive: Option<Drive<St>>) -> Self {
        Self {
            inner: Some(inner),
            drive,
            last: None,
            items: 0,
        }
    }
}

impl<B, St> Stream for SuspendBody<B, St>
where
    B: Stream<Item = Result<Event, Error>>,
    St: RunStore + ?Sized,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        if let Some(inner) = this.inner.as_mut().as_pin_mut() {
            let item = inner.poll_next(cx);
            let Some(drive) = this.drive else {
                return item;
            };
            match item {
                Poll::Ready(Some(Ok(event))) if !event.is_finish() => {
                    *this.items = this.items.wrapping_add(1);
                    if this.items.is_multiple_of(ITEMS)
                        && let Poll::Ready(lost) = drive.poll_lost(cx)
                    {
                        this.inner.set(None);
                        *this.drive = None;
                        return Poll::Ready(Some(Err(lost)));
                    }
                    return Poll::Ready(Some(Ok(event)));
                }
                Poll::Ready(last) => {
                    drive.settle(&last);
                    *this.last = Some(last);
                    this.inner.set(None);
                }
                Poll::Pending => {
                    let lost = ready!(drive.poll_lost(cx));
                    // The tools of this process stop before anybody is told.
                    this.inner.set(None);
                    *this.drive = None;
                    return Poll::Ready(Some(Err(lost)));
                }
            }
        }
        let Some(drive) = this.drive.as_mut() else {
            return Poll::Ready(None);
        };
        let written = ready!(drive.poll_last(cx));
        *this.drive = None;
        let last = this.last.take().flatten();
        Poll::Ready(match (written, last) {
            (Err(error), Some(Ok(_))) => Some(Err(error)),
            (Err(error), last) => {
                tracing::warn!(%error, "it was not written what became of a run");
                last
            }
            (Ok(()), last) => last,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match (&self.inner, &self.last) {
            (Some(inner), _) if self.drive.is_none() => inner.size_hint(),
            (Some(inner), _) => {
                // An error may come in place of the rest.
                let (least, most) = inner.size_hint();
                (least.min(1), most.map(|most| most.max(1)))
            }
            (None, Some(Some(_))) => (1, Some(1)),
            (None, _) => (0, Some(0)),
        }
    }
}

impl<St> Drive<St>
where
    St: RunStore + ?Sized,
{
    /// Has it written down what becomes of the run whose body ends with `last`.
    fn settle(&mut self, last: &Last) {
        match last {
            Some(Ok(Event::Finish(finish))) => match (&finish.outcome, &finish.state) {
                (Outcome::Interrupted, Some(state)) => self.suspend((**state).clone()),
                _ => self.end(),
            },
            Some(Err(error)) => self.give_up(Some(error)),
            _ => self.give_up(None),
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
