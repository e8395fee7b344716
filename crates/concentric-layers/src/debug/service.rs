use super::layer::Place;
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower_service::Service;

/// Middleware that logs requests and events.
#[derive(Clone, std::fmt::Debug)]
pub struct Debug<S> {
    inner: S,
    place: Place,
}

impl<S> Debug<S> {
    pub(super) const fn new(inner: S, place: Place) -> Self {
        Self { inner, place }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for Debug<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: std::fmt::Debug,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<DebugBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let Place { place, layer } = &self.place;
        let layer = layer.as_deref();
        tracing::debug!(
            target: "concentric::events",
            place,
            layer,
            run = %request.context.run_id(),
            step = request.context.step(),
            turns = request.transcript.len(),
            "request"
        );
        tracing::trace!(target: "concentric::events", place, layer, ?request);
        ResponseFuture {
            inner: self.inner.call(request),
            place: self.place.clone(),
        }
    }
}

pin_project! {
    /// Response future for [`Debug`](struct@Debug).
    #[derive(std::fmt::Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        place: Place,
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<ChatResponse<B>, E>>,
    E: std::fmt::Debug,
{
    type Output = Result<ChatResponse<DebugBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let at = this.place.clone();
        let (place, layer) = (at.place, at.layer.as_deref());
        match &result {
            Ok(response) => {
                tracing::debug!(target: "concentric::events", place, layer, head = ?response.head, "answer");
            }
            Err(error) => {
                tracing::debug!(target: "concentric::events", place, layer, ?error, "call failed");
            }
        }
        Poll::Ready(result.map(|response| {
            response.map_body(|inner| DebugBody {
                inner,
                end: LogEnd {
                    place: at,
                    ended: false,
                },
            })
        }))
    }
}

pin_project! {
    /// Response body for [`Debug`](struct@Debug).
    #[derive(std::fmt::Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct DebugBody<B> {
        #[pin]
        inner: B,
        end: LogEnd,
    }
}

/// Logs that a body was dropped, unless it ended otherwise.
#[derive(std::fmt::Debug)]
struct LogEnd {
    place: Place,
    ended: bool,
}

impl Drop for LogEnd {
    fn drop(&mut self) {
        if !self.ended {
            let (place, layer) = (self.place.place, self.place.layer.as_deref());
            tracing::debug!(target: "concentric::events", place, layer, "dropped");
        }
    }
}

impl<B> Stream for DebugBody<B>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = Result<Event, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let item = ready!(this.inner.poll_next(cx));
        let LogEnd { place, ended } = this.end;
        let (place, layer) = (place.place, place.layer.as_deref());
        match &item {
            Some(Ok(event @ Event::Finish(_))) => {
                *ended = true;
                tracing::debug!(target: "concentric::events", place, layer, ?event);
            }
            Some(Ok(event)) => tracing::trace!(target: "concentric::events", place, layer, ?event),
            Some(Err(error)) => {
                *ended = true;
                tracing::debug!(target: "concentric::events", place, layer, ?error, "failed");
            }
            None if *ended => {}
            None => {
                *ended = true;
                tracing::debug!(target: "concentric::events", place, layer, "ended early");
            }
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}
