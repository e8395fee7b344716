use super::router::Router;
use crate::tool::ToolFuture;
use concentric_core::{BoxTool, Error, ToolCall, ToolOutcome, service::BoxFuture};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower_service::Service;

/// The router, boxed only if there are layers around it.
#[derive(Clone)]
pub(crate) enum Stack {
    Bare(Router),
    Layered(BoxTool),
}

/// The observation of a settled call by hooks.
pub(crate) type Observation = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) enum StackFuture {
    Bare(ToolFuture),
    Layered(BoxFuture<ToolOutcome>),
    /// A settled call that hooks observe.
    Observed(Observation, Option<ToolOutcome>),
    /// An abandoned call whose outcome is being recovered.
    Recovered(BoxFuture<ToolOutcome>),
}

impl Service<ToolCall> for Stack {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = StackFuture;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Self::Bare(router) => router.poll_ready(cx),
            Self::Layered(stack) => stack.poll_ready(cx),
        }
    }

    #[inline]
    fn call(&mut self, call: ToolCall) -> StackFuture {
        match self {
            Self::Bare(router) => StackFuture::Bare(router.call(call)),
            Self::Layered(stack) => StackFuture::Layered(stack.call(call)),
        }
    }
}

impl Future for StackFuture {
    type Output = Result<ToolOutcome, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Bare(future) => Pin::new(future).poll(cx),
            Self::Layered(future) | Self::Recovered(future) => future.as_mut().poll(cx),
            Self::Observed(observation, outcome) => {
                ready!(observation.as_mut().poll(cx));
                outcome
                    .take()
                    .map_or(Poll::Pending, |it| Poll::Ready(Ok(it)))
            }
        }
    }
}
