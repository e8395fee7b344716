//! The first step of a run and those after it.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, Context,
    CustomEvent, Error, ErrorKind, Event, FinishReason, NoTools, Phase, ToolCallEvent,
    ToolCallPart, Usage,
    agent::{StepDecision, StepDraft, StepGate},
};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use std::{
    future::pending,
    time::{Duration, SystemTime},
};
use tower::{Layer, ServiceExt, service_fn};

fn emit(context: &Context, name: &'static str) {
    let event = CustomEvent::new(name, Value::Null);
    context.emit(Event::Custom(Box::new(event))).unwrap();
}

/// A gate that emits an event before each step.
struct Emits;

impl StepGate for Emits {
    fn name(&self) -> &str {
        "emits"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        emit(&step.context, "gate");
        Ok(StepDecision::Continue)
    }
}

/// A model that emits an event when it is called and when it is read, requests a call in its first
/// step, and does not answer in the step `silent`.
fn model(silent: Option<u32>) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| async move {
        let context = request.context;
        emit(&context, "called");
        if silent == Some(context.step()) {
            pending::<()>().await;
        }
        let (last, reason) = match context.step() {
            0 => {
                let call = ToolCallPart::new(CallId::new("c"), "look", "{}");
                let call = Event::ToolCall(Box::new(ToolCallEvent::new(call, None)));
                (call, FinishReason::ToolCalls)
            }
            _ => (Event::text("Done."), FinishReason::Stop),
        };
        let finish = Event::finish(reason, Usage::default());
        let events = stream::iter([Event::text("Well."), last, finish]);
        Ok::<_, Error>(ChatResponse::new(events.map(move |event| {
            emit(&context, "read");
            Ok(event)
        })))
    }))
}

fn name(event: Event) -> String {
    match event {
        Event::Custom(event) => event.name.to_string(),
        Event::StepStart(_) => "start".into(),
        Event::TextDelta(_) => "text".into(),
        Event::Finish(finish) => format!("{:?}", finish.outcome),
        _ => "other".into(),
    }
}

/// Runs an agent to its end, and returns the names of the events since its last gate.
async fn run(silent: Option<u32>, context: Context) -> (Vec<String>, Option<Error>) {
    let agent = AgentLayer::new(NoTools).gate(Emits).layer(model(silent));
    let request = ChatRequest::user("hi").with_context(context);
    let mut body = match agent.oneshot(request).await {
        Ok(response) => response.body,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut names = Vec::new();
    while let Some(event) = body.next().await {
        match event {
            Ok(event) => names.push(name(event)),
            Err(error) => return (names, Some(error)),
        }
    }
    (names, None)
}

/// The events from the `step`th gate on.
fn since(names: &[String], step: usize) -> Vec<&str> {
    let mut gates = names.iter().enumerate().filter(|(_, name)| *name == "gate");
    let (at, _) = gates.nth(step).unwrap();
    names[at..].iter().map(String::as_str).collect()
}

#[tokio::test]
async fn every_step_orders_its_emitted_events_alike() {
    let (names, error) = run(None, Context::new()).await;
    assert!(error.is_none());
    for step in 0..2 {
        assert_eq!(
            since(&names, step)[..5],
            ["gate", "start", "called", "text", "read"],
            "step {step} of {names:?}"
        );
    }
}

#[tokio::test]
async fn every_step_is_cancelled_alike() {
    for step in 0..2 {
        let context = Context::new();
        let cancels = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            context.cancel(CancelReason::User);
        };
        let ((names, error), ()) = tokio::join!(run(Some(step), context.clone()), cancels);
        assert!(error.is_none());
        assert_eq!(
            since(&names, step as usize),
            ["gate", "start", "called", "Aborted { reason: User }"],
            "step {step}"
        );
    }
}

#[tokio::test]
async fn every_step_fails_alike_at_its_deadline() {
    for step in 0..2 {
        let deadline = SystemTime::now() + Duration::from_millis(20);
        let context = Context::builder().deadline(deadline).build();
        let (_, error) = run(Some(step), context).await;
        let error = error.unwrap();
        assert_eq!(
            (error.kind(), error.phase()),
            (ErrorKind::Timeout, Some(Phase::Model)),
            "step {step}"
        );
    }
}
