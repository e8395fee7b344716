//! Budgets: leases by themselves, and one test per row of [`concentric_layers::budget`]'s tables.

mod agent_tools;
mod interrupts;
mod leases;
mod model_call;
mod parts;
mod resumed;
mod runs;
mod shared;
mod tool_call;

use concentric_core::{
    AgentLayer, Answer, BoxModel, CallId, ChatRequest, ChatResponse, Clearance, Context, Error,
    ErrorKind, EventStream, Layers, Media, MediaSource, Message, ModelService, Outcome, Part,
    PartKind, Reply, Role, ToolCall, ToolCallPart, ToolOutcome, ToolSpec, ToolStatus, Transcript,
    Turn, Usage, context::Random, machine::RunState,
};
use concentric_layers::budget::{
    Amounts, BUDGET, Budget, BudgetPlugin, Dimension, Limits, OVER_BUDGET, OverBudget,
};
use concentric_layers::{Next, from_fn};
use concentric_test::{
    Pace, ScriptedModel, ScriptedTools, SeededRandom, Spurious, Strict, TestEnvironment,
    check_layer, drop_at_each_wait, watched,
};
use concentric_tools::{Toolset, agent_tool};
use futures_util::{FutureExt, StreamExt, future::join_all};
use serde_json::{Value, json};
use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio_test::task;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

fn money(amount: u64) -> Amounts {
    Amounts::new().money(amount)
}

fn limit(amount: u64) -> Budget {
    Budget::new(Limits::new().money(amount))
}

/// A budget of any size, which charges a call 100 of money beside its tokens; each is thought to need
/// 30 tokens of input and 20 of output.
fn layer() -> BudgetPlugin {
    BudgetPlugin::new(Limits::new())
        .estimate(|_| Usage::new(30, 20))
        .price(|_| 100)
}

/// A request that spends of the budget.
fn request(budget: &Budget) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    request.context.provide(budget.clone());
    request
}

async fn run<S>(agent: &S, request: ChatRequest) -> Answer
where
    S: ModelService<Error: std::fmt::Debug> + Clone,
{
    let answer = agent.clone().oneshot(request).await.unwrap();
    answer.collect().await.unwrap()
}

/// An agent that searches until it is out of budget; the budget's layers at every place.
fn searcher(budget: &BudgetPlugin, model: &ScriptedModel) -> BoxModel {
    let agent = Layers::new()
        .with(budget.run())
        .layer(AgentLayer::new(search(budget)))
        .with(budget.model())
        .service(model.clone());
    BoxModel::new(agent)
}

fn object(name: &'static str) -> ToolSpec {
    ToolSpec::new(name, "", json!({"type": "object"}))
}

fn search(budget: &BudgetPlugin) -> ScriptedTools {
    let found = service_fn(async |_: ToolCall| Ok::<_, Error>(ToolOutcome::done("found")));
    ScriptedTools::new().service(object("search"), budget.tool().layer(found))
}

fn searches() -> ScriptedModel {
    ScriptedModel::new()
        .tool_call("search", json!({"for": "x"}))
        .usage(Usage::new(10, 10))
        .repeat()
}

/// A state as another process reads it.
fn written(answer: Answer) -> RunState {
    assert_eq!(answer.finish.outcome, Outcome::Interrupted);
    let json = answer.finish.state.unwrap().to_json().unwrap();
    RunState::from_json(json.as_bytes(), json.len()).unwrap()
}

fn reply(state: RunState, reply: impl Fn(concentric_core::InterruptId) -> Reply) -> ChatRequest {
    let asked = state.interrupts().into_iter();
    let replies = asked.map(|asked| reply(asked.id.clone())).collect();
    ChatRequest::resume(state, replies)
}

fn statuses(answer: &Answer) -> Vec<ToolStatus> {
    let transcript = answer.finish.transcript.as_ref().unwrap();
    let results = transcript.iter().flat_map(Turn::results);
    results.map(|result| result.outcome.status).collect()
}

/// A run around `inner`, which is called as its tool `ask` until the outer run is out of budget.
fn around(budget: &BudgetPlugin, outer: &ScriptedModel, inner: BoxModel) -> BoxModel {
    let tools = Toolset::new().tool(agent_tool("ask", "", inner));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(AgentLayer::new(tools))
        .layer(budget.model())
        .service(outer.clone());
    BoxModel::new(agent)
}

fn asks() -> ScriptedModel {
    ScriptedModel::new()
        .tool_call("ask", json!({"task": "do it"}))
        .then()
        .text("done")
}
