use super::{Transform, TransformBody};
use concentric_core::{ChatResponse, Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::BoxError;

pin_project! {
    /// Response future for [`TransformEvents`](super::TransformEvents).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F, B, T> {
        #[pin]
        inner: F,
        // Taken when `inner` resolves.
        transform: Option<T>,
        // The response, held until it has content.
        held: Option<ChatResponse<TransformBody<B, T>>>,
    }
}

impl<F, B, T> ResponseFuture<F, B, T> {
    pub(super) const fn new(inner: F, transform: T) -> Self {
        Self {
            inner,
            transform: Some(transform),
            held: None,
        }
    }
}

impl<F, B, E, T> Future for ResponseFuture<F, B, T>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    T: Transform,
{
    type Output = Result<ChatResponse<TransformBody<B, T>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(transform) = this.transform.take() {
            match this.inner.poll(cx) {
                Poll::Ready(Ok(response)) => {
                    *this.held =
                        Some(response.map_body(|body| TransformBody::new(body, transform)));
                }
                Poll::Ready(Err(error)) => {
                    let error = Error::from(error.into());
                    *this.held = Some(ChatResponse::new(TransformBody::failed(error, transform)));
                }
                Poll::Pending => {
                    *this.transform = Some(transform);
                    return Poll::Pending;
                }
            }
        }
        let held = this.held.as_mut().expect("polled after completion");
        ready!(held.body.poll_commit(cx))?;
        Poll::Ready(Ok(this.held.take().expect("the response was just polled")))
    }
}

concentric_core::opaque_debug!(ResponseFuture<F, B, T>);
