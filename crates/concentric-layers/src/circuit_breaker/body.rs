use super::call::Call;
use concentric_core::{Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pin_project! {
    /// Response body for [`CircuitBreaker`](super::CircuitBreaker): the inner body's items, unchanged.
    #[must_use = "streams do nothing unless polled"]
    pub struct CircuitBreakerBody<B> {
        #[pin]
        inner: B,
        // Until the terminal item.
        call: Option<Call>,
    }
}

impl<B> CircuitBreakerBody<B> {
    pub(super) const fn new(inner: B, call: Call) -> Self {
        Self {
            inner,
            call: Some(call),
        }
    }
}

// Not inlined into the path of each event.
#[cold]
fn succeeded(call: &mut Option<Call>) {
    if let Some(call) = call.take() {
        call.succeeded();
    }
}

#[cold]
fn failed(call: &mut Option<Call>, error: Option<&Error>) {
    if let Some(call) = call.take() {
        match error {
            Some(error) => call.failed(error),
            None => call.failed(&Error::truncated()),
        }
    }
}

impl<B> Stream for CircuitBreakerBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    // Inlined always: a call would copy the event, and a stack has many layers.
    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = this.inner.poll_next(cx);
        match &item {
            Poll::Ready(Some(Ok(Event::Finish(_)))) => succeeded(this.call),
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
            Poll::Ready(Some(Err(error))) => failed(this.call, Some(error)),
            Poll::Ready(None) => failed(this.call, None),
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(CircuitBreakerBody<B>);
