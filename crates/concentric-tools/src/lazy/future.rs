use concentric_core::{ChatResponse, Str};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response future of the layers that restrict the offered tools.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        // The names of the offered tools, if the layer removed any.
        offered: Option<Arc<[Str]>>,
    }
}

impl<F> ResponseFuture<F> {
    pub(crate) const fn new(inner: F, offered: Option<Arc<[Str]>>) -> Self {
        Self { inner, offered }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
{
    type Output = Result<ChatResponse<B>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.inner.poll(cx))?;
        // An inner layer's restriction is the final one.
        if response.head.tools.is_none() {
            response.head.tools = this.offered.take();
        }
        Poll::Ready(Ok(response))
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("offered", &self.offered)
            .finish_non_exhaustive()
    }
}
