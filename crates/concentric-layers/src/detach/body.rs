use super::hold::{Hold, Rest};
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
    // Taken while it is polled, so a body that panicked is not polled again.
    body: Option<EventStream>,
    hold: Option<Hold>,
}

impl DetachBody {
    pub(super) const fn new(body: EventStream, hold: Option<Hold>) -> Self {
        Self {
            body: Some(body),
            hold,
        }
    }
}

impl Stream for DetachBody {
    type Item = Result<Event, Error>;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(mut body) = self.body.take() else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut body).poll_next(cx);
        if let Poll::Ready(None | Some(Err(_) | Ok(Event::Finish(_)))) = &polled {
            // The inner body is dropped before the outer layers receive the terminal item.
            drop(body);
            self.hold = None;
        } else {
            self.body = Some(body);
        }
        polled
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
        if let (Some(body), Some(hold)) = (self.body.take(), self.hold.take()) {
            hold.detach(Rest::Body(body));
        }
    }
}

concentric_core::opaque_debug!(DetachBody);
