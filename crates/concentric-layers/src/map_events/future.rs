use super::MapEventsBody;
use concentric_core::ChatResponse;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

pin_project! {
    /// Response future for [`MapEvents`](super::MapEvents).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F, M> {
        #[pin]
        inner: F,
        // Taken when `inner` resolves.
        map: Option<M>,
    }
}

impl<F, M> ResponseFuture<F, M> {
    pub(super) const fn new(inner: F, map: M) -> Self {
        Self {
            inner,
            map: Some(map),
        }
    }
}

impl<F, B, E, M> Future for ResponseFuture<F, M>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
{
    type Output = Result<ChatResponse<MapEventsBody<B, M>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.inner.poll(cx))?;
        let map = this.map.take().expect("polled after completion");
        Poll::Ready(Ok(response.map_body(|body| MapEventsBody::new(body, map))))
    }
}

concentric_core::opaque_debug!(ResponseFuture<F, M>);
