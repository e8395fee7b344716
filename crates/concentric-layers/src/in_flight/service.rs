use super::{InFlightBody, ResponseFuture, limit::Limit};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Middleware that limits the number of concurrent responses.
#[derive(Clone, Debug)]
pub struct InFlightLimit<S> {
    inner: S,
    limit: Arc<Limit>,
    queue: usize,
}

impl<S> InFlightLimit<S> {
    pub(super) const fn new(inner: S, limit: Arc<Limit>, queue: usize) -> Self {
        Self {
            inner,
            limit,
            queue,
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

impl<S, B> Service<ChatRequest> for InFlightLimit<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<InFlightBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The future waits, because the run's deadline and cancellation are known there.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        match request.context.enter_shared(&self.limit) {
            true => ResponseFuture::new(self.inner.clone(), request, &self.limit, self.queue),
            false => ResponseFuture::nested(),
        }
    }
}
