//! The middleware of the workload, which counts the bytes of the text or the tool calls.

use super::{Call, Error, Event, Request, ToolResult};
use crate::work::counters;
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower_service::Service;

/// Adds the bytes of the text to counter `I`.
#[derive(Clone, Debug)]
pub(crate) struct CountText<S, const I: usize>(pub(crate) S);

/// Selects counter `I`, because `pin_project!` does not accept const parameters.
pub(crate) struct At<const I: usize>;

pin_project! {
    /// The future and the body of [`CountText`].
    pub(crate) struct Counted<T, C> {
        #[pin]
        inner: T,
        counter: PhantomData<C>,
    }
}

impl<S, B, const I: usize> Service<Request> for CountText<S, I>
where
    S: Service<Request, Response = B>,
{
    type Response = Counted<B, At<I>>;
    type Error = S::Error;
    type Future = Counted<S::Future, At<I>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        Counted {
            inner: self.0.call(request),
            counter: PhantomData,
        }
    }
}

impl<F, B, E, const I: usize> Future for Counted<F, At<I>>
where
    F: Future<Output = Result<B, E>>,
{
    type Output = Result<Counted<B, At<I>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = ready!(self.project().inner.poll(cx))?;
        Poll::Ready(Ok(Counted {
            inner,
            counter: PhantomData,
        }))
    }
}

impl<B, const I: usize> Stream for Counted<B, At<I>>
where
    B: Stream<Item = Result<Event, Error>>,
{
    type Item = B::Item;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<B::Item>> {
        let item = self.project().inner.poll_next(cx);
        if let Poll::Ready(Some(Ok(Event::Text(text)))) = &item {
            counters::text::<I>(text.len());
        }
        item
    }
}

/// Increments counter `I` before and after each tool call.
#[derive(Clone, Debug)]
pub(crate) struct CountTool<S, const I: usize>(pub(crate) S);

pin_project! {
    /// The future of [`CountTool`].
    pub(crate) struct CountToolFuture<F, C> {
        #[pin]
        inner: F,
        counter: PhantomData<C>,
    }
}

impl<S, const I: usize> Service<Call> for CountTool<S, I>
where
    S: Service<Call, Response = ToolResult, Error = Error>,
{
    type Response = ToolResult;
    type Error = Error;
    type Future = CountToolFuture<S::Future, At<I>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, call: Call) -> Self::Future {
        counters::before_tool::<I>();
        CountToolFuture {
            inner: self.0.call(call),
            counter: PhantomData,
        }
    }
}

impl<F, const I: usize> Future for CountToolFuture<F, At<I>>
where
    F: Future<Output = Result<ToolResult, Error>>,
{
    type Output = Result<ToolResult, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.project().inner.poll(cx));
        counters::after_tool::<I>();
        Poll::Ready(result)
    }
}
