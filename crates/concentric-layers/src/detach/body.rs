use super::hold::{Hold, Rest};
use crate::end::{Last, at_end};
use concentric_core::{Error, Event, EventStream};
use futures_core::Stream;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// Response body for [`Detach`](super::Detach): the inner body's items, unchanged.
///
/// If it is dropped before its end, the run continues without its consumer.
#[must_use = "streams do nothing unless polled"]
pub struct DetachBody {
    body: Option<EventStream>,
    // While it is polled: a body that panicked is not polled again, and does not continue.
    is_polled: bool,
    hold: Option<Hold>,
}

impl DetachBody {
    pub(super) const fn new(body: EventStream, hold: Option<Hold>) -> Self {
        Self {
            body: Some(body),
            is_polled: false,
            hold,
        }
    }
}

impl DetachBody {
    // Not inlined into the path of each event.
    #[cold]
    fn end(&mut self, last: Last) -> Last {
        // The inner body is dropped before the outer layers receive the terminal item.
        self.body = None;
        self.hold = None;
        last
    }
}

impl Stream for DetachBody {
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(body) = this.body.as_mut().filter(|_| !this.is_polled) else {
            return Poll::Ready(None);
        };
        this.is_polled = true;
        let polled = Pin::new(body).poll_next(cx);
        this.is_polled = false;
        at_end(polled, |last| Poll::Ready(this.end(last)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.body {
            Some(body) => body.size_hint(),
            None => (0, Some(0)),
        }
    }
}

impl Drop for DetachBody {
    fn drop(&mut self) {
        if let (Some(body), Some(hold)) = (self.body.take(), self.hold.take())
            && !self.is_polled
        {
            hold.detach(Rest::Body(body));
        }
    }
}

concentric_core::opaque_debug!(DetachBody);
