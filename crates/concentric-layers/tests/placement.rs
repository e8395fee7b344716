//! Built-in layers that stand where their docs say that they must not: what fails, and when.
//!
//! What does not compile is in `tests/ui/tests/fail/placement_*.rs`.
#![cfg(feature = "full")]
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Error, ErrorKind, ThreadId,
    capability::{Fault, Table},
};
use concentric_layers::{
    BudgetLayer,
    budget::{Budget, Limits},
    session::{SessionTarget, Sessions},
};
use concentric_test::{ScriptedModel, ScriptedTools};
use serde_json::json;
use tower::{Layer, ServiceBuilder, ServiceExt};

fn talker() -> ScriptedModel {
    ScriptedModel::new().text("Yes.").repeat()
}

fn no_tools() -> AgentLayer<ScriptedTools> {
    AgentLayer::new(ScriptedTools::new())
}

/// Calls the agent, which fails before the model is called; the error names both layers.
async fn assert_wrong(agent: BoxModel, model: &ScriptedModel, names: [&str; 2]) {
    let error = agent.oneshot(ChatRequest::user("hi")).await.unwrap_err();
    assert_names(&error, names);
    assert_eq!(model.calls(), 0);
}

fn assert_names(error: &Error, names: [&str; 2]) {
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    for name in names {
        assert!(error.message().contains(name), "{error}");
    }
}

// ---- budgets ----

#[tokio::test]
async fn a_budget_that_charges_nothing_fails_the_first_call() {
    let model = talker();
    for limits in [
        Limits::new().money(1),
        Limits::new().total_tokens(1),
        Limits::new().model_calls(1),
        Limits::new().time_ms(1),
    ] {
        let budget = BudgetLayer::new(limits);
        let agent = ServiceBuilder::new()
            .layer(budget.run())
            .layer(no_tools())
            .service(model.clone());
        let names = ["RunBudgetLayer", "ModelBudgetLayer"];
        assert_wrong(BoxModel::new(agent), &model, names).await;
    }
}

#[tokio::test]
async fn a_budget_of_the_host_that_is_not_charged_fails_the_call() {
    let model = talker();
    let agent = ServiceBuilder::new()
        .layer(BudgetLayer::new(Limits::new()).run())
        .layer(no_tools())
        .service(model.clone());
    let mut request = ChatRequest::user("hi");
    let tenant = Budget::new(Limits::new().money(1));
    request.context.provide(tenant);
    let error = agent.clone().oneshot(request).await.unwrap_err();
    assert_names(&error, ["RunBudgetLayer", "ModelBudgetLayer"]);
    // Without any limit, there is nothing to charge.
    agent.oneshot(ChatRequest::user("hi")).await.unwrap();
}

#[tokio::test]
async fn a_budget_of_tool_calls_needs_no_layer_around_the_model() {
    let agent = ServiceBuilder::new()
        .layer(BudgetLayer::new(Limits::new().tool_calls(1)).run())
        .layer(no_tools())
        .service(talker());
    agent.oneshot(ChatRequest::user("hi")).await.unwrap();
}

#[tokio::test]
async fn a_model_that_charges_no_budget_fails_the_first_call() {
    let model = talker();
    let budget = BudgetLayer::new(Limits::new().money(1));
    let agent = ServiceBuilder::new()
        .layer(no_tools())
        .layer(budget.model())
        .service(model.clone());
    let names = ["RunBudgetLayer", "ModelBudgetLayer"];
    assert_wrong(BoxModel::new(agent), &model, names).await;
}

#[tokio::test]
async fn a_model_call_that_is_charged_twice_fails() {
    let model = talker();
    let budget = BudgetLayer::new(Limits::new().model_calls(5));
    let agent = ServiceBuilder::new()
        .layer(budget.run())
        .layer(no_tools())
        .layer(budget.model())
        // An agent in the model's place, whose own calls are charged.
        .layer(no_tools())
        .layer(budget.model())
        .service(model.clone());
    let names = ["ModelBudgetLayer", "ModelBudgetLayer"];
    assert_wrong(BoxModel::new(agent), &model, names).await;
}

#[test]
fn a_table_finds_a_budget_that_is_not_whole() {
    let budget = BudgetLayer::new(Limits::new());
    let faults = |table: Table| match table.check() {
        Ok(()) => Vec::new(),
        Err(faults) => faults.faults().to_vec(),
    };
    let run = || Table::new().with(&budget.run());
    assert!(matches!(faults(run())[..], [Fault::Unused { .. }]));
    assert_eq!(faults(run().with(&budget.model())), []);
    let model = Table::new().with(&budget.model());
    assert!(matches!(faults(model)[..], [Fault::Missing { .. }]));
    let twice = run().with(&budget.model()).with(&budget.model());
    assert!(matches!(faults(twice)[..], [Fault::Inside { .. }]));
    let swapped = Table::new().with(&budget.model()).with(&budget.run());
    assert!(faults(swapped).len() >= 2);
}

// ---- sub-agents ----

#[tokio::test]
async fn a_session_as_a_tool_is_no_part_of_the_run_around_it() {
    let inner = Sessions::new(BoxModel::new(no_tools().layer(talker())));
    let target = SessionTarget::new(ThreadId::new("inner"));
    let inner = inner.oneshot(target).await.unwrap();
    let tools = ScriptedTools::new().tool("ask", move |call| {
        let inner = inner.clone();
        async move {
            let request = ChatRequest::user("hi").with_context(call.context.child().build());
            let answer = inner.oneshot(request).await.unwrap();
            concentric_core::ToolOutcome::done(answer.text().await.unwrap())
        }
    });
    let model = ScriptedModel::new()
        .tool_call("ask", json!({}))
        .then()
        .text("Done.");
    let outer = BoxModel::new(AgentLayer::new(tools).layer(model));
    let outer = Sessions::new(outer);
    let target = SessionTarget::new(ThreadId::new("outer"));
    let outer = outer.oneshot(target).await.unwrap();
    let answer = outer.clone().oneshot(outer.user("hi")).await.unwrap();
    answer.collect().await.unwrap();
    assert_eq!(outer.history().len(), 3);
}
