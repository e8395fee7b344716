//! The first step of a run and those after it.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, Context,
    CustomEvent, Error, ErrorKind, Event, FinishReason, NoTools, Phase, SystemSegment,
    ToolCallEvent, ToolCallPart, ToolChoice, Usage,
    agent::{StepDecision, StepDraft, StepGate},
};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use std::{
    future::pending,
    sync::{Arc, Mutex},
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

/// A gate that edits the system text before each step, and forces a call of `look` in the steps of `Self`.
struct Forces(&'static [u32]);

impl StepGate for Forces {
    fn name(&self) -> &str {
        "forces"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        step.system_mut().push(SystemSegment::new("More."));
        if self.0.contains(&step.step) {
            step.options_mut().tool_choice = Some(ToolChoice::Tool("look".into()));
        }
        Ok(StepDecision::Continue)
    }
}

/// The tool choices of the steps of a run with the choice `given`, whose model calls a tool in three steps.
async fn choices(given: ToolChoice, forced: &'static [u32]) -> Vec<Option<ToolChoice>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let by_model = seen.clone();
    let model = service_fn(move |request: ChatRequest| {
        let choice = request.options.tool_choice.clone();
        by_model.lock().unwrap().push(choice);
        let step = request.context.step();
        let events = match step {
            0..3 => {
                let call = ToolCallPart::new(CallId::new(format!("c{step}")), "look", "{}");
                let call = Event::ToolCall(Box::new(ToolCallEvent::new(call, None)));
                let finish = Event::finish(FinishReason::ToolCalls, Usage::default());
                vec![call, finish]
            }
            _ => vec![Event::finish(FinishReason::Stop, Usage::default())],
        };
        async { Ok::<_, Error>(ChatResponse::new(stream::iter(events.into_iter().map(Ok)))) }
    });
    let agent = AgentLayer::new(NoTools).gate(Forces(forced)).layer(model);
    let mut request = ChatRequest::user("hi");
    request.options_mut().tool_choice = Some(given);
    let response = agent.oneshot(request).await.unwrap();
    response
        .body
        .for_each(async |event| drop(event.unwrap()))
        .await;
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[tokio::test]
async fn a_choice_forces_calls_until_the_first_round() {
    let look = || Some(ToolChoice::Tool("look".into()));
    for given in [ToolChoice::Required, ToolChoice::Tool("other".into())] {
        let first = Some(given.clone());
        assert_eq!(choices(given, &[]).await, [first, None, None, None]);
    }
    for given in [ToolChoice::Auto, ToolChoice::None] {
        let all = [(); 4].map(|()| Some(given.clone()));
        assert_eq!(choices(given, &[]).await, all);
    }
    // A gate's choice applies until the next round.
    assert_eq!(
        choices(ToolChoice::Required, &[0, 2]).await,
        [look(), None, look(), None]
    );
    assert_eq!(
        choices(ToolChoice::Auto, &[1, 2]).await,
        [Some(ToolChoice::Auto), look(), look(), None]
    );
}
