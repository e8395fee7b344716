use super::{answer::Replay, call::Reader, future::WAITS_FOR};
use crate::wait::Stop;
use concentric_core::{Error, Event, EventStream};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`ResponseCache`](super::ResponseCache).
    #[must_use = "streams do nothing unless polled"]
    pub struct ResponseCacheBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        // A request that is not cached.
        Passed { #[pin] body: B },
        // Boxed, since they are larger than most bodies.
        Cached { cached: Box<Cached> },
    }
}

/// The answer to a request that is cached.
enum Cached {
    Stored(Replay),
    Shared(Reader, Stop),
    Private(Option<Event>, EventStream),
    Ended,
}

impl<B> ResponseCacheBody<B> {
    pub(super) const fn passed(body: B) -> Self {
        Self {
            inner: Inner::Passed { body },
        }
    }

    fn cached(cached: Cached) -> Self {
        let cached = Box::new(cached);
        Self {
            inner: Inner::Cached { cached },
        }
    }

    pub(super) fn stored(replay: Replay) -> Self {
        Self::cached(Cached::Stored(replay))
    }

    pub(super) fn shared(reader: Reader, stop: Stop) -> Self {
        Self::cached(Cached::Shared(reader, stop))
    }

    pub(super) fn private(first: Event, body: EventStream) -> Self {
        Self::cached(Cached::Private(Some(first), body))
    }
}

impl Cached {
    // Not inlined into the path of a request that is not cached.
    #[inline(never)]
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        let polled = match self {
            Self::Stored(replay) => Poll::Ready(replay.next().map(Ok)),
            Self::Shared(reader, stop) => match reader.poll_next(cx) {
                Poll::Pending => stop.poll(WAITS_FOR, cx).map(|error| Some(Err(error))),
                ready => ready,
            },
            Self::Private(first, body) => match first.take() {
                Some(event) => Poll::Ready(Some(Ok(event))),
                None => Pin::new(body).poll_next(cx),
            },
            Self::Ended => Poll::Ready(None),
        };
        // A body that has ended holds nothing.
        if let Poll::Ready(None | Some(Err(_) | Ok(Event::Finish(_)))) = &polled {
            *self = Self::Ended;
        }
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Stored(replay) => (replay.remaining(), Some(replay.remaining())),
            Self::Shared(..) => (0, None),
            Self::Private(first, body) => {
                let (least, most) = body.size_hint();
                let first = usize::from(first.is_some());
                let most = most.and_then(|most| most.checked_add(first));
                (least.saturating_add(first), most)
            }
            Self::Ended => (0, Some(0)),
        }
    }
}

impl<B> Stream for ResponseCacheBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.project().inner.project() {
            InnerProj::Passed { body } => body.poll_next(cx),
            InnerProj::Cached { cached } => cached.poll_next(cx),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.inner {
            Inner::Passed { body } => body.size_hint(),
            Inner::Cached { cached } => cached.size_hint(),
        }
    }
}

concentric_core::opaque_debug!(ResponseCacheBody<B>);
