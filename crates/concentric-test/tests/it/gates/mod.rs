//! Step gates, and the state of a run that waits for their interrupts.

mod decisions;
mod edits;
mod errors;
mod interrupts;
mod live;
mod rounds;
mod slots;

use concentric_core::{
    AgentLayer, Answer, BoxError, CancelReason, ChatRequest, Context, CustomEvent, Environment,
    Error, ErrorKind, Event, Interrupt, InterruptHub, InterruptId, Message, Outcome, Part, Reply,
    ReplyError, Resume, ResumePoint, Role, RunOverrides, Str, ToolSpec, ToolStatus, Turn, Usage,
    agent::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepGate, StepView},
    ask::AskError,
    context::{Clock, Ids, Random, Sleep},
    interrupt,
    machine::RunState,
    state::{Durable, Scope, Slot, Transient},
    store::{Checkpoint, Tenant},
};
use concentric_layers::map_events;
use concentric_test::{ScriptedModel, ScriptedTools};
use serde_json::json;
use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};
use tower::{Layer, ServiceExt};

type Log = Arc<Mutex<Vec<String>>>;

/// A gate from closures.
struct Gate<M, R, F> {
    name: &'static str,
    model: M,
    round: R,
    finish: F,
}

impl<M, R, F> StepGate for Gate<M, R, F>
where
    M: Fn(&mut StepDraft) -> StepDecision + Send + Sync + 'static,
    R: Fn(&StepView) -> RoundDecision + Send + Sync + 'static,
    F: Fn(&mut StepDraft) -> FinishDecision + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.name
    }

    async fn before_step(&self, step: &mut StepDraft) -> Result<StepDecision, BoxError> {
        tokio::task::yield_now().await;
        Ok((self.model)(step))
    }

    async fn before_round(&self, step: &StepView) -> Result<RoundDecision, BoxError> {
        tokio::task::yield_now().await;
        Ok((self.round)(step))
    }

    async fn before_finish(&self, step: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        tokio::task::yield_now().await;
        Ok((self.finish)(step))
    }
}

fn model_gate(
    name: &'static str,
    model: impl Fn(&mut StepDraft) -> StepDecision + Send + Sync + 'static,
) -> impl StepGate {
    Gate {
        name,
        model,
        round: |_: &StepView| RoundDecision::Continue,
        finish: |_: &mut StepDraft| FinishDecision::Finish,
    }
}

fn round_gate(
    name: &'static str,
    round: impl Fn(&StepView) -> RoundDecision + Send + Sync + 'static,
) -> impl StepGate {
    Gate {
        name,
        model: |_: &mut StepDraft| StepDecision::Continue,
        round,
        finish: |_: &mut StepDraft| FinishDecision::Finish,
    }
}

fn finish_gate(
    finish: impl Fn(&mut StepDraft) -> FinishDecision + Send + Sync + 'static,
) -> impl StepGate {
    Gate {
        name: "finish",
        model: |_: &mut StepDraft| StepDecision::Continue,
        round: |_: &StepView| RoundDecision::Continue,
        finish,
    }
}

/// A model that calls a tool in every step.
fn looker() -> (ScriptedModel, ScriptedTools) {
    let model = ScriptedModel::new().tool_call("look", json!({})).repeat();
    (model, ScriptedTools::new().answers("look", "seen"))
}

/// A model that calls a tool once, and then answers.
fn once() -> (ScriptedModel, ScriptedTools) {
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .text("I have looked.")
        .repeat();
    (model, ScriptedTools::new().answers("look", "seen"))
}

async fn try_run(
    layer: AgentLayer<ScriptedTools>,
    model: &ScriptedModel,
    request: ChatRequest,
) -> Result<Answer, Error> {
    let response = layer.layer(model.clone()).oneshot(request).await?;
    Ok(response.collect().await?)
}

async fn run(
    layer: AgentLayer<ScriptedTools>,
    model: &ScriptedModel,
    request: ChatRequest,
) -> Answer {
    try_run(layer, model, request).await.unwrap()
}

fn results(answer: &Answer) -> Vec<(ToolStatus, String)> {
    let turns = answer.transcript().unwrap().iter();
    let results = turns.flat_map(|turn| turn.results().iter());
    results
        .map(|r| (r.outcome.status, r.outcome.content.text().into_owned()))
        .collect()
}

fn state_of(answer: &Answer) -> RunState {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    let json = answer.finish.state.as_ref().unwrap().to_json().unwrap();
    RunState::from_json(json.as_bytes(), json.len()).unwrap()
}

fn user(text: &str) -> Turn {
    Turn::message(Message::new(Role::User, vec![Part::text(text)])).unwrap()
}

fn asks(name: &'static str, log: &Log) -> impl Fn(&StepView) -> Option<Interrupt> + use<> {
    let log = log.clone();
    move |step| {
        let id = step.interrupt_id(name);
        match step.reply(&id) {
            Some(_) => {
                let all = step.replies().len();
                log.lock().unwrap().push(format!("{name} sees {all}"));
                None
            }
            None => Some(Interrupt::new(id, "budget").with_message("May it go on?")),
        }
    }
}

struct Fails;

impl StepGate for Fails {
    fn name(&self) -> &str {
        "fails"
    }

    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        Err("the database is gone".into())
    }
}

struct Asking(Log);

impl StepGate for Asking {
    fn name(&self) -> &str {
        "asking"
    }

    async fn before_round(&self, step: &StepView) -> Result<RoundDecision, BoxError> {
        let id = InterruptId::new(step.context.new_id("ask_"));
        let ask = Interrupt::new(id, "row");
        let reply = step.context.ask(ask, Duration::from_secs(60)).await?;
        self.0.lock().unwrap().push(reply.read::<u8>()?.to_string());
        Ok(RoundDecision::Continue)
    }
}
