use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use concentric_core::{ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use http_body::Body;
use tower::BoxError;
use tower_service::Service;

use crate::run::{Config, ResponseBody, ResponseFuture};

/// An agent as an AG-UI endpoint.
#[derive(Clone)]
pub struct AgUi<A> {
    agent: A,
    config: Arc<Config>,
}

impl<A> AgUi<A> {
    pub(super) const fn new(agent: A, config: Arc<Config>) -> Self {
        Self { agent, config }
    }

    /// Gets a reference to the agent.
    pub const fn get_ref(&self) -> &A {
        &self.agent
    }

    /// Gets a mutable reference to the agent.
    pub const fn get_mut(&mut self) -> &mut A {
        &mut self.agent
    }

    /// Returns the agent.
    pub fn into_inner(self) -> A {
        self.agent
    }
}

impl<A, B, RB> Service<http::Request<RB>> for AgUi<A>
where
    A: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    A::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    RB: Body,
    RB::Error: Into<BoxError>,
{
    type Response = http::Response<ResponseBody<A, B>>;
    type Error = Infallible;
    type Future = ResponseFuture<A, B, RB>;

    // Always ready: some requests are answered without the agent, and others wait for it in their
    // stream.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RB>) -> Self::Future {
        ResponseFuture::new(&self.agent, self.config.clone(), request)
    }
}

impl<A: fmt::Debug> fmt::Debug for AgUi<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgUi")
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}
