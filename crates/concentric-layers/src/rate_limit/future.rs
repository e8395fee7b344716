use super::{
    RateLimitBody,
    bucket::{Demand, Reservation},
};
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
    /// Response future for [`RateLimit`](super::RateLimit).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        // The inner service is called when this is first polled.
        #[pin]
        call: Option<Oneshot<S, ChatRequest>>,
        waiting: Option<Waiting>,
        // Moved to the body, or settled on an error: a completed future holds nothing.
        reservation: Option<Reservation>,
        failed: Option<Error>,
    }
}

// Boxed, since the future has no name; a call that need not wait makes none.
type Waiting = Pin<Box<dyn Future<Output = Result<Reservation, Error>> + Send>>;

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn new(inner: S, request: ChatRequest, demand: Demand) -> Self {
        let call = Some(Oneshot::new(inner, request));
        let (mut waiting, mut reservation, mut failed) = (None, None, None);
        match demand.try_take() {
            Ok(Some(taken)) => reservation = Some(taken),
            Ok(None) => {
                let wait: Waiting = Box::pin(demand.take());
                waiting = Some(wait);
            }
            Err(error) => failed = Some(error),
        }
        Self {
            call,
            waiting,
            reservation,
            failed,
        }
    }
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<ChatResponse<RateLimitBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(error) = this.failed.take() {
            this.call.set(None);
            return Poll::Ready(Err(error));
        }
        if let Some(waiting) = this.waiting {
            let taken = ready!(waiting.as_mut().poll(cx));
            *this.waiting = None;
            match taken {
                Ok(taken) => *this.reservation = Some(taken),
                Err(error) => {
                    this.call.set(None);
                    return Poll::Ready(Err(error));
                }
            }
        }
        let Some(call) = this.call.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let answer = ready!(call.poll(cx));
        this.call.set(None);
        let mut reservation = this.reservation.take().expect("taken before the call");
        Poll::Ready(match answer {
            Ok(answer) => {
                reservation.answered(answer.extensions.get());
                Ok(answer.map_body(|body| RateLimitBody::new(body, reservation)))
            }
            Err(error) => {
                let error = Error::from(error.into());
                reservation.failed(&error);
                Err(error)
            }
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
