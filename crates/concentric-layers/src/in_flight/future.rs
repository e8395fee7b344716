use super::InFlightBody;
use concentric_core::ChatResponse;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::sync::OwnedSemaphorePermit;

pin_project! {
    /// Response future for [`InFlightLimit`](super::InFlightLimit).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        // Goes to the body, or with an error: a future that is done and kept holds nothing.
        permit: Option<OwnedSemaphorePermit>,
    }
}

impl<F> ResponseFuture<F> {
    pub(super) const fn new(inner: F, permit: OwnedSemaphorePermit) -> Self {
        Self {
            inner,
            permit: Some(permit),
        }
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
{
    type Output = Result<ChatResponse<InFlightBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let permit = this.permit.take();
        Poll::Ready(result.map(|answer| answer.map_body(|body| InFlightBody::new(body, permit))))
    }
}
