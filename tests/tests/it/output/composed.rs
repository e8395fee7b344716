//! Typed answers beside other gates, and of an agent in another's model place.

use super::{Asks, Folder, GOOD, looks, tools};
use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, Message, Outcome, OutputSchema, Reply, RunOverrides,
    Str, ToolOutcome, Turn,
    agent::{FinishDecision, StepDraft, StepGate},
    machine::RunState,
};
use concentric_layers::{
    Steering,
    stop::{Judgement, OutputConstraint},
};
use concentric_test::{ScriptedModel, ScriptedTools, assert_fails};
use concentric_tools::{Output, Toolset, output};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tower::{BoxError, ServiceBuilder, ServiceExt};

#[derive(Debug, Deserialize, JsonSchema)]
struct Note {
    #[allow(dead_code, reason = "it is what is asked for")]
    text: String,
}

const NOTE: &str = r#"{"text": "two"}"#;

fn folder() -> Output<Folder> {
    output::<Folder>("folder").tries(1)
}

fn note() -> Output<Note> {
    output::<Note>("note").tries(1)
}

/// What texts a model answers, one after the other.
fn says<const N: usize>(texts: [&str; N]) -> ScriptedModel {
    let mut texts = texts.into_iter();
    let first = ScriptedModel::new().text(texts.next().unwrap());
    texts.fold(first, |model, text| model.then().text(text))
}

/// An agent whose model is an agent, both with a typed answer.
fn nested(outer: &Output<Folder>, inner: &Output<Note>, model: &ScriptedModel) -> BoxModel {
    nested_with(
        AgentLayer::new(Toolset::new()),
        AgentLayer::new(tools()),
        outer,
        inner,
        model,
    )
}

fn nested_with(
    outer_loop: AgentLayer<Toolset>,
    inner_loop: AgentLayer<Toolset>,
    outer: &Output<Folder>,
    inner: &Output<Note>,
    model: &ScriptedModel,
) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(outer_loop.gate(outer.gate()))
            .layer(outer.clone())
            .layer(inner_loop.gate(inner.gate()))
            .layer(inner.clone())
            .service(model.clone()),
    )
}

async fn run(agent: &BoxModel, request: ChatRequest) -> Answer {
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

/// The names of the schemas that the model was sent.
fn schemas(model: &ScriptedModel) -> Vec<String> {
    let name = |schema: &OutputSchema| schema.name.to_string();
    let sent = model.requests();
    let sent = sent.iter().map(|sent| sent.options.output_schema.as_ref());
    sent.map(|schema| schema.map_or(String::new(), name))
        .collect()
}

/// The state of a run that waits, as it was written down.
fn written(answer: &Answer) -> String {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    answer.finish.state.as_ref().unwrap().to_json().unwrap()
}

fn resumed(json: &str) -> ChatRequest {
    let state = RunState::from_json(json.as_bytes(), json.len()).unwrap();
    let reply = Reply::resolve(state.interrupts()[0].id.clone(), json!({}));
    ChatRequest::resume(state, vec![reply])
}

// ---- an agent in the model's place ----

#[tokio::test]
async fn an_agent_and_one_in_its_models_place_ask_for_their_values_each() {
    let (outer, inner) = (folder().separately(), note().separately());
    let model = says(["Two files.", NOTE, GOOD]);
    let answer = run(&nested(&outer, &inner, &model), ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(outer.of_answer(&answer).unwrap().files, 2);
    assert_eq!(schemas(&model), ["", "note", "folder"]);
}

#[tokio::test]
async fn the_tries_of_an_agent_in_the_models_place_are_its_own() {
    let (outer, inner) = (folder().separately(), note().separately());
    let model = says(["Two files.", "{}", NOTE, "{}", GOOD]);
    let answer = run(&nested(&outer, &inner, &model), ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(outer.of_answer(&answer).unwrap().files, 2);
    assert_eq!(
        schemas(&model),
        ["", "note", "note", "folder", "folder"],
        "each has one try"
    );
}

#[tokio::test]
async fn an_agent_that_is_asked_for_another_value_answers_with_that() {
    for inner in [note(), note().separately()] {
        let outer = folder();
        let model = says(["{}", GOOD]);
        let answer = run(&nested(&outer, &inner, &model), ChatRequest::user("hi")).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert_eq!(outer.of_answer(&answer).unwrap().files, 2);
        assert_eq!(schemas(&model), ["folder", "folder"]);
    }
}

#[tokio::test]
async fn a_run_with_a_schema_of_its_own_is_not_judged_by_the_agents() {
    for folder in [folder(), folder().separately()] {
        let model = says(["{}"]);
        let agent = BoxModel::new(
            ServiceBuilder::new()
                .layer(AgentLayer::new(tools()).gate(folder.gate()))
                .layer(folder.clone())
                .service(model.clone()),
        );
        let mut request = ChatRequest::user("hi");
        request.options_mut().output_schema = Some(OutputSchema::new("own", json!({})));
        let answer = run(&agent, request).await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert_eq!((model.calls(), answer.text().as_str()), (1, "{}"));
    }
}

/// Has the run make another step after its first.
struct Again;

impl StepGate for Again {
    fn name(&self) -> &str {
        "again"
    }

    async fn before_finish(&self, step: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        Ok(match step.step {
            0 => {
                step.push(Turn::user("Again."));
                FinishDecision::Retry { void: false }
            }
            _ => FinishDecision::Finish,
        })
    }
}

#[tokio::test]
async fn an_agent_in_the_models_place_begins_anew_with_each_call() {
    let inner = note().separately();
    let one = ["Two files.", "{}", NOTE];
    let model = says([one[0], one[1], one[2], one[0], one[1], one[2]]);
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(Toolset::new()).gate(Again))
            .layer(AgentLayer::new(tools()).gate(inner.gate()))
            .layer(inner.clone())
            .service(model.clone()),
    );
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(schemas(&model), ["", "note", "note", "", "note", "note"]);
}

#[tokio::test]
async fn agents_one_in_the_other_go_on_elsewhere_where_each_of_them_stood() {
    let (outer, inner) = (folder().separately(), note().separately());
    let model = says(["Two files.", NOTE, GOOD]);
    let agent = || {
        let outer_loop = AgentLayer::new(Toolset::new()).gate(Asks);
        let inner_loop = AgentLayer::new(tools()).gate(Asks);
        nested_with(outer_loop, inner_loop, &outer, &inner, &model)
    };
    // The inner one waits when it is to call for its value, and then the outer one.
    let asked = run(&agent(), ChatRequest::user("hi")).await;
    assert_eq!(model.calls(), 1);
    let asked = run(&agent(), resumed(&written(&asked))).await;
    assert_eq!(model.calls(), 2);
    let answer = run(&agent(), resumed(&written(&asked))).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(outer.of_answer(&answer).unwrap().files, 2);
    assert_eq!(schemas(&model), ["", "note", "folder"]);
}

/// Has the slot's value be what the first version wrote.
fn as_of_version_1(state: &mut Value, value: &Value) -> usize {
    match state {
        Value::Object(fields) if fields.get("slot") == Some(&json!("concentric/output")) => {
            fields.insert("version".into(), json!(1));
            fields.insert("value".into(), value.clone());
            1
        }
        Value::Object(fields) => fields
            .values_mut()
            .map(|it| as_of_version_1(it, value))
            .sum(),
        Value::Array(items) => items.iter_mut().map(|it| as_of_version_1(it, value)).sum(),
        _ => 0,
    }
}

#[tokio::test]
async fn a_run_that_an_older_version_has_written_down_goes_on() {
    let folder = folder().separately();
    let model = says(["Two files.", "{}"]);
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(tools()).gate(folder.gate()).gate(Asks))
            .layer(folder.clone())
            .service(model.clone()),
    );
    let asked = run(&agent, ChatRequest::user("hi")).await;
    let mut state: Value = serde_json::from_str(&written(&asked)).unwrap();
    let old = json!({"asked": true, "told": 1});
    assert_eq!(as_of_version_1(&mut state, &old), 1);
    let body = agent
        .oneshot(resumed(&state.to_string()))
        .await
        .unwrap()
        .body;
    let (_, error) = assert_fails(body).await;
    assert_eq!(schemas(&model), ["", "folder"]);
    // Its one try was used up.
    assert_eq!(error.code(), Some("output"));
}

// ---- other gates ----

/// Wants a text in the answer, and notes which answers it judges.
fn wants(text: &'static str) -> (OutputConstraint, Arc<Mutex<Vec<Str>>>) {
    let judged = Arc::<Mutex<Vec<Str>>>::default();
    let noted = Arc::clone(&judged);
    let constraint = OutputConstraint::new("wants", move |answer, _| {
        noted.lock().unwrap().push(answer.clone());
        async move {
            Ok(match answer.contains(text) {
                true => Judgement::Accept,
                false => Judgement::complain(format!("It says nothing of {text}.")),
            })
        }
    });
    (constraint, judged)
}

#[tokio::test]
async fn a_constraint_after_it_judges_the_value_and_not_what_is_said_before() {
    let folder = folder().separately();
    let (constraint, judged) = wants("tests");
    let other = r#"{"purpose": "none", "files": 1}"#;
    // It does not fit, it fits and is not as it is to be, it is.
    let model = says(["Two files.", "{}", other, GOOD]);
    let loops = AgentLayer::new(tools());
    let loops = loops.gate(folder.gate()).gate(constraint.tries(1));
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(loops)
            .layer(folder.clone())
            .service(model.clone()),
    );
    let answer = run(&agent, ChatRequest::user("hi")).await;
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(folder.of_answer(&answer).unwrap().files, 2);
    assert_eq!(*judged.lock().unwrap(), [other, GOOD]);
    assert_eq!(schemas(&model), ["", "folder", "folder", "folder"]);
}

#[tokio::test]
async fn a_message_that_comes_as_the_answer_ends_is_answered_before_the_value_is_asked_for() {
    let folder = folder().separately();
    let steering = Steering::new(1);
    let user = steering.clone();
    let tools = ScriptedTools::new().tool("look", move |_| {
        let put = user.when_idle(Message::user("And how many folders?"));
        async move {
            put.map_or(ToolOutcome::failed("full"), |()| {
                ToolOutcome::done("2 files")
            })
        }
    });
    let model = looks()
        .text("Two files.")
        .then()
        .text("One.")
        .then()
        .text(GOOD);
    let agent = BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(tools).gate(folder.gate()))
            .layer(folder.clone())
            .service(model.clone()),
    );
    let gates = RunOverrides::new().step_gate(steering.gate());
    let request = ChatRequest::user("What is in here?").with_overrides(gates);
    let answer = run(&agent, request).await;
    assert_eq!(folder.of_answer(&answer).unwrap().files, 2);
    let sent = model.requests();
    let offered: Vec<_> = sent.iter().map(|request| request.tools.len()).collect();
    assert_eq!(offered, [1, 1, 1, 0]);
    let said = |call: usize| sent[call].transcript.last().unwrap().as_message().text();
    assert_eq!(said(2), "And how many folders?");
    assert!(said(3).starts_with("Now answer with JSON"), "{}", said(3));
}
