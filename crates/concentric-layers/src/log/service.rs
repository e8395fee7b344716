use super::{
    ResponseFuture, ToolFuture,
    layer::Options,
    lines::{ModelLines, ToolLines},
};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event, ToolCall, ToolOutcome};
use futures_core::Stream;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Middleware that logs runs, model calls and tool calls.
#[derive(Clone, Debug)]
pub struct Log<S> {
    inner: S,
    options: Arc<Options>,
}

impl<S> Log<S> {
    pub(super) const fn new(inner: S, options: Arc<Options>) -> Self {
        Self { inner, options }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for Log<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<super::LogBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(|e| Error::from(e.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let lines = ModelLines::start(&self.options, &request);
        ResponseFuture::new(self.inner.call(request), lines)
    }
}

impl<S> Service<ToolCall> for Log<S>
where
    S: Service<ToolCall, Response = ToolOutcome>,
    S::Error: Into<BoxError>,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ToolFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(|e| Error::from(e.into()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let lines = ToolLines::start(&self.options, &call);
        ToolFuture::new(self.inner.call(call), lines)
    }
}
