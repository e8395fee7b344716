use super::{End, OnEndBody, body::Once};
use crate::body::Observer;
use concentric_core::{ChatResponse, Error};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::BoxError;

pin_project! {
    /// Response future for [`OnEnd`](super::OnEnd).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F, C>
    where
        C: Fn(End<'_>),
    {
        #[pin]
        inner: F,
        // Moved into the body.
        once: Option<Once<C>>,
    }
}

impl<F, C> ResponseFuture<F, C>
where
    C: Fn(End<'_>),
{
    pub(super) const fn new(inner: F, f: C) -> Self {
        Self {
            inner,
            once: Some(Once::new(f)),
        }
    }
}

impl<F, B, E, C> Future for ResponseFuture<F, C>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: Into<BoxError>,
    C: Fn(End<'_>),
{
    type Output = Result<ChatResponse<OnEndBody<B, C>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let mut once = this.once.take().expect("polled after completion");
        Poll::Ready(match result {
            Ok(response) => Ok(response.map_body(|body| OnEndBody::new(body, once))),
            Err(error) => {
                let error = Error::from(error.into());
                once.end(End::Failed(&error));
                Err(error)
            }
        })
    }
}

impl<F, C> fmt::Debug for ResponseFuture<F, C>
where
    C: Fn(End<'_>),
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
