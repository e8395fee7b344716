use super::{ConversationBody, ConversationLayer, ResponseFuture, layer::Settings, turn::Turn};
use concentric_core::{ChatRequest, ChatResponse, Error, Event, Phase};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower::BoxError;
use tower_service::Service;

/// Middleware that keeps the history of conversations in a store.
#[derive(Clone)]
pub struct Conversation<S> {
    inner: S,
    settings: Settings,
}

impl<S> Conversation<S> {
    pub(super) const fn new(inner: S, settings: Settings) -> Self {
        Self { inner, settings }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    fn begin(&self, request: &mut ChatRequest) -> Result<Turn, Error> {
        let context = &mut request.context;
        context.enter::<ConversationLayer>()?;
        Turn::new(&self.settings, context)
    }
}

impl<S, B> Service<ChatRequest> for Conversation<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<ConversationBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let inner = self.inner.clone();
        // The conversation is that of the calling agent.
        if request.context.phase() == Phase::Run && request.context.parent().is_some() {
            return ResponseFuture::pass(inner, request);
        }
        match self.begin(&mut request) {
            Ok(turn) => ResponseFuture::load(inner, request, turn),
            Err(error) => ResponseFuture::fail(error),
        }
    }
}

concentric_core::opaque_debug!(Conversation<S>);
