use crate::service::EventStream;
use concentric_proto::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`OfRun`](super::OfRun).
    #[must_use = "streams do nothing unless polled"]
    pub struct OfRunBody<B> {
        #[pin]
        body: Either<B>,
    }
}

pin_project! {
    #[project = EitherProj]
    enum Either<B> {
        Inner { #[pin] inner: B },
        Layered { #[pin] layered: EventStream },
    }
}

impl<B> OfRunBody<B> {
    pub(super) const fn inner(inner: B) -> Self {
        Self {
            body: Either::Inner { inner },
        }
    }

    pub(super) const fn layered(layered: EventStream) -> Self {
        Self {
            body: Either::Layered { layered },
        }
    }
}

impl<B> Stream for OfRunBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.project().body.project() {
            EitherProj::Inner { inner } => inner.poll_next(cx),
            EitherProj::Layered { layered } => layered.poll_next(cx),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.body {
            Either::Inner { inner } => inner.size_hint(),
            Either::Layered { layered } => layered.size_hint(),
        }
    }
}

impl<B> fmt::Debug for OfRunBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfRunBody").finish_non_exhaustive()
    }
}
