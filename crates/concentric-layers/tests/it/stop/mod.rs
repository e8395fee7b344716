//! Gates that end a run, and those that don't let it end yet.

mod answer;
mod conditions;
mod errors;
mod loops;
mod more_steps;

use concentric_core::{
    AgentLayer, Answer, Author, CallId, ChatRequest, Error, ErrorKind, Event, Finish, FinishReason,
    Interrupt, InterruptId, ModelService, Outcome, Reply, RunOverrides, SideEffects, Str,
    ToolCallPart, ToolOutcome, ToolStatus, Transcript, Turn, Usage,
    agent::{FinishDecision, StepDecision, StepDraft, StepGate},
    machine::RunState,
};
use concentric_layers::stop::{
    ErrorLimit, Judgement, LoopDetector, MORE_STEPS, OutputConstraint, RejectedAnswer,
    StepApproval, StopWhen, called, called_times, cost, finish_reason, holds, input_tokens,
    output_tokens, steps, total_tokens,
};
use concentric_test::{
    ScriptedModel, ScriptedTools, TestEnvironment, assert_fails, assert_finishes, check_step_gate,
    shape,
};
use serde_json::{Value, json};
use std::{error::Error as _, time::Duration};
use tower::{BoxError, Layer, ServiceExt};

async fn run<S>(agent: &S, request: ChatRequest) -> Answer
where
    S: ModelService<Error: std::fmt::Debug> + Clone,
{
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

/// A model that makes these calls, one in each answer, and then says that it is done.
fn calls<'a>(calls: impl IntoIterator<Item = (&'a str, Value)>) -> ScriptedModel {
    let each = calls.into_iter();
    let model = each.fold(ScriptedModel::new(), |model, (tool, arguments)| {
        model.tool_call(tool, arguments).then()
    });
    model.text("done")
}

/// A model that calls `work` `n` times, with other arguments each time.
fn works(n: usize) -> ScriptedModel {
    calls((0..n).map(|n| ("work", json!({ "n": n }))))
}

fn tools() -> ScriptedTools {
    ScriptedTools::new()
        .answers("work", "ok")
        .answers("a", "ok")
        .answers("b", "ok")
        .tool("fail", async |_| ToolOutcome::failed("it broke"))
        .tool("deny", async |_| ToolOutcome::denied("no"))
        .asks("pay", "paid")
}

/// What comes of a run of `model` with `gate`, how many models and tools were called.
async fn ends(gate: impl StepGate, model: ScriptedModel) -> (Outcome, usize, usize) {
    let tools = tools();
    let agent = AgentLayer::new(tools.clone())
        .gate(gate)
        .layer(model.clone());
    let answer = run(&agent, ChatRequest::user("hi")).await;
    (answer.finish.outcome, model.calls(), tools.calls().len())
}

#[tokio::test(start_paused = true)]
async fn the_gates_keep_their_contract() {
    check_step_gate(|| LoopDetector::new(1)).await;
    check_step_gate(|| LoopDetector::new(1).skip()).await;
    check_step_gate(|| ErrorLimit::new().consecutive(1)).await;
    check_step_gate(|| StopWhen::finish(called("look"))).await;
    check_step_gate(|| StopWhen::halt("enough", steps(2))).await;
    check_step_gate(|| StepApproval::after(1)).await;
    let accepts = async |_, _| Ok(Judgement::Accept);
    check_step_gate(|| OutputConstraint::new("polite", accepts)).await;
}

fn halted(reason: &str) -> Outcome {
    Outcome::Halted {
        reason: reason.into(),
    }
}

/// The state of a run that waits, written down and read again.
fn state_of(answer: &Answer) -> RunState {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    let json = answer.finish.state.as_ref().unwrap().to_json().unwrap();
    RunState::from_json(json.as_bytes(), json.len()).unwrap()
}

fn reply(state: &RunState, reply: impl FnOnce(InterruptId) -> Reply) -> ChatRequest {
    let asked = state.interrupts();
    assert_eq!(asked.len(), 1);
    let replies = vec![reply(asked[0].id.clone())];
    ChatRequest::resume(state.clone(), replies)
}

fn statuses(answer: &Answer) -> Vec<ToolStatus> {
    let transcript = answer.finish.transcript.as_ref().unwrap();
    let results = transcript.iter().flat_map(Turn::results);
    results.map(|result| result.outcome.status).collect()
}

fn total(usage: &Usage) -> u64 {
    usage.input_tokens().unwrap_or(0) + usage.output_tokens().unwrap_or(0)
}

fn says(answers: &[&str]) -> ScriptedModel {
    let mut answers = answers.iter();
    let first = ScriptedModel::new().text(*answers.next().unwrap());
    answers.fold(first, |model, answer| model.then().text(*answer))
}

/// Wants a word in the answer, and gives up at once.
fn short() -> OutputConstraint {
    let judge = |answer: Str, _| async move {
        Ok(match answer.len() {
            ..3 => Judgement::Accept,
            _ => Judgement::complain("That is long."),
        })
    };
    OutputConstraint::new("short", judge).tries(0)
}
