use super::{CommitBody, ResponseFuture, policy::CommitPolicy};
use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower::BoxError;
use tower_service::Service;

/// Middleware that delays the commit point of an answer.
#[derive(Clone, Debug)]
pub struct Commit<S> {
    inner: S,
    policy: CommitPolicy,
    limit: usize,
}

impl<S> Commit<S> {
    pub(super) const fn new(inner: S, policy: CommitPolicy, limit: usize) -> Self {
        Self {
            inner,
            policy,
            limit,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for Commit<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>>,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<CommitBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner
            .poll_ready(cx)
            .map_err(|error| Error::from(error.into()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let context = request.context.clone();
        let inner = self.inner.call(request);
        ResponseFuture::new(inner, self.policy.clone(), self.limit, context)
    }
}
