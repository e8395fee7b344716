use super::hold::{Continue, Hold};
use crate::{
    body::{Observer, is_event, observe_end},
    rest::Rest,
};
use concentric_core::{Error, Event, hooks::End};
use futures_core::Stream;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// Response body for [`Detach`](super::Detach): the inner body's items, unchanged.
///
/// If it is dropped before its end, the run continues without its consumer.
#[must_use = "streams do nothing unless polled"]
pub struct DetachBody<B> {
    rest: Rest<B>,
    hold: Option<Hold>,
    continue_run: Continue<B>,
}

impl<B> DetachBody<B> {
    pub(super) fn new(body: B, hold: Option<Hold>, continue_run: Continue<B>) -> Self {
        Self {
            rest: Rest::body(body),
            hold,
            continue_run,
        }
    }
}

impl<B> Observer for DetachBody<B> {
    /// Drops the inner body before the outer layers receive the terminal item.
    fn end(&mut self, _: End<'_>) {
        if self.rest.is_body() {
            self.rest = Rest::Over;
        }
        self.hold = None;
    }
}

impl<B> Stream for DetachBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut item = self.rest.poll_body(cx);
        if !is_event(&item) {
            item = observe_end(item, &mut *self);
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.rest {
            Rest::Body(body) => body.size_hint(),
            _ => (0, Some(0)),
        }
    }
}

impl<B> Drop for DetachBody<B> {
    fn drop(&mut self) {
        if self.rest.is_body()
            && let Some(hold) = self.hold.take()
        {
            (self.continue_run)(hold, self.rest.take());
        }
    }
}

concentric_core::opaque_debug!(DetachBody<B>);
