//! Layers over a tool that break one rule each, and the check that finds it.

use concentric_core::{BoxTool, Error, ErrorKind, ToolCall, ToolOutcome, fatal::fatal};
use concentric_test::{Strict, check_tool_layer};
use futures_util::future::BoxFuture;
use std::{
    task::{Context, Poll},
    time::Duration,
};
use tower::{Layer, Service, ServiceExt, layer::layer_fn, service_fn};

type Inner = Strict<BoxTool>;
type Answer = BoxFuture<'static, Result<ToolOutcome, Error>>;

/// A layer from what it does with the inner service and a call.
fn layer(
    f: impl Fn(Inner, ToolCall) -> Answer + Clone + Send + Sync + 'static,
) -> impl Layer<
    Inner,
    Service: Service<ToolCall, Response = ToolOutcome, Error = Error, Future = Answer>
                 + Clone
                 + Send
                 + Sync
                 + 'static,
> {
    layer_fn(move |inner: Inner| {
        let f = f.clone();
        service_fn(move |call| f(inner.clone(), call))
    })
}

#[tokio::test(start_paused = true)]
async fn good_layers_pass() {
    check_tool_layer(tower::limit::ConcurrencyLimitLayer::new(1)).await;
    check_tool_layer(tower::timeout::TimeoutLayer::new(Duration::from_secs(60))).await;
    check_tool_layer(tower::buffer::BufferLayer::<ToolCall>::new(4)).await;
    check_tool_layer(layer(|inner, call| Box::pin(inner.oneshot(call)))).await;
}

/// Calls the service that was not polled ready.
#[derive(Clone)]
struct NeverAsks(Inner);

impl Service<ToolCall> for NeverAsks {
    type Response = ToolOutcome;
    type Error = Error;
    type Future = <Inner as Service<ToolCall>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        self.0.call(call)
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "called without being ready")]
async fn a_layer_that_ignores_inner_readiness() {
    check_tool_layer(layer_fn(NeverAsks)).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer replaced the outcome")]
async fn a_layer_that_replaces_a_failure() {
    let layer = layer(|inner, call| {
        Box::pin(async {
            let outcome = inner.oneshot(call).await?;
            Ok(match outcome.content.text().as_ref() {
                "no" => ToolOutcome::done("fine"),
                _ => outcome,
            })
        })
    });
    check_tool_layer(layer).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the error was lost")]
async fn a_layer_that_swallows_an_error() {
    let layer = layer(|inner, call| {
        Box::pin(async {
            let result = inner.oneshot(call).await;
            result.or_else(|error| match error.suspension() {
                Some(_) => Err(error),
                None => Ok(ToolOutcome::failed("no")),
            })
        })
    });
    check_tool_layer(layer).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer replaced the error")]
async fn a_layer_that_replaces_an_error() {
    let layer = layer(|inner, call| {
        let replaced = |_| Error::new(ErrorKind::Tool, "no");
        Box::pin(async move { inner.oneshot(call).await.map_err(replaced) })
    });
    check_tool_layer(layer).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer replaced the outcome")]
async fn a_layer_that_executes_a_settled_call() {
    let layer = layer(|inner, call| {
        let call = match call.settled() {
            Some(_) => ToolCall::new(call.part().clone(), call.context.clone()),
            None => call,
        };
        Box::pin(inner.oneshot(call))
    });
    check_tool_layer(layer).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer lost the suspension")]
async fn a_layer_that_fails_a_suspended_call() {
    let layer = layer(|inner, call| {
        Box::pin(async {
            let result = inner.oneshot(call).await;
            result.or_else(|error| match error.suspension() {
                Some(_) => Ok(ToolOutcome::failed("no")),
                None => Err(error),
            })
        })
    });
    check_tool_layer(layer).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the run could not be resumed")]
async fn a_layer_that_rejects_a_resumed_call() {
    let layer = layer(|inner, call| {
        Box::pin(async {
            match call.resumed() {
                Some(_) => Err(fatal(Error::new(ErrorKind::Configuration, "no"))),
                None => inner.oneshot(call).await,
            }
        })
    });
    check_tool_layer(layer).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the layer keeps a call that was dropped")]
async fn a_layer_that_calls_in_a_task() {
    let layer = layer(|inner, call| {
        let task = tokio::spawn(inner.oneshot(call));
        Box::pin(async { task.await.unwrap() })
    });
    check_tool_layer(layer).await;
}
