use super::{answer::Replay, call::Reader, future::WAITS_FOR};
use crate::{
    body::{Passed, body},
    wait::Stop,
};
use concentric_core::{Error, Event, EventStream};
use futures_core::Stream;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

body! {
    /// Response body for [`ResponseCache`](super::ResponseCache).
    pub struct ResponseCacheBody<B>(Passed<B, Box<Cached>>);
}

/// The answer to a request that is cached.
enum Cached {
    Stored(Replay),
    Shared(Reader, Stop),
    Private(Option<Event>, EventStream),
    Ended,
}

impl<B> ResponseCacheBody<B> {
    /// The answer to a request that is not cached.
    pub(super) const fn passed(body: B) -> Self {
        let inner = Passed::Inner { body };
        Self { inner }
    }

    fn cached(cached: Cached) -> Self {
        // Boxed, since it is larger than most bodies.
        let body = Box::new(cached);
        let inner = Passed::Other { body };
        Self { inner }
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

impl Stream for Cached {
    type Item = Result<Event, Error>;

    // Not inlined into the path of a request that is not cached.
    #[inline(never)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = match &mut *self {
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
