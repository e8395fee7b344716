use crate::body::{Observed, Observer};
use concentric_core::{Error, Event, hooks::End, panic::catch};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`OnEnd`](super::OnEnd): the items of the inner body, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct OnEndBody<B, C>
    where
        C: Fn(End<'_>),
    {
        #[pin]
        inner: Observed<B, Once<C>>,
    }
}

impl<B, C> OnEndBody<B, C>
where
    C: Fn(End<'_>),
{
    pub(super) const fn new(inner: B, once: Once<C>) -> Self {
        let inner = Observed::new(inner, once);
        Self { inner }
    }
}

impl<B, C> Stream for OnEndBody<B, C>
where
    B: Stream<Item = Result<Event, Error>>,
    C: Fn(End<'_>),
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.project().inner.poll_next(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

impl<B, C> fmt::Debug for OnEndBody<B, C>
where
    C: Fn(End<'_>),
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnEndBody").finish_non_exhaustive()
    }
}

/// Calls a function at most once: with the first end, or when dropped.
pub(super) struct Once<C>
where
    C: Fn(End<'_>),
{
    f: Option<C>,
}

impl<C> Once<C>
where
    C: Fn(End<'_>),
{
    pub(super) const fn new(f: C) -> Self {
        Self { f: Some(f) }
    }
}

impl<C> Observer for Once<C>
where
    C: Fn(End<'_>),
{
    fn end(&mut self, end: End<'_>) {
        if let Some(f) = self.f.take() {
            f(end);
        }
    }
}

impl<C> Drop for Once<C>
where
    C: Fn(End<'_>),
{
    fn drop(&mut self) {
        // A panic that leaves a drop aborts the process if another panic is unwinding.
        if let Err(panic) = catch(|| self.end(End::Dropped)) {
            tracing::error!(
                panic = panic.text(),
                "the function of an `on_end` layer panicked"
            );
        }
    }
}
