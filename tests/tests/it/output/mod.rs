//! Typed answers: how the model is told, what is made of one that does not fit, and what is kept.

mod composed;

use concentric_core::{
    AgentLayer, Answer, ChatRequest, Context, ErrorKind, Event, FinishReason, Interrupt, Outcome,
    OutputSchema, Reply, Str, Usage,
    agent::{StepDecision, StepDraft, StepGate},
    hooks::Hooks,
    machine::RunState,
};
use concentric_test::{ScriptedModel, assert_fails, check_layer};
use concentric_tools::{
    NoArguments, Output, Toolset, output,
    output::{OutputError, VALUE_COMPLETE, VALUE_FOLLOWS, current_schema},
    tool,
};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    error::Error as _,
    sync::{Arc, Mutex},
};
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt};

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Folder {
    purpose: String,
    #[schemars(range(min = 1))]
    files: u32,
}

const GOOD: &str = r#"{"purpose": "tests", "files": 2}"#;

fn tools() -> Toolset {
    Toolset::new().tool(tool("look", "Looks.", |NoArguments {}| async { "2 files" }).read_only())
}

async fn run(output: &Output<Folder>, model: &ScriptedModel) -> Answer {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools()).gate(output.gate()))
        .layer(output.clone())
        .service(model.clone());
    let request = ChatRequest::user("What is in here?");
    agent
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap()
}

fn looks() -> ScriptedModel {
    ScriptedModel::new()
        .usage(Usage::new(10, 1))
        .tool_call("look", json!({}))
        .then()
}

#[tokio::test]
async fn the_schema_is_sent_beside_the_tools_with_every_call() {
    let folder = output::<Folder>("folder");
    let model = looks().text(GOOD);
    let answer = run(&folder, &model).await;
    let read = folder.of_answer(&answer).unwrap();
    assert_eq!((read.purpose.as_str(), read.files), ("tests", 2));
    for request in model.requests() {
        assert_eq!(
            request.options.output_schema.as_ref(),
            Some(folder.schema())
        );
        assert_eq!(request.tools.len(), 1);
    }
    assert_eq!(answer.transcript().unwrap().len(), 3);
}

#[tokio::test]
async fn separately_it_is_sent_with_one_more_call_that_offers_no_tools_and_counts() {
    let folder = output::<Folder>("folder").separately();
    let model = looks()
        .usage(Usage::new(10, 1))
        .text("There are two files.")
        .then()
        .usage(Usage::new(10, 1))
        .text(GOOD);
    let answer = run(&folder, &model).await;
    assert_eq!(folder.of_answer(&answer).unwrap().files, 2);
    let sent = model.requests();
    let schemas: Vec<_> = sent
        .iter()
        .map(|r| r.options.output_schema.is_some())
        .collect();
    assert_eq!(schemas, [false, false, true]);
    let offered: Vec<_> = sent.iter().map(|request| request.tools.len()).collect();
    assert_eq!(offered, [1, 1, 0]);
    assert_eq!(answer.finish.usage.input_tokens(), Some(30));
    assert_eq!(answer.finish.reason, FinishReason::Stop);
}

/// The texts of the model, each with the schema that is current when it arrives.
#[derive(Clone, Default)]
struct Phases(Arc<Mutex<Seen>>);

type Seen = Vec<(String, Option<Str>)>;

impl Hooks for Phases {
    fn id(&self) -> &str {
        "phases"
    }

    fn event(&self, event: &Event, context: &Context) {
        if let Event::TextDelta(text) = event {
            let schema = current_schema(context);
            self.0.lock().unwrap().push((text.to_string(), schema));
        }
    }

    fn model_event(&self, event: &Event, context: &Context) {
        self.event(event, context);
    }
}

#[tokio::test]
async fn hooks_know_which_answer_is_the_value() {
    for (folder, first) in [
        (output::<Folder>("folder").separately(), None),
        (output::<Folder>("folder"), Some("folder".into())),
    ] {
        let phases = Phases::default();
        let model = ScriptedModel::new().text("Two.").then().text(GOOD);
        let agent = AgentLayer::new(tools())
            .with(phases.clone())
            .with(folder.clone());
        let agent = agent.layer(model.clone());
        // Another run between does not change what this one reads.
        let other = AgentLayer::new(tools()).layer(ScriptedModel::new().text("Hi."));
        other
            .oneshot(ChatRequest::user("hi"))
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let answer = agent.oneshot(ChatRequest::user("?")).await.unwrap();
        assert_eq!(
            folder
                .of_answer(&answer.collect().await.unwrap())
                .unwrap()
                .files,
            2
        );
        let expected = [
            ("Two.".to_owned(), first.clone()),
            ("Two.".to_owned(), first),
            (GOOD.to_owned(), Some("folder".into())),
            (GOOD.to_owned(), Some("folder".into())),
        ];
        assert_eq!(*phases.0.lock().unwrap(), expected);
    }
    assert_eq!(current_schema(&Context::new()), None);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_corrected_a_few_times_and_not_for_ever() {
    for separately in [false, true] {
        let folder = output::<Folder>("folder").tries(1);
        let folder = match separately {
            true => folder.separately(),
            false => folder,
        };
        let first = || match separately {
            true => ScriptedModel::new().text("Two.").then(),
            false => ScriptedModel::new(),
        };
        let zero = r#"{"purpose": "none", "files": 0}"#;
        let model = first().text(zero).then().text(GOOD);
        let answer = run(&folder, &model).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert_eq!(folder.of_answer(&answer).unwrap().files, 2);
        let told = model.requests().last().unwrap().transcript.clone();
        let told = told.last().unwrap().as_message().text();
        assert!(told.contains("`/files`"), "{told}");

        let model = first().text(zero).then().text("Sorry.");
        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(tools()).gate(folder.gate()))
            .layer(folder.clone())
            .service(model.clone());
        let body = agent.oneshot(ChatRequest::user("?")).await.unwrap().body;
        let (events, error) = assert_fails(body).await;
        let resets = events.iter().filter(|event| matches!(event, Event::Reset));
        assert_eq!(resets.count(), 1);
        assert!(
            error
                .message()
                .starts_with("the answer does not match its type"),
            "{error}"
        );
        let output: &OutputError = error.source().unwrap().downcast_ref().unwrap();
        assert_eq!(output.received, "Sorry.");
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Protocol, Some("output"))
        );
    }
}

#[test]
fn a_fence_is_no_part_of_a_value() {
    let folder = output::<Folder>("folder");
    for text in [
        GOOD.to_owned(),
        format!("\n```json\n{GOOD}\n```\n"),
        format!("```\n{GOOD}```"),
    ] {
        assert_eq!(folder.of_text(&text).unwrap().files, 2);
    }
    for text in ["", "```", "``````", "[]", "null", r#"{"purpose": "x"}"#] {
        assert_eq!(folder.of_text(text).unwrap_err().received, text);
    }
}

#[tokio::test]
async fn c016_a_layer_that_changes_the_schema_does_so_either_way() {
    for separately in [false, true] {
        let folder = output::<Folder>("folder");
        let folder = match separately {
            true => folder.separately(),
            false => folder,
        };
        let model = ScriptedModel::new().text("Two.").then().text(GOOD);
        let strip = tower::layer::layer_fn(|inner| {
            ServiceBuilder::new()
                .map_request(|mut request: ChatRequest| {
                    if let Some(schema) = &mut request.options_mut().output_schema {
                        schema.name = "renamed".into();
                    }
                    request
                })
                .service(inner)
        });
        let agent = ServiceBuilder::new()
            .layer(AgentLayer::new(tools()).gate(folder.gate()))
            .layer(folder.clone())
            .layer(strip)
            .service(model.clone());
        let body = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        folder.of_answer(&body.collect().await.unwrap()).unwrap();
        let sent = model.requests();
        let names: Vec<_> = sent
            .iter()
            .filter_map(|request| Some(request.options.output_schema.as_ref()?.name.as_str()))
            .collect();
        assert_eq!(names, vec!["renamed"; 2 - usize::from(separately)]);
    }
}

#[tokio::test]
async fn a_schema_that_the_request_has_is_kept() {
    let folder = output::<Folder>("folder");
    let model = ScriptedModel::new().text("{}");
    let mut request = ChatRequest::user("hi");
    let own = OutputSchema::new("own", json!({"type": "object"}));
    request.options_mut().output_schema = Some(own.clone());
    let agent = folder.layer(model.clone());
    agent.oneshot(request).await.unwrap();
    assert_eq!(model.request(0).options.output_schema, Some(own));
}

#[tokio::test(start_paused = true)]
async fn the_layer_keeps_what_every_layer_keeps() {
    check_layer(output::<Folder>("folder")).await;
    check_layer(output::<Folder>("folder").separately()).await;
}

/// Asks before the last call.
struct Asks;

impl StepGate for Asks {
    fn name(&self) -> &str {
        "asks"
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        let id = step.interrupt_id("asks");
        Ok(match (step.step, step.reply(&id)) {
            (1, None) => StepDecision::ask(Interrupt::new(id, "go on?")),
            _ => StepDecision::Continue,
        })
    }
}

#[tokio::test]
async fn a_run_that_waits_before_its_last_call_goes_on_with_it_elsewhere() {
    let folder = output::<Folder>("folder").separately();
    let model = ScriptedModel::new().text("Two.").then().text(GOOD);
    let agent = || {
        ServiceBuilder::new()
            .layer(AgentLayer::new(tools()).gate(folder.gate()).gate(Asks))
            .layer(folder.clone())
            .service(model.clone())
    };
    let asked = agent().oneshot(ChatRequest::user("hi")).await.unwrap();
    let asked = asked.collect().await.unwrap();
    assert_eq!(asked.finish.outcome, Outcome::Interrupted);
    let json = asked.finish.state.as_ref().unwrap().to_json().unwrap();
    let state = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    let reply = Reply::resolve(state.interrupts()[0].id.clone(), json!({}));
    let request = ChatRequest::resume(state, vec![reply]);
    let mut body = agent().oneshot(request).await.unwrap().body;
    // Which step is for the value is seen without those before it.
    let mut partials = folder.partials::<Value>();
    let mut values = Vec::new();
    while let Some(event) = body.next().await {
        let event = event.unwrap();
        values.extend(partials.push(&event));
        if let Event::Finish(finish) = event {
            assert_eq!(folder.of_finish(&finish).unwrap().files, 2);
        }
    }
    assert_eq!(values, grows()[3..]);
    assert_eq!(model.request(1).tools.len(), 0);
}

// ---- while it is written ----

/// The events of a run, and the partial values, each after the event that it showed with.
async fn events(output: &Output<Folder>, model: &ScriptedModel) -> (Vec<Event>, Vec<Value>) {
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools()).gate(output.gate()))
        .layer(output.clone())
        .service(model.clone());
    let request = ChatRequest::user("What is in here?");
    let mut body = agent.oneshot(request).await.unwrap().body;
    let mut partials = output.partials::<Value>();
    let (mut events, mut values) = (Vec::new(), Vec::new());
    while let Some(event) = body.next().await {
        let event = event.unwrap();
        values.extend(partials.push(&event));
        events.push(event);
    }
    (events, values)
}

/// The steps whose answer is to be the value.
fn steps_for_the_value(events: &[Event]) -> Vec<u32> {
    let mut step = None;
    let mut found = Vec::new();
    for event in events {
        match event {
            Event::StepStart(start) => step = Some(start.step),
            Event::Custom(custom) if custom.name == VALUE_FOLLOWS => {
                assert_eq!(custom.value, json!({"schema": "folder"}));
                found.push(step.unwrap());
            }
            _ => {}
        }
    }
    found
}

fn grows() -> Vec<Value> {
    vec![
        json!({}),
        json!({"purpose": "te"}),
        json!({"purpose": "tests"}),
        json!({"purpose": "tests", "files": 2}),
    ]
}

const PIECES: [&str; 4] = ["{", r#""purpose": "te"#, r#"sts", "files": 2"#, "}"];

#[tokio::test]
async fn events_of_the_separate_call_are_told_from_those_before_it() {
    let folder = output::<Folder>("folder").separately();
    // An answer that is JSON, too, and is not the value.
    let model = looks().text("[1, 2]").then().deltas(PIECES);
    let (events, values) = events(&folder, &model).await;
    assert_eq!(steps_for_the_value(&events), [2]);
    assert_eq!(values, grows());
    let Some(Event::Finish(finish)) = events.last() else {
        panic!("{events:?}");
    };
    assert_eq!(folder.of_finish(finish).unwrap().files, 2);
}

#[tokio::test]
async fn a_value_that_matches_is_an_event_with_object_and_text() {
    for separately in [true, false] {
        let (folder, model) = (output::<Folder>("folder"), looks());
        let (folder, model) = match separately {
            true => (folder.separately(), model.text("Two.").then()),
            false => (folder, model),
        };
        let raw = r#"```json {"purpose": "tests", "files": 2}```"#;
        // Rejected values have no such event.
        let model = model.text("{}").then().text(raw);
        let (events, _) = events(&folder, &model).await;
        let complete = |event: &Event| match event {
            Event::Custom(custom) if custom.name == VALUE_COMPLETE => Some(custom.value.clone()),
            _ => None,
        };
        let values: Vec<_> = events.iter().filter_map(complete).collect();
        let object = json!({"purpose": "tests", "files": 2});
        assert_eq!(
            values,
            [json!({"schema": "folder", "object": object, "raw": raw})]
        );
        assert!(complete(&events[events.len() - 2]).is_some());
    }
}

#[tokio::test]
async fn with_the_schema_in_each_call_each_answer_may_be_the_value() {
    let folder = output::<Folder>("folder");
    let model = ScriptedModel::new()
        .text("I look.")
        .tool_call("look", json!({}))
        .then()
        .deltas(PIECES);
    let (events, values) = events(&folder, &model).await;
    assert_eq!(steps_for_the_value(&events), [0, 1]);
    assert_eq!(values, grows());
}

#[tokio::test]
async fn a_further_try_shows_anew() {
    for separately in [false, true] {
        let folder = output::<Folder>("folder");
        let (folder, first) = match separately {
            true => (
                folder.separately(),
                ScriptedModel::new().text("Two.").then(),
            ),
            false => (folder, ScriptedModel::new()),
        };
        let model = first.text("{").text("}").then().deltas(PIECES);
        let (_, values) = events(&folder, &model).await;
        let expected: Vec<_> = [json!({})].into_iter().chain(grows()).collect();
        assert_eq!(values, expected);
    }
}

#[tokio::test]
async fn what_is_void_shows_anew_and_is_announced_again() {
    let folder = output::<Folder>("folder");
    let model = ScriptedModel::new()
        .text("{")
        .event(Event::Reset)
        .deltas(PIECES);
    let (events, values) = events(&folder, &model).await;
    assert_eq!(steps_for_the_value(&events), [0, 0]);
    let expected: Vec<_> = [json!({})].into_iter().chain(grows()).collect();
    assert_eq!(values, expected);
}

#[tokio::test]
async fn what_another_schema_asks_for_does_not_show() {
    let folder = output::<Folder>("folder");
    let mut request = ChatRequest::user("hi");
    let own = OutputSchema::new("own", json!({"type": "object"}));
    request.options_mut().output_schema = Some(own);
    let model = ScriptedModel::new().deltas(PIECES);
    let mut body = folder.layer(model).oneshot(request).await.unwrap().body;
    let mut partials = folder.partials::<Value>();
    while let Some(event) = body.next().await {
        assert_eq!(partials.push(&event.unwrap()), None);
    }
}
