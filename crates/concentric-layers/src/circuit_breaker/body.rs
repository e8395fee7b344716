use super::call::Call;
use crate::end::observe_end;
use concentric_core::{Error, Event, hooks::End};
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
        observe_end(&item, |end| {
            if let Some(call) = this.call.take() {
                match end {
                    End::Finished(_) => call.succeeded(),
                    End::Failed(error) => call.failed(error),
                    End::Truncated | End::Dropped => call.failed(&Error::truncated()),
                }
            }
        });
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

concentric_core::opaque_debug!(CircuitBreakerBody<B>);
