//! The cases of CONFORMANCE.md that are about layers, events and ends; one test each.

/// A layer that logs when its call begins and when it has its answer.
macro_rules! logs {
    ($log:expr, $name:literal) => {{
        let log = $log.clone();
        from_fn(move |request: ChatRequest, mut next: Next| {
            let log = log.clone();
            async move {
                log.add(concat!($name, "-in"));
                let response = next.run(request).await;
                log.add(concat!($name, "-out"));
                response
            }
        })
    }};
}

/// A layer that logs how its call ended.
macro_rules! ends {
    ($log:expr, $name:literal) => {{
        let log = $log.clone();
        on_end(move |end: End<'_>| log.add(format!("{}: {}", $name, end_name(end))))
    }};
}

mod cancel;
mod foundations;
mod ordering;
mod outcomes;
mod retries;
mod streaming;

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, FinishReason, Outcome, ToolCall, ToolOutcome, ToolSpec, Usage,
};
use concentric_layers::{
    CommitLayer, Emit, End, FallbackLayer, Next, NextTool, RequestDefaultsLayer, RetryModel,
    Transform, TransformLayer, from_fn, inspect_events, map_events, on_end, tool_from_fn,
};
use concentric_test::{
    Gate, ScriptedModel, ScriptedTools, TestEnvironment, assert_fails, assert_finishes,
    collect_events, shape, text_of,
};
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::{
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};

fn request() -> ChatRequest {
    ChatRequest::user("hi")
}

fn server_error() -> Error {
    Error::new(ErrorKind::Server, "it broke").with_code("E7")
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, entry: impl Into<String>) {
        self.0.lock().expect("not poisoned").push(entry.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }
}

fn end_name(end: End<'_>) -> String {
    match end {
        End::Finished(finish) => match &finish.outcome {
            Outcome::Completed => "completed".to_owned(),
            Outcome::Interrupted => "interrupted".to_owned(),
            Outcome::Halted { .. } => "halted".to_owned(),
            Outcome::Aborted { .. } => "aborted".to_owned(),
            Outcome::StepLimit => "step limit".to_owned(),
            other => format!("{other:?}"),
        },
        End::Failed(error) => format!("failed: {}", error.kind()),
        End::Truncated => "truncated".to_owned(),
        End::Dropped => "dropped".to_owned(),
    }
}

fn texts<F>(f: F) -> TransformLayer<impl Fn(&ChatRequest) -> Texts<F> + Clone>
where
    F: FnMut(&str) -> Emit + Clone,
{
    TransformLayer::new(move |_| Texts(f.clone()))
}

/// Repeats a call without pauses, with this number of attempts.
fn retry(attempts: u32) -> RetryModel {
    RetryModel::new(attempts).backoff(Duration::ZERO, Duration::ZERO)
}

/// A transform that is a function of a text delta.
#[derive(Clone)]
struct Texts<F>(F);

impl<F: FnMut(&str) -> Emit> Transform for Texts<F> {
    fn event(&mut self, event: Event) -> Emit {
        match event {
            Event::TextDelta(text) => (self.0)(&text),
            other => Emit::One(other),
        }
    }
}
