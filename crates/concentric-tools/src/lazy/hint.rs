use concentric_core::{Refusal, Str, ToolCall, ToolOutcome};
use pin_project_lite::pin_project;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower_layer::Layer;
use tower_service::Service;

type Say = dyn Fn(&ToolCall) -> Option<Str> + Send + Sync;

/// A layer of tool calls: says of a call that was not offered how to have it offered.
#[derive(Clone)]
pub(crate) struct HintLayer(Arc<Say>);

impl HintLayer {
    pub(crate) fn new(say: impl Fn(&ToolCall) -> Option<Str> + Send + Sync + 'static) -> Self {
        Self(Arc::new(say))
    }
}

impl<S> Layer<S> for HintLayer {
    type Service = Hint<S>;

    fn layer(&self, inner: S) -> Hint<S> {
        Hint {
            inner,
            say: Arc::clone(&self.0),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Hint<S> {
    inner: S,
    say: Arc<Say>,
}

impl<S> Service<ToolCall> for Hint<S>
where
    S: Service<ToolCall, Response = ToolOutcome>,
{
    type Response = ToolOutcome;
    type Error = S::Error;
    type Future = HintFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let hint = match call.refusal() {
            Some(Refusal::NotOffered(_)) => (self.say)(&call),
            _ => None,
        };
        HintFuture {
            inner: self.inner.call(call),
            hint,
        }
    }
}

pin_project! {
    pub(crate) struct HintFuture<F> {
        #[pin]
        inner: F,
        hint: Option<Str>,
    }
}

impl<F, E> Future for HintFuture<F>
where
    F: Future<Output = Result<ToolOutcome, E>>,
{
    type Output = Result<ToolOutcome, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut outcome = ready!(this.inner.poll(cx))?;
        if let Some(hint) = this.hint.take() {
            outcome.content = hint.into();
        }
        Poll::Ready(Ok(outcome))
    }
}
