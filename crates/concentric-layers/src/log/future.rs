use super::{
    LogBody,
    lines::{ModelLines, ToolLines},
};
use crate::body::Observer;
use concentric_core::{BoxError, ChatResponse, Error, ToolOutcome, hooks::End};
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response future for [`Log`](super::Log) around a model or an agent.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        // Moved into the body.
        lines: ModelLines,
    }
}

impl<F> ResponseFuture<F> {
    pub(super) const fn new(inner: F, lines: ModelLines) -> Self {
        Self { inner, lines }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<ChatResponse<LogBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let mut lines = this.lines.take();
        Poll::Ready(match result {
            Ok(response) => {
                lines.first(&response.head);
                Ok(response.map_body(|body| LogBody::new(body, lines)))
            }
            Err(error) => {
                let error = Error::from(error.into());
                lines.end(End::Failed(&error));
                Err(error)
            }
        })
    }
}

pin_project! {
    /// Response future for [`Log`](super::Log) around a tool.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ToolFuture<F> {
        #[pin]
        inner: F,
        lines: ToolLines,
    }
}

impl<F> ToolFuture<F> {
    pub(super) const fn new(inner: F, lines: ToolLines) -> Self {
        Self { inner, lines }
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
        let result = ready!(this.inner.poll(cx)).map_err(|e| Error::from(e.into()));
        this.lines.end(match &result {
            Ok(outcome) => End::Finished(outcome),
            Err(error) => End::Failed(error),
        });
        Poll::Ready(result)
    }
}

concentric_core::opaque_debug!(ResponseFuture<F>);
concentric_core::opaque_debug!(ToolFuture<F>);
