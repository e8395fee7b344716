//! The trace of a run.

use crate::{
    common::{Log, gate_fn, paced, tool_with_context},
    kit::{Model, Ran, World, drive, drive_with, id, number},
};
use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Context, Event, InterruptHub, NoTools, Reply,
    agent::{FinishDecision, StepDraft, StepGate},
    state::{Durable, Scope, Slot},
    store::Tenant,
    trace::{Trace, TraceEntry, TraceStep, lasting},
};
use concentric_tools::{Approval, NoArguments, Tool, Toolset, Verdict, agent_tool};
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{BoxError, Layer};

#[derive(Clone, Default)]
struct Entries(Arc<Mutex<Vec<TraceEntry>>>);

impl Entries {
    fn trace(&self) -> Trace {
        let entries = self.clone();
        Trace::new(move |entry| entries.0.lock().unwrap().push(entry))
    }

    fn take(&self) -> Vec<TraceEntry> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn json(&self) -> Vec<serde_json::Value> {
        let entries = self.take().into_iter();
        entries
            .map(|entry| serde_json::to_value(entry.step).unwrap())
            .collect()
    }
}

struct Counted;

impl Slot for Counted {
    type Value = u32;
    type Keep = Durable;
    const NAME: &'static str = "test/counted";
    const SCOPE: Scope = Scope::Run;
}

fn counting() -> Tool {
    tool_with_context(
        "count",
        "",
        async |NoArguments {}, context: Context| match context
            .update_state::<Counted>(|counted| counted + 1)
        {
            Ok(counted) => counted.to_string(),
            Err(error) => error.to_string(),
        },
    )
}

/// Asks for another answer, once.
struct Again;

impl StepGate for Again {
    fn name(&self) -> &str {
        "again"
    }

    async fn before_finish(&self, draft: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        Ok(match draft.step {
            2.. => FinishDecision::Finish,
            _ => FinishDecision::Retry { void: true },
        })
    }
}

fn agent(model: &Model, tools: Toolset, trace: &Entries) -> BoxModel {
    let agent = AgentLayer::new(tools).gate(Again).with(trace.trace());
    agent.layer(model.boxed())
}

fn tools(log: &Log, live: Option<&InterruptHub>) -> Toolset {
    let approval = Approval::for_tools("refund");
    Toolset::new()
        .tool(number("refund", log))
        .tool(counting())
        .gate(match live {
            Some(live) => approval.live(live, Duration::from_secs(60)),
            None => approval,
        })
}

fn model() -> Model {
    Model::new(vec![vec![("refund", r#"{"n":1}"#), ("count", "{}")]])
}

fn request(world: &World) -> ChatRequest {
    ChatRequest::user("go").with_context(world.context())
}

async fn live(log: &Log, trace: &Entries) -> Ran {
    let (world, hub) = (World::new(), InterruptHub::new());
    let agent = agent(&model(), tools(log, Some(&hub)), trace);
    let now = world.now();
    drive_with(agent, request(&world), |event| {
        if let Event::Custom(custom) = event
            && custom.name == "interrupt"
        {
            let reply = Reply::approve(id(custom.value["id"].as_str().unwrap()));
            hub.reply(&Tenant::default(), reply, now).unwrap();
        }
    })
    .await
}

async fn resumed(log: &Log, trace: &Entries) -> Ran {
    let (world, model) = (World::new(), model());
    let ran = drive(agent(&model, tools(log, None), trace), request(&world)).await;
    let reply = Reply::approve(ran.ask("call-0-0").id);
    let request = ChatRequest::resume(ran.state(), vec![reply]).with_context(world.context());
    drive(agent(&model, tools(log, None), trace), request).await
}

paced!(s078_a_resumed_run_has_the_trace_of_a_live_one);
async fn s078_a_resumed_run_has_the_trace_of_a_live_one() {
    let (log, entries) = (Log::default(), Entries::default());
    let one = live(&log, &entries).await;
    let of_live = entries.take();
    let two = resumed(&log, &entries).await;
    let of_resumed = entries.take();
    assert_eq!(one.results(), two.results());
    assert_ne!(of_live, of_resumed);
    let of_live = lasting(of_live);
    assert_eq!(of_live, lasting(of_resumed));

    // Another run has another trace.
    let model = Model::new(vec![vec![("refund", r#"{"n":2}"#), ("count", "{}")]]);
    let agent = agent(&model, tools(&log, None), &entries);
    drive(agent, request(&World::new())).await;
    assert_ne!(of_live, lasting(entries.take()));
}

paced!(a_trace_has_all_steps_of_a_run_in_order);
async fn a_trace_has_all_steps_of_a_run_in_order() {
    let entries = Entries::default();
    let model = Model::new(vec![vec![("count", "{}")]]);
    let tools = Toolset::new().tool(counting());
    drive(agent(&model, tools, &entries), request(&World::new())).await;
    let steps = [
        json!({"started": {"turns": 1}}),
        json!({"decided": {"before": "step", "decision": "continue"}}),
        json!({"model_called": {"step": 0, "turns": 1, "tools": 1}}),
        json!({"model_ended": {"step": 0, "reason": "tool_calls"}}),
        json!({"decided": {"before": "round", "decision": "continue"}}),
        json!({"round_started": {"step": 0, "calls": 1}}),
        json!({"state_changed": {"slot": "test/counted", "value": 1}}),
        json!({"settled": "done"}),
        json!({"result": "done"}),
        json!({"decided": {"before": "step", "decision": "continue"}}),
        json!({"model_called": {"step": 1, "turns": 2, "tools": 1}}),
        json!({"model_ended": {"step": 1, "reason": "stop"}}),
        json!({"decided": {"before": "finish", "decision": "retry"}}),
        json!("reset"),
        json!({"decided": {"before": "step", "decision": "continue"}}),
        json!({"model_called": {"step": 2, "turns": 3, "tools": 1}}),
        json!({"model_ended": {"step": 2, "reason": "stop"}}),
        json!({"decided": {"before": "finish", "decision": "finish"}}),
        json!({"ended": "completed"}),
    ];
    assert_eq!(entries.json(), steps);
}

#[tokio::test]
async fn a_run_of_a_sub_agent_is_traced_within_its_call() {
    let (log, entries) = (Log::default(), Entries::default());
    let inner = Model::new(vec![vec![("read", r#"{"n":1}"#)]]);
    let inner = inner.agent(&Toolset::new().tool(number("read", &log)));
    let outer = Model::new(vec![vec![("ask", r#"{"task":"go"}"#)]]);
    let tools = Toolset::new().tool(agent_tool("ask", "", inner));
    let agent = AgentLayer::new(tools).with(entries.trace());
    drive(agent.layer(outer.boxed()), request(&World::new())).await;
    let nested: Vec<_> = entries.take();
    let nested = nested.iter().filter(|entry| !entry.within.is_empty());
    let nested: Vec<_> = nested
        .map(|entry| (entry.within[0].as_str(), entry.step.clone()))
        .collect();
    assert!(nested.iter().all(|(call, _)| *call == "call-0-0"));
    let called = |(_, step): &&(_, TraceStep)| matches!(step, TraceStep::ModelCalled { .. });
    assert_eq!(nested.iter().filter(called).count(), 2);
    let settled = |(_, step): &&(_, TraceStep)| matches!(step, TraceStep::Settled(_));
    assert_eq!(nested.iter().filter(settled).count(), 1);
}

#[tokio::test]
async fn a_failed_and_a_dropped_run_end_in_the_trace() {
    let entries = Entries::default();
    let failing = tower::service_fn(async |_: ChatRequest| {
        Err::<concentric_core::ChatResponse<concentric_core::EventStream>, BoxError>("down".into())
    });
    let agent = AgentLayer::new(NoTools).with(entries.trace());
    let agent = agent.layer(failing);
    let request = || ChatRequest::user("hi");
    tower::ServiceExt::oneshot(agent, request())
        .await
        .unwrap_err();
    assert_eq!(entries.json().last(), Some(&json!({"ended": "failed"})));

    let agent = AgentLayer::new(NoTools).with(entries.trace());
    let agent = agent.layer(Model::silent().boxed());
    let answer = tower::ServiceExt::oneshot(agent, request()).await.unwrap();
    drop(answer);
    tokio::task::yield_now().await;
    assert_eq!(entries.json().last(), Some(&json!({"ended": "dropped"})));
}

#[tokio::test]
async fn a_denied_call_is_traced_and_a_panic_of_the_callback_is_contained() {
    let (log, entries) = (Log::default(), Entries::default());
    let tools = Toolset::new()
        .tool(number("refund", &log))
        .gate(gate_fn("never", |_| Verdict::deny("no")))
        .trace(|_| panic!("the disk is full"));
    crate::kit::quietly();
    let model = Model::new(vec![vec![("refund", r#"{"n":1}"#)]]);
    let agent = AgentLayer::new(tools).with(entries.trace());
    let ran = drive(agent.layer(model.boxed()), request(&World::new())).await;
    assert_eq!(ran.results().len(), 1);
    let steps = entries.json();
    assert!(steps.contains(&json!({"gated": "deny"})));
    assert!(steps.contains(&json!({"result": "denied"})));
    assert_eq!(log.lines(), [""; 0]);
}
