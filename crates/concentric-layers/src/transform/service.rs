use super::{ResponseFuture, Transform, TransformBody};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower::BoxError;
use tower_service::Service;

/// Middleware that changes the events of each answer with a [`Transform`].
#[derive(Clone, Copy)]
pub struct TransformEvents<S, F> {
    inner: S,
    make: F,
}

impl<S, F> TransformEvents<S, F> {
    /// Wraps `inner`.
    pub const fn new(inner: S, make: F) -> Self {
        Self { inner, make }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, F, T, B> Service<ChatRequest> for TransformEvents<S, F>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    F: Fn(&ChatRequest) -> T,
    T: Transform,
{
    type Response = ChatResponse<TransformBody<B, T>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, B, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner
            .poll_ready(cx)
            .map_err(|error| Error::from(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let transform = (self.make)(&request);
        ResponseFuture::new(self.inner.call(request), transform)
    }
}

concentric_core::opaque_debug!(TransformEvents<S, F>);
