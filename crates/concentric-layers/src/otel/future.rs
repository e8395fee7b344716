use super::{OtelBody, model::ModelSpan, tool::ToolSpan};
use concentric_core::{BoxError, ChatResponse, Error, ToolOutcome, hooks::End};
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response future for [`OtelService`](super::OtelService) around a model or an agent.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        // Dropped before the span ends.
        #[pin]
        inner: F,
        // Moved into the body.
        span: ModelSpan,
    }
}

impl<F> ResponseFuture<F> {
    pub(super) const fn new(inner: F, span: ModelSpan) -> Self {
        Self { inner, span }
    }
}

// Not inlined, so that a response without a span is not written to memory.
#[inline(never)]
fn traced<B>(response: ChatResponse<B>, mut span: ModelSpan) -> ChatResponse<OtelBody<B>> {
    span.first(&response.head);
    response.map_body(|body| OtelBody::traced(body, span))
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<ChatResponse<OtelBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.enter();
        let polled = this.inner.poll(cx);
        drop(entered);
        Poll::Ready(match ready!(polled) {
            Ok(response) if !this.span.is_open() => Ok(response.map_body(OtelBody::passed)),
            Ok(response) => Ok(traced(response, this.span.take())),
            Err(error) => {
                let error = Error::from(error.into());
                this.span.end(End::Failed(&error));
                Err(error)
            }
        })
    }
}

pin_project! {
    /// Response future for [`OtelService`](super::OtelService) around a tool.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ToolFuture<F> {
        // Dropped before the span ends.
        #[pin]
        inner: F,
        span: ToolSpan,
    }
}

impl<F> ToolFuture<F> {
    pub(super) const fn new(inner: F, span: ToolSpan) -> Self {
        Self { inner, span }
    }
}

impl<F, E> Future for ToolFuture<F>
where
    F: Future<Output = Result<ToolOutcome, E>>,
    E: Into<BoxError>,
{
    type Output = Result<ToolOutcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.enter();
        let polled = this.inner.poll(cx);
        drop(entered);
        let result = ready!(polled).map_err(|e| Error::from(e.into()));
        this.span.end(match &result {
            Ok(outcome) => End::Finished(outcome),
            Err(error) => End::Failed(error),
        });
        Poll::Ready(result)
    }
}

concentric_core::opaque_debug!(ResponseFuture<F>);
concentric_core::opaque_debug!(ToolFuture<F>);
