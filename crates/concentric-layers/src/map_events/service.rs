use super::{MapEventsBody, ResponseFuture};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower_service::Service;

/// Middleware that passes each event to a function, which may change it.
#[derive(Clone, Copy)]
pub struct MapEvents<S, F> {
    inner: S,
    f: F,
}

impl<S, F> MapEvents<S, F> {
    /// Wraps `inner`.
    pub const fn new(inner: S, f: F) -> Self {
        Self { inner, f }
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

impl<S, F, B> Service<ChatRequest> for MapEvents<S, F>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    B: Stream<Item = Result<Event, Error>>,
    F: FnMut(&mut Event) + Clone,
{
    type Response = ChatResponse<MapEventsBody<B, F>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        ResponseFuture::new(self.inner.call(request), self.f.clone())
    }
}

concentric_core::opaque_debug!(MapEvents<S, F>);
