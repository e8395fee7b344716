//! The observation of tool calls that have an outcome before they enter their layers.

use concentric_core::{Error, ToolCall, ToolOutcome};
use std::{
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Passes a settled call through `layer`.
pub(crate) fn observe<L>(
    layer: &L,
    call: &ToolCall,
) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>>
where
    L: Layer<Settled>,
    L::Service: Service<ToolCall, Future: Send + 'static>,
{
    let outcome = call.settled()?.clone();
    let observed = layer.layer(Settled(outcome)).call(call.clone());
    Some(Box::pin(async move {
        let _ = observed.await;
    }))
}

/// The innermost service, which is always ready and returns the outcome.
pub(crate) struct Settled(ToolOutcome);

impl Service<ToolCall> for Settled {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = Ready<Result<ToolOutcome, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ToolCall) -> Self::Future {
        ready(Ok(self.0.clone()))
    }
}
