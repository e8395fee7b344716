use super::{InFlightBody, ResponseFuture};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;
use tower_service::Service;

/// Middleware that limits how many answers arrive at once.
///
/// See the [module docs](super) for an example.
#[derive(Debug)]
pub struct InFlightLimit<S> {
    inner: S,
    permits: PollSemaphore,
    // Held from `poll_ready` to `call`.
    permit: Option<OwnedSemaphorePermit>,
}

impl<S> InFlightLimit<S> {
    /// Wraps `inner`; each call takes one of `permits`.
    pub fn new(inner: S, permits: Arc<Semaphore>) -> Self {
        Self {
            inner,
            permits: PollSemaphore::new(permits),
            permit: None,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Gets a mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes `self`, returning the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S> Clone for InFlightLimit<S>
where
    S: Clone,
{
    /// Clones the service; the clone shares the limit, and is not ready.
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            permits: self.permits.clone(),
            permit: None,
        }
    }
}

impl<S, B> Service<ChatRequest> for InFlightLimit<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<InFlightBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.permit.is_none() {
            let permit = ready!(self.permits.poll_acquire(cx));
            self.permit = Some(permit.expect("nobody closes the semaphore"));
        }
        let ready = ready!(self.inner.poll_ready(cx));
        if ready.is_err() {
            // It will not be called; whoever holds it must not hold up the others.
            self.permit = None;
        }
        Poll::Ready(ready)
    }

    /// Calls the inner service.
    ///
    /// # Panics
    ///
    /// If the service was not polled ready.
    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let permit = self
            .permit
            .take()
            .expect("`poll_ready` must return `Ready(Ok(()))` before `call`");
        ResponseFuture::new(self.inner.call(request), permit)
    }
}
