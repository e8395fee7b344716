use super::{CompactionLayer, ResponseFuture, WindowBody, layer::Settings};
use crate::window::place;
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Middleware that summarises the older part of a conversation.
#[derive(Clone)]
pub struct Compaction<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Compaction<S> {
    pub(super) const fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: fmt::Debug> fmt::Debug for Compaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compaction")
            .field("inner", &self.inner)
            .field("window", &self.settings.window)
            .finish_non_exhaustive()
    }
}

impl<S, B> Service<ChatRequest> for Compaction<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<WindowBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        place::<CompactionLayer>(&mut request.context);
        ResponseFuture::new(self.inner.clone(), &self.settings, request)
    }
}
