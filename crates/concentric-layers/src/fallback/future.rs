use super::{FIRST_CONTENT, FallbackBody, attempts::Attempts};
use concentric_core::{
    BoxError, BoxModel, ChatRequest, ChatResponse, Error, ErrorKind, Event, context::Sleep,
};
use futures_core::Stream;
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
    /// Response future for [`Fallback`](super::Fallback).
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S>
    where
        S: Service<ChatRequest>,
    {
        #[pin]
        call: Call<S>,
        // Until it is called.
        inner: Option<S>,
        limit: Option<Sleep>,
        attempts: Attempts,
    }
}

pin_project! {
    #[project = CallProj]
    enum Call<S>
    where
        S: Service<ChatRequest>,
    {
        First { #[pin] call: Oneshot<S, ChatRequest> },
        Other { #[pin] call: Oneshot<BoxModel, ChatRequest> },
        Done,
    }
}

impl<S> ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    pub(super) fn new(inner: S, attempts: Attempts) -> Self {
        let mut inner = Some(inner);
        Self {
            call: Call::begin(&mut inner, &attempts),
            inner,
            limit: attempts.limit(),
            attempts,
        }
    }
}

impl<S> Call<S>
where
    S: Service<ChatRequest>,
{
    /// Begins the current attempt.
    fn begin(inner: &mut Option<S>, attempts: &Attempts) -> Self {
        if let Some((model, request)) = attempts.other() {
            let call = Oneshot::new(model, request);
            return Self::Other { call };
        }
        // Each model is called at most once.
        inner.take().map_or(Self::Done, |inner| Self::First {
            call: Oneshot::new(inner, attempts.request()),
        })
    }
}

impl<S, B> Future for ResponseFuture<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Output = Result<ChatResponse<FallbackBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let polled = match this.call.as_mut().project() {
                CallProj::First { call } => call.poll(cx).map(|result| match result {
                    Ok(response) => Ok(response.map_body(FallbackBody::first)),
                    Err(error) => Err(Error::from(error.into())),
                }),
                CallProj::Other { call } => call
                    .poll(cx)
                    .map_ok(|response| response.map_body(FallbackBody::other)),
                CallProj::Done => return Poll::Pending,
            };
            let result = match polled {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    let Some(limit) = this.limit else {
                        return Poll::Pending;
                    };
                    ready!(limit.as_mut().poll(cx));
                    Err(late())
                }
            };
            // The attempt is over before the next one begins, and a completed future holds nothing.
            this.call.set(Call::Done);
            *this.limit = None;
            match result {
                Ok(mut response) => {
                    *this.inner = None;
                    if let Some(failed) = this.attempts.answered() {
                        response.extensions.insert(failed);
                    }
                    return Poll::Ready(Ok(response));
                }
                Err(error) => match this.attempts.failed(error) {
                    Ok(()) => {
                        this.call.set(Call::begin(this.inner, this.attempts));
                        *this.limit = this.attempts.limit();
                    }
                    Err(error) => {
                        *this.inner = None;
                        return Poll::Ready(Err(error));
                    }
                },
            }
        }
    }
}

fn late() -> Error {
    let why = "the model exceeded the time for its first content";
    // A policy inside may have repeated the call, or may have waited as the provider requested.
    Error::new(ErrorKind::Timeout, why)
        .with_code(FIRST_CONTENT)
        .with_advice(false)
}

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
