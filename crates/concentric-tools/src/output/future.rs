use super::OutputBody;
use concentric_core::{ChatResponse, Str};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response future for [`WithOutput`](super::WithOutput).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        schema: Option<Str>,
    }
}

impl<F> ResponseFuture<F> {
    pub(super) const fn new(inner: F, schema: Option<Str>) -> Self {
        Self { inner, schema }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
{
    type Output = Result<ChatResponse<OutputBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.inner.poll(cx))?;
        let schema = this.schema.take();
        Poll::Ready(Ok(response.map_body(|body| OutputBody::new(body, schema))))
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}
