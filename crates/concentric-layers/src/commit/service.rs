use super::{CommitBody, Point, ResponseFuture};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower::BoxError;
use tower_service::Service;

/// Middleware that delays the commit point of an answer.
///
/// See the [module docs](super) for an example.
#[derive(Clone, Copy, Debug)]
pub struct Commit<S, P> {
    inner: S,
    point: P,
    limit: usize,
}

impl<S, P> Commit<S, P> {
    pub(super) const fn new(inner: S, point: P, limit: usize) -> Self {
        Self {
            inner,
            point,
            limit,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, P, B> Service<ChatRequest> for Commit<S, P>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    P: Point + Clone,
{
    type Response = ChatResponse<CommitBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, B, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner
            .poll_ready(cx)
            .map_err(|error| Error::from(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let context = request.context.clone();
        let inner = self.inner.call(request);
        ResponseFuture::new(inner, self.point.clone(), self.limit, context)
    }
}
