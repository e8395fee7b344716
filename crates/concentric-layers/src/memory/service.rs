use super::{DynamicMemoryBody, DynamicMemoryLayer, ResponseFuture, layer::Settings, turn::Turn};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower::BoxError;
use tower_service::Service;

/// Middleware that recalls and captures memories.
#[derive(Clone)]
pub struct DynamicMemory<S> {
    inner: S,
    settings: Settings,
}

impl<S> DynamicMemory<S> {
    pub(super) const fn new(inner: S, settings: Settings) -> Self {
        Self { inner, settings }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for DynamicMemory<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<DynamicMemoryBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let inner = self.inner.clone();
        if let Err(error) = request.context.enter::<DynamicMemoryLayer>() {
            return ResponseFuture::fail(error.into());
        }
        match Turn::new(&self.settings, &mut request.context) {
            Some(turn) => ResponseFuture::recall(inner, request, turn),
            None => ResponseFuture::pass(inner, request),
        }
    }
}

concentric_core::opaque_debug!(DynamicMemory<S>);
