use super::{End, OnEndBody, ResponseFuture};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll, ready};
use tower::BoxError;
use tower_service::Service;

/// Middleware that calls a function when an answer ends.
#[derive(Clone, Copy)]
pub struct OnEnd<S, F> {
    inner: S,
    f: F,
}

impl<S, F> OnEnd<S, F> {
    /// Wraps `inner`.
    pub const fn new(inner: S, f: F) -> Self {
        Self { inner, f }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, F, B> Service<ChatRequest> for OnEnd<S, F>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    F: Fn(End<'_>) + Clone,
{
    type Response = ChatResponse<OnEndBody<B, F>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(ready!(self.inner.poll_ready(cx)).map_err(|e| Error::from(e.into())))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        ResponseFuture::new(self.inner.call(request), self.f.clone())
    }
}

concentric_core::opaque_debug!(OnEnd<S, F>);
