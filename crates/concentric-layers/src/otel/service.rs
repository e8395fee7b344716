use super::{
    ResponseFuture, ToolFuture,
    layer::{Options, Place},
    model::ModelSpan,
    tool::ToolSpan,
};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event, ToolCall, ToolOutcome};
use futures_core::Stream;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tower_service::Service;

/// Middleware that records the spans and metrics of runs, model calls and tool calls.
#[derive(Clone, Debug)]
pub struct OtelService<S> {
    inner: S,
    options: Arc<Options>,
    place: Place,
}

impl<S> OtelService<S> {
    pub(super) const fn new(inner: S, options: Arc<Options>, place: Place) -> Self {
        Self {
            inner,
            options,
            place,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for OtelService<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<super::OtelBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(|e| Error::from(e.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let span = ModelSpan::start(&self.options, self.place, &request);
        let entered = span.enter();
        let inner = self.inner.call(request);
        drop(entered);
        ResponseFuture::new(inner, span)
    }
}

impl<S> Service<ToolCall> for OtelService<S>
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
        let span = ToolSpan::start(&self.options, &call);
        let entered = span.enter();
        let inner = self.inner.call(call);
        drop(entered);
        ToolFuture::new(inner, span)
    }
}
