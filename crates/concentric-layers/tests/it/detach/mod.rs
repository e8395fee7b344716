//! One test per row of [`concentric_layers::detach`]'s table, and one for each of its bounds.

mod bounds;
mod cancel;
mod contract;
mod disconnect;
mod ends;
mod inside;
mod shutdown;
mod stacks;

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, Outcome, ToolCall, ToolOutcome, Usage, store::Resumable,
};
use concentric_layers::{DetachLayer, detach::Consumer};
use concentric_layers::{
    End,
    on_end::{OnEndLayer, on_end},
};
use concentric_test::{
    Gate, LogCapture, Pace, ScriptedModel, ScriptedTools, Spurious, TestEnvironment, check_layer,
    drop_at_each_wait, layer_check,
};
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::json;
use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};
use tokio::{runtime, task::yield_now};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Writes down how the answers at this place end.
    fn ends(
        &self,
        place: &'static str,
    ) -> OnEndLayer<impl Fn(End<'_>) + Clone + Send + Sync + use<>> {
        let log = self.clone();
        on_end(move |end: End<'_>| {
            log.add(match end {
                End::Finished(finish) => match &finish.outcome {
                    Outcome::Completed => format!("{place}: completed"),
                    Outcome::Interrupted => format!("{place}: interrupted"),
                    Outcome::Aborted { reason } => format!("{place}: aborted, {reason:?}"),
                    other => format!("{place}: {other:?}"),
                },
                End::Failed(error) => format!("{place}: failed, {error}"),
                End::Truncated => format!("{place}: truncated"),
                End::Dropped => format!("{place}: dropped"),
            });
        })
    }
}

/// A layer, what is logged around it, and the agent of it all.
struct Scene {
    layer: DetachLayer,
    log: Log,
    tools: ScriptedTools,
    model: ScriptedModel,
    environment: TestEnvironment,
}

impl Scene {
    fn new(model: ScriptedModel) -> Self {
        Self {
            layer: DetachLayer::new(),
            log: Log::default(),
            tools: ScriptedTools::new(),
            model,
            environment: TestEnvironment::new(),
        }
    }

    /// A run that says a word, and waits at the gate.
    fn waiting(gate: &Gate) -> Self {
        Self::new(
            ScriptedModel::new()
                .text("Well,")
                .wait(gate)
                .text(" yes.")
                .repeat(),
        )
    }

    fn layer(self, layer: DetachLayer) -> Self {
        Self { layer, ..self }
    }

    fn tools(self, tools: ScriptedTools) -> Self {
        Self { tools, ..self }
    }

    fn agent(&self) -> BoxModel {
        let agent = ServiceBuilder::new()
            .layer(self.log.ends("outside"))
            .layer(self.layer.clone())
            .layer(self.log.ends("inside"))
            .layer(AgentLayer::new(self.tools.clone()))
            .service(self.model.clone());
        BoxModel::new(agent)
    }

    fn request(&self) -> ChatRequest {
        self.environment.request("hi")
    }

    async fn start(&self) -> (Context, EventStream) {
        let request = self.request();
        let context = request.context.clone();
        let answer = self.agent().oneshot(request).await.unwrap();
        (context, answer.body)
    }

    /// Begins a run whose consumer leaves at once.
    async fn leave(&self) -> Context {
        let (context, body) = self.start().await;
        drop(body);
        context
    }

    /// How many runs go on without their consumers.
    fn detached(&self) -> usize {
        64 - self.layer.available()
    }
}

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// Polls `future` this often, with all that is spawned in between.
async fn poll_times<F: Future>(future: &mut Pin<Box<F>>, times: usize) -> Option<F::Output> {
    for _ in 0..times {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        yield_now().await;
    }
    None
}
