use super::{ResponseCacheBody, ResponseFuture, call::Answers, key::Key, layer::Options};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Middleware that answers repeated requests from earlier answers, and shares concurrent calls.
#[derive(Clone)]
pub struct ResponseCache<S> {
    inner: S,
    options: Options,
    answers: Arc<Answers>,
}

impl<S> ResponseCache<S> {
    pub(super) const fn new(inner: S, options: Options, answers: Arc<Answers>) -> Self {
        Self {
            inner,
            options,
            answers,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for ResponseCache<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Stream<Item = Result<Event, Error>> + Send + 'static,
{
    type Response = ChatResponse<ResponseCacheBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The future waits for the inner service, because a hit does not reach it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let inner = self.inner.clone();
        match Key::of(&self.options, &request) {
            // A call must not wait for another one, which may wait for it.
            Some(key) if request.context.enter_shared(&self.answers) => {
                let (options, answers) = (self.options.clone(), Arc::clone(&self.answers));
                ResponseFuture::cached(inner, request, key, options, answers)
            }
            _ => ResponseFuture::passed(inner, request),
        }
    }
}

concentric_core::opaque_debug!(ResponseCache<S>);
