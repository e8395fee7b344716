//! Adds a layer to a plain stack, where it checks its declaration as the built-in layers do.

use concentric_core::{ChatRequest, Declares, Error};
use futures_util::future::Either;
use std::{
    future::{Ready, ready},
    marker::PhantomData,
    task::{Context, Poll},
};
use tower::{Layer, Service};

#[derive(Clone)]
pub(crate) struct Enters<L>(pub(crate) L);

impl<S, L> Layer<S> for Enters<L>
where
    L: Layer<S>,
{
    type Service = Entering<L::Service, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Entering(self.0.layer(inner), PhantomData)
    }
}

impl<L> Declares for Enters<L>
where
    L: Declares,
{
    type Capabilities = L::Capabilities;
}

pub(crate) struct Entering<S, L>(S, PhantomData<fn() -> L>);

impl<S, L> Clone for Entering<S, L>
where
    S: Clone,
{
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<S, L> Service<ChatRequest> for Entering<S, L>
where
    S: Service<ChatRequest, Error = Error>,
    L: Declares,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Either<S::Future, Ready<Result<S::Response, Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        match request.context.enter::<L>() {
            Ok(()) => Either::Left(self.0.call(request)),
            Err(error) => Either::Right(ready(Err(error.into()))),
        }
    }
}
