use super::ResponseFuture;
use concentric_core::{BoxError, Error, ToolCall, ToolOutcome};
use std::task::{Context, Poll};
use tower_service::Service;

/// Middleware that charges tool calls to the run's [`Budget`](crate::budget::Budget).
///
/// See the [module docs](crate::budget) for an example.
#[derive(Clone, Debug)]
pub struct ToolBudget<S> {
    inner: S,
}

impl<S> ToolBudget<S> {
    pub(in crate::budget) const fn new(inner: S) -> Self {
        Self { inner }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Gets a mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes `self`, returning the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S> Service<ToolCall> for ToolBudget<S>
where
    S: Service<ToolCall, Response = ToolOutcome> + Clone,
    S::Error: Into<BoxError>,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The future waits for the inner service, because a denied call does not reach it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        ResponseFuture::new(self.inner.clone(), call)
    }
}
