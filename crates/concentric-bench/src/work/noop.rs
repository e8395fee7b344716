//! The tool of the workload, and the layers that count its calls.

use super::{counters, script::TOOL};
use crate::bare;
use concentric_core::{
    BoxError, Error, ToolCall, ToolOutcome, ToolService, ToolStatus,
    hooks::{self, BeforeCall, Flow, Hooks, Interest},
};
use concentric_layers::{NextTool, tool_from_fn};
use concentric_tools::{Approval, Json, Toolset, tool};
use pin_project_lite::pin_project;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tower::{ServiceBuilder, layer::layer_fn};
use tower_service::Service;

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    i: u64,
}

#[derive(Serialize)]
struct Done {
    ok: bool,
    i: u64,
}

/// A toolset with the tool.
pub(super) fn toolset() -> Toolset {
    let noop = tool(TOOL, "Does nothing.", |Arguments { i }| async move {
        Json(Done { ok: true, i })
    });
    Toolset::new().tool(noop)
}

/// A toolset with a gate that allows the tool, and hooks around each call.
pub(super) fn gated() -> Toolset {
    // A rule for a tool that is not in the toolset is an error.
    let another = tool("another", "Does nothing.", |Arguments { i }| async move {
        Json(Done { ok: true, i })
    });
    let approval = Approval::for_tools("another").allow(TOOL);
    toolset()
        .tool(another)
        .gate(approval)
        .layer(hooks::tool(Arc::new(Look)))
}

/// A toolset with a gate that requires approval of each call.
pub(super) fn asking() -> Toolset {
    toolset().gate(Approval::for_tools(TOOL))
}

/// Hooks that inspect each call and its outcome.
struct Look;

impl Hooks for Look {
    fn id(&self) -> &str {
        "look"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_CALL | Interest::AFTER_CALL
    }

    async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        match call.arguments().as_str().is_empty() {
            true => Ok(Flow::deny("The arguments are empty.")),
            false => Ok(Flow::Continue),
        }
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        outcome: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        match outcome.status {
            ToolStatus::Done => Ok(None),
            _ => Err("the tool failed".into()),
        }
    }
}

/// A toolset with five hand-written layers, added in one call as the documentation recommends.
pub(super) fn layered() -> Toolset {
    toolset().layer(
        ServiceBuilder::new()
            .layer_fn(CountTool::<_, 0>)
            .layer_fn(CountTool::<_, 1>)
            .layer_fn(CountTool::<_, 2>)
            .layer_fn(CountTool::<_, 3>)
            .layer_fn(CountTool::<_, 4>)
            .into_inner(),
    )
}

/// A toolset with five hand-written layers, added one by one.
pub(super) fn layered_each() -> Toolset {
    toolset()
        .layer(layer_fn(CountTool::<_, 0>))
        .layer(layer_fn(CountTool::<_, 1>))
        .layer(layer_fn(CountTool::<_, 2>))
        .layer(layer_fn(CountTool::<_, 3>))
        .layer(layer_fn(CountTool::<_, 4>))
}

/// A toolset with five async functions, added one by one.
pub(super) fn functions() -> Toolset {
    toolset()
        .layer(tool_from_fn(count::<0>))
        .layer(tool_from_fn(count::<1>))
        .layer(tool_from_fn(count::<2>))
        .layer(tool_from_fn(count::<3>))
        .layer(tool_from_fn(count::<4>))
}

async fn count<const I: usize>(call: ToolCall, mut next: NextTool) -> Result<ToolOutcome, Error> {
    counters::before_tool::<I>();
    let outcome = next.run(call).await;
    counters::after_tool::<I>();
    outcome
}

/// Increments counter `I` before and after each tool call.
#[derive(Clone, Debug)]
struct CountTool<S, const I: usize>(S);

struct At<const I: usize>;

pin_project! {
    struct CountToolFuture<F, C> {
        #[pin]
        inner: F,
        counter: PhantomData<fn() -> C>,
    }
}

impl<S, const I: usize> Service<ToolCall> for CountTool<S, I>
where
    S: ToolService,
{
    type Response = ToolOutcome;
    type Error = S::Error;
    type Future = CountToolFuture<S::Future, At<I>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        counters::before_tool::<I>();
        CountToolFuture {
            inner: self.0.call(call),
            counter: PhantomData,
        }
    }
}

impl<F, T, E, const I: usize> Future for CountToolFuture<F, At<I>>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(self.project().inner.poll(cx));
        counters::after_tool::<I>();
        Poll::Ready(outcome)
    }
}

/// The tool of the bare stack.
pub(super) async fn bare(call: bare::Call) -> Result<bare::ToolResult, bare::Error> {
    if call.name != TOOL {
        return Err(bare::Error::UnknownTool);
    }
    let Arguments { i } = serde_json::from_str(&call.arguments).map_err(bare::Error::Json)?;
    let content = serde_json::to_string(&Done { ok: true, i }).map_err(bare::Error::Json)?;
    Ok(bare::ToolResult {
        id: call.id,
        content: content.into(),
    })
}
