use super::ResponseFuture;
use crate::budget::layer::{ModelBudgetLayer, Prices};
use concentric_core::{BoxError, ChatRequest, ChatResponse, Error, Event};
use futures_core::Stream;
use std::task::{Context, Poll};
use tower_service::Service;

/// Middleware that charges model calls to the run's [`Budget`](crate::budget::Budget).
///
/// See the [module docs](crate::budget) for an example.
#[derive(Clone, Debug)]
pub struct ModelBudget<S> {
    inner: S,
    prices: Prices,
}

impl<S> ModelBudget<S> {
    pub(in crate::budget) const fn new(inner: S, prices: Prices) -> Self {
        Self { inner, prices }
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

impl<S, B> Service<ChatRequest> for ModelBudget<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<super::ModelBudgetBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The future waits for the inner service and then reserves the estimate.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        match request.context.enter::<ModelBudgetLayer>() {
            Ok(()) => ResponseFuture::new(self.inner.clone(), request, self.prices.clone()),
            Err(fault) => ResponseFuture::failed(fault.into()),
        }
    }
}
