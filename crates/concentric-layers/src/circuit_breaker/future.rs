use super::{CircuitBreakerBody, call::Call};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::util::Oneshot;
use tower_service::Service;

pin_project! {
    /// Response future for [`CircuitBreaker`](super::CircuitBreaker).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        // Dropped before `admitted`: a probe's place is free after its call has ended.
        #[pin]
        inner: Option<Oneshot<S, ChatRequest>>,
        // Taken when the future resolves.
        admitted: Option<Result<Call, Error>>,
    }
}

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn new(inner: S, request: ChatRequest, call: Call) -> Self {
        Self {
            inner: Some(Oneshot::new(inner, request)),
            admitted: Some(Ok(call)),
        }
    }

    pub(super) const fn rejected(error: Error) -> Self {
        Self {
            inner: None,
            admitted: Some(Err(error)),
        }
    }
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<CircuitBreakerBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let result = match this.inner.as_mut().as_pin_mut() {
            Some(inner) => Some(ready!(inner.poll(cx))),
            None => None,
        };
        // A completed future holds nothing.
        this.inner.set(None);
        Poll::Ready(match (this.admitted.take(), result) {
            (Some(Ok(mut call)), Some(Ok(response))) => {
                call.resolved();
                Ok(response.map_body(|body| CircuitBreakerBody::new(body, call)))
            }
            (Some(Ok(mut call)), Some(Err(error))) => {
                let error = Error::from(error.into());
                call.resolved();
                call.failed(&error);
                Err(error)
            }
            (Some(Err(error)), _) => Err(error),
            // Polled after completion.
            _ => return Poll::Pending,
        })
    }
}

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
