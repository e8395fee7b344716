//! Agents as tools and in a model's place, where runs are kept in a store.

use concentric_core::{
    AgentLayer, Answer, BoxModel, ChatRequest, Context, ErrorKind, Outcome, PartKind, Reply,
    ThreadId, ToolStatus, interrupt,
    store::{RunStore, Tenant, waiting},
};
use concentric_layers::suspend::SuspendLayer;
use concentric_store::MemoryStore;
use concentric_test::{Pace, ScriptedModel, watched};
use concentric_tools::{Approval, NoArguments, Tool, Toolset, agent_tool, tool, tool_with_context};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;
use tower::{ServiceBuilder, ServiceExt};

/// Runs `test` with doubles of each pace; one that spins fails.
fn at_each_pace<F>(test: impl Fn(Pace) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for pace in Pace::ALL {
        watched(test(pace));
    }
}

/// A model that calls `name`, and then is done.
fn calls(pace: Pace, name: &'static str) -> ScriptedModel {
    ScriptedModel::new()
        .paced(pace)
        .tool_call(name, r#"{"task":"go"}"#)
        .then()
        .text("done")
}

/// An agent whose runs are kept.
fn agent(store: &Arc<MemoryStore>, tools: Toolset, model: ScriptedModel) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::clone(store)))
            .layer(AgentLayer::new(tools))
            .service(model),
    )
}

async fn ask(agent: &BoxModel, request: ChatRequest, thread: &str) -> Answer {
    let context = Context::builder().thread_id(ThreadId::new(thread)).build();
    let answer = agent.clone().oneshot(request.with_context(context)).await;
    answer.unwrap().collect().await.unwrap()
}

/// A tool that counts its calls.
fn written(pace: Pace, ran: &Arc<AtomicUsize>) -> Tool {
    let ran = Arc::clone(ran);
    tool_with_context("write", "", move |NoArguments {}, context: Context| {
        ran.fetch_add(1, Ordering::SeqCst);
        async move {
            pace.pass(&context).await;
            "written"
        }
    })
}

/// An agent that is served by itself and is a tool of another, with a tool that counts its calls.
fn nested(
    pace: Pace,
    store: &Arc<MemoryStore>,
    outer: Toolset,
    ran: &Arc<AtomicUsize>,
    models: [ScriptedModel; 2],
) -> BoxModel {
    let [outer_model, inner_model] = models;
    let write = written(pace, ran);
    let inner = agent(store, Toolset::new().tool(write), inner_model);
    agent(
        store,
        outer.tool(agent_tool("helper", "", inner)),
        outer_model,
    )
}

#[test]
fn the_question_of_an_agent_with_a_store_of_its_own_is_the_outer_runs() {
    at_each_pace(|pace| async move {
        let (store, ran) = (Arc::new(MemoryStore::new()), Arc::default());
        let gated = || Toolset::new().gate(Approval::for_tools("write"));
        let outer = nested(
            pace,
            &store,
            gated(),
            &ran,
            [calls(pace, "helper"), calls(pace, "write")],
        );
        let answer = ask(&outer, ChatRequest::user("go"), "t").await;
        assert_eq!(answer.finish.outcome, Outcome::Interrupted);

        let asked = waiting(&*store, Tenant::default(), ThreadId::new("t"));
        let asked = asked.await.unwrap();
        assert_eq!(asked.len(), 1, "one run waits, and not two");
        let request = ChatRequest::replying(vec![Reply::approve(asked[0].id.clone())]);
        let answer = ask(&outer, request, "t").await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        let left = waiting(&*store, Tenant::default(), ThreadId::new("t"));
        assert!(left.await.unwrap().is_empty());
    });
}

#[test]
fn f048_what_an_inner_agent_asked_under_another_policy_of_the_outer_one_does_not_run() {
    at_each_pace(|pace| async move {
        let (store, ran) = (Arc::new(MemoryStore::new()), Arc::default());
        let gated = Toolset::new().gate(Approval::for_tools("write"));
        let answer = ask(
            &nested(
                pace,
                &store,
                gated,
                &ran,
                [calls(pace, "helper"), calls(pace, "write")],
            ),
            ChatRequest::user("go"),
            "t",
        )
        .await;
        let id = answer.finish.interrupts()[0].id.clone();

        let says = || ScriptedModel::new().paced(pace).text("done");
        let open = nested(pace, &store, Toolset::new(), &ran, [says(), says()]);
        let request = ChatRequest::replying(vec![Reply::approve(id)]);
        ask(&open, request, "t").await;
        assert_eq!(ran.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_run_of_no_conversation_is_not_for_whoever_asks() {
    at_each_pace(|pace| async move {
        let store = Arc::new(MemoryStore::new());
        let write = written(pace, &Arc::default());
        let tools = Toolset::new()
            .tool(write)
            .gate(Approval::for_tools("write"));
        let agent = agent(&store, tools, calls(pace, "write"));
        let first = agent.clone().oneshot(ChatRequest::user("a secret")).await;
        let first = first.unwrap().collect().await.unwrap();
        assert_eq!(first.finish.outcome, Outcome::Interrupted);

        let other = agent.clone().oneshot(ChatRequest::replying(Vec::new()));
        assert_eq!(other.await.unwrap_err().kind(), ErrorKind::NotFound);
        // Who knows the question may answer it.
        let id = first.finish.interrupts()[0].id.clone();
        let reply = ChatRequest::replying(vec![Reply::deny(id, "no")]);
        let answer = agent.oneshot(reply).await.unwrap().collect().await.unwrap();
        let last = answer
            .transcript()
            .unwrap()
            .iter()
            .find_map(|turn| turn.results().first());
        assert_eq!(last.unwrap().outcome.status, ToolStatus::Denied);
    });
}

#[test]
fn f044_what_a_dead_process_began_in_a_models_place_is_asked_about_and_not_repeated() {
    at_each_pace(|pace| async move {
        let (store, ran) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
        let began = Arc::new(Notify::new());
        let within = |model: ScriptedModel| {
            let (ran, began) = (Arc::clone(&ran), Arc::clone(&began));
            let pay = tool("pay", "", move |NoArguments {}| {
                ran.fetch_add(1, Ordering::SeqCst);
                began.notify_one();
                std::future::pending::<&str>()
            });
            let tools = Toolset::new().tool(pay).gate(Approval::for_tools("pay"));
            let inner = AgentLayer::new(tools);
            let stack = ServiceBuilder::new()
                .layer(SuspendLayer::new(Arc::clone(&store)))
                .layer(AgentLayer::new(Toolset::new()))
                .layer(inner);
            BoxModel::new(stack.service(model))
        };
        let agent = within(calls(pace, "pay"));
        let asked = ask(&agent, ChatRequest::user("Pay."), "t").await;
        let question = asked.finish.interrupts()[0].id.clone();

        // It is approved, and the process dies while the tool runs.
        let request = ChatRequest::replying(vec![Reply::approve(question)]);
        let run = tokio::spawn(async move { ask(&agent, request, "t").await });
        began.notified().await;
        let thread = ThreadId::new("t");
        let runs = store
            .list_by_thread(Tenant::default(), thread, None, 1)
            .await;
        let key = runs.unwrap().remove(0).key;
        let written = store.get(key).await.unwrap().state;
        run.abort();

        let agent = within(ScriptedModel::new().paced(pace).text("Paid."));
        let asked = ask(&agent, ChatRequest::resume(written, Vec::new()), "t").await;
        let question = asked.finish.interrupts()[0].clone();
        assert_eq!(question.reason, interrupt::UNKNOWN_EFFECT);
        let request = ChatRequest::replying(vec![Reply::answer(question.id, "it was paid")]);
        let answer = ask(&agent, request, "t").await;
        assert_eq!(answer.finish.outcome, Outcome::Completed);
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        let said = answer.transcript().unwrap().last().unwrap().as_message();
        let results = said.parts.iter().filter_map(|part| match &part.kind {
            PartKind::ToolResult(result) => Some(result.outcome.content.text()),
            _ => None,
        });
        let paid = "A person supplied this result, not the tool:\nit was paid";
        assert_eq!(results.collect::<Vec<_>>(), [paid]);
        assert_eq!(said.text(), "Paid.");
    });
}
