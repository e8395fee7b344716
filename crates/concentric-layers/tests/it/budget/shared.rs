//! Budgets that processes share: each plugin acts as a process.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Error, NoTools, Outcome, Usage,
    store::{Amounts, BudgetStore, Limits, SharedBudget, Tenant},
};
use concentric_layers::budget::{BudgetPlugin, OVER_BUDGET};
use concentric_store::{MemoryStore, Options};
use concentric_test::{ScriptedModel, TestEnvironment};
use std::{sync::Arc, time::Duration};
use tower::{ServiceBuilder, ServiceExt};

fn store(env: &TestEnvironment) -> MemoryStore {
    MemoryStore::with_options(Options::new().clock(env.clock().clone()))
}

fn all() -> Vec<SharedBudget> {
    vec![
        SharedBudget::new("tenant", Limits::new().money(1_000)),
        SharedBudget::new("key", Limits::new().money(500)),
    ]
}

/// A token of the output costs 10.
fn plugin(store: &MemoryStore) -> BudgetPlugin {
    BudgetPlugin::new(Limits::new())
        .price(|usage| usage.output_tokens().unwrap_or(0) * 10)
        .estimate(|_| Usage::new(1, 20))
        .shared(Arc::new(store.clone()), |_| all())
        .lease(Duration::from_secs(60))
}

fn agent(store: &MemoryStore, model: ScriptedModel) -> BoxModel {
    let plugin = plugin(store);
    let agent = ServiceBuilder::new()
        .layer(plugin.run())
        .layer(AgentLayer::new(NoTools))
        .layer(plugin.model())
        .service(model);
    BoxModel::new(agent)
}

async fn run(agent: &BoxModel, request: ChatRequest) -> Result<Outcome, Error> {
    let answer = agent.clone().oneshot(request).await?.collect().await?;
    Ok(answer.finish.outcome)
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn spent(store: &MemoryStore) -> [(u64, u64); 2] {
    settle().await;
    let mut all_spent = [(0, 0); 2];
    for (found, budget) in all_spent.iter_mut().zip(all()) {
        let [spent, reserved] = store.spent(Tenant::default(), budget).await.unwrap();
        *found = (spent.money, reserved.money);
    }
    all_spent
}

#[tokio::test]
async fn processes_share_a_budget() {
    let env = TestEnvironment::new();
    let store = store(&env);
    let model = || {
        ScriptedModel::new()
            .text("hi")
            .usage(Usage::new(1, 15))
            .repeat()
    };
    let [one, other] = [agent(&store, model()), agent(&store, model())];
    for agent in [&one, &other, &one] {
        let outcome = run(agent, env.request("hi")).await.unwrap();
        assert!(matches!(outcome, Outcome::Completed));
        settle().await;
    }
    assert_eq!(spent(&store).await, [(450, 0); 2]);
    // Another one needs 200 by its estimate.
    match run(&other, env.request("hi")).await.unwrap() {
        Outcome::Halted { reason, .. } => assert!(reason.contains("`key`"), "{reason}"),
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(spent(&store).await, [(450, 0); 2]);
}

#[tokio::test]
async fn a_refused_call_names_the_budget_and_has_the_code() {
    let env = TestEnvironment::new();
    let store = store(&env);
    let call = Amounts::new().money(400);
    let lease = Duration::from_secs(60);
    let reserved = store.reserve(Tenant::default(), "x".into(), all(), call, lease);
    assert!(reserved.await.unwrap().is_ok());
    let plugin = plugin(&store);
    let model = ServiceBuilder::new()
        .layer(plugin.run())
        .layer(plugin.model())
        .service(ScriptedModel::new().text("hi"));
    let error = model
        .oneshot(env.request("hi"))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.code(), Some(OVER_BUDGET), "{error:?}");
    assert_eq!(spent(&store).await, [(0, 400); 2]);
}

#[tokio::test]
async fn a_dropped_call_settles_what_it_may_have_used() {
    let env = TestEnvironment::new();
    let store = store(&env);
    // Dropped before the model is called.
    let agent = agent(&store, ScriptedModel::new().text("hi").text("ho").repeat());
    drop(agent.clone().oneshot(env.request("hi")));
    assert_eq!(spent(&store).await, [(0, 0); 2]);
    // Dropped while the answer streams.
    let answer = agent.clone().oneshot(env.request("hi")).await.unwrap();
    assert_eq!(spent(&store).await, [(0, 200); 2]);
    drop(answer);
    assert_eq!(spent(&store).await, [(200, 0); 2]);
}

#[tokio::test]
async fn a_call_that_is_dropped_as_it_is_granted_is_not_charged() {
    let env = TestEnvironment::new();
    let store = store(&env);
    let agent = agent(&store, ScriptedModel::new().text("hi").repeat());
    let mut call = tokio_test::task::spawn(agent.oneshot(env.request("hi")));
    assert!(call.poll().is_pending());
    // The store grants it, and the call does not read that.
    settle().await;
    assert!(call.is_woken());
    assert_eq!(spent(&store).await, [(0, 200); 2]);
    drop(call);
    assert_eq!(spent(&store).await, [(0, 0); 2]);
}

#[tokio::test]
async fn a_call_that_was_not_sent_is_not_charged() {
    let env = TestEnvironment::new();
    let store = store(&env);
    let error =
        Error::new(concentric_core::ErrorKind::Connection, "none").with_code("not_connected");
    let agent = agent(&store, ScriptedModel::new().error(error));
    run(&agent, env.request("hi")).await.unwrap_err();
    assert_eq!(spent(&store).await, [(0, 0); 2]);
}
