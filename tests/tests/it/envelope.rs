//! C124: the envelopes of a whole agent's events.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, ChatRequest, Context, Event, EventStream, ModelService,
    Reply, RunId, Str, ToolCallDelta, ToolCallPart, ToolCallStart, ToolStatus, machine::RunState,
};
use concentric_layers::{Envelope, Envelopes};
use concentric_test::ScriptedModel;
use concentric_tools::{
    Approval, NoArguments, Tool, Toolset, Verdict, agent_tool, gate_fn, tool, tool_with_context,
};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{Layer, ServiceExt};

fn context() -> Context {
    Context::builder().run_id(RunId::new("run")).build()
}

/// The keys that a tool was given.
type Keys = Arc<Mutex<Vec<Str>>>;

fn looks(keys: &Keys) -> Tool {
    let keys = Arc::clone(keys);
    tool_with_context("look", "", move |NoArguments {}, context: Context| {
        keys.lock().unwrap().extend(context.idempotency_key());
        async { "seen" }
    })
}

/// A model that writes these calls side by side, and then is done.
fn calling<const N: usize>(calls: [(&str, &str); N]) -> ScriptedModel {
    let id = |id: &str| CallId::new(id);
    let mut model = ScriptedModel::new().text("Let me see. ");
    for (index, (call, name)) in (0..).zip(calls) {
        let start = ToolCallStart::new(index, id(call), name);
        model = model.event(Event::ToolCallStart(Box::new(start)));
    }
    for index in 0..N {
        let index = u32::try_from(index).unwrap();
        model = model.event(Event::ToolCallDelta(ToolCallDelta::new(index, "{}")));
    }
    for (call, name) in calls {
        model = model.event(Event::tool_call(ToolCallPart::new(id(call), name, "{}")));
    }
    model.then().text("Done.")
}

async fn run(
    agent: impl ModelService<Body: Send + 'static>,
    request: ChatRequest,
) -> Vec<Envelope> {
    let context = request.context.clone();
    let answer = agent.oneshot(request).await;
    let answer = answer.map_err(Into::<BoxError>::into).unwrap();
    let body = Envelopes::new(EventStream::new(answer.body), &context);
    body.map(Result::unwrap).collect().await
}

/// The events of each call, in order, by what they are correlated with.
fn by_call(envelopes: &[Envelope]) -> HashMap<&str, Vec<&Event>> {
    let mut calls: HashMap<&str, Vec<&Event>> = HashMap::new();
    for envelope in envelopes.iter().filter(|e| e.correlation_id.contains('/')) {
        let events = calls.entry(&envelope.correlation_id).or_default();
        events.push(&envelope.event);
    }
    calls
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::ToolCallStart(_) => "start",
        Event::ToolCallDelta(_) => "delta",
        Event::ToolCall(_) => "call",
        Event::ToolResult(_) => "result",
        _ => "other",
    }
}

fn assert_numbered(envelopes: &[Envelope]) {
    for (at, envelope) in (0_u64..).zip(envelopes) {
        assert_eq!(envelope.seq, at);
    }
}

#[tokio::test(start_paused = true)]
async fn c124_blocked_timed_out_and_unknown_tools_start_and_end_under_one_id() {
    let keys = Keys::default();
    let tools = Toolset::new()
        .tool(tool("pay", "", |NoArguments {}| async { "paid" }))
        .tool(tool("hang", "", |NoArguments {}| pending::<&str>()).timeout(Duration::from_secs(5)))
        .tool(looks(&keys))
        .gate(gate_fn("closed", |call| match call.name().as_str() {
            "pay" => Verdict::deny("The till is closed."),
            _ => Verdict::Pass,
        }));
    let model = calling([
        ("a", "pay"),
        ("b", "hang"),
        ("c", "nowhere"),
        ("d", "look"),
        // Of an id that is taken.
        ("d", "look"),
    ]);
    let agent = AgentLayer::new(tools).layer(model);
    let envelopes = run(agent, ChatRequest::user("go").with_context(context())).await;
    assert_numbered(&envelopes);
    assert!(envelopes.iter().all(|e| *e.run_id.as_str() == *"run"));

    let calls = by_call(&envelopes);
    assert_eq!(calls.len(), 5);
    let mut statuses = HashMap::new();
    for (id, events) in &calls {
        let kinds: Vec<_> = events.iter().map(|event| kind(event)).collect();
        assert_eq!(kinds, ["start", "delta", "call", "result"], "{id}");
        let (Event::ToolCallStart(start), Event::ToolCall(call), Event::ToolResult(result)) =
            (events[0], events[2], events[3])
        else {
            unreachable!("they are of these kinds");
        };
        assert_eq!(start.name, call.call.name);
        assert_eq!(result.call_id, call.call.id);
        statuses.insert(call.call.id.as_str().to_owned(), result.outcome.status);
    }
    assert_eq!(statuses["a"], ToolStatus::Denied);
    // It may have taken effect by then.
    assert_eq!(statuses["b"], ToolStatus::Unknown);
    assert_eq!(statuses["c"], ToolStatus::Failed);
    // Whose arguments are whose is not known.
    assert_eq!(statuses["d"], ToolStatus::Failed);
    assert_eq!(statuses["d~2"], ToolStatus::Failed);
    assert!(keys.lock().unwrap().is_empty());

    // The rest is the messages', and the run's.
    let Some(Event::StepStart(first)) = envelopes.first().map(|e| &e.event) else {
        unreachable!("a run begins with a step");
    };
    assert_eq!(
        envelopes[1].correlation_id.as_str(),
        first.message_id.as_str()
    );
    assert_eq!(envelopes.last().unwrap().correlation_id, "run");
}

#[tokio::test]
async fn c124_the_id_is_the_key_that_the_tool_is_given() {
    let keys = Keys::default();
    let model = calling([("a", "look"), ("b", "nowhere"), ("c", "look")]);
    let agent = AgentLayer::new(Toolset::new().tool(looks(&keys))).layer(model);
    let envelopes = run(agent, ChatRequest::user("go")).await;
    let of = |id: &str| {
        let mut results = envelopes.iter().filter(|e| match &e.event {
            Event::ToolResult(result) => *result.call_id.as_str() == *id,
            _ => false,
        });
        results.next().unwrap().correlation_id.clone()
    };
    let mut keys = keys.lock().unwrap().clone();
    keys.sort();
    assert_eq!(keys, [of("a"), of("c")]);
}

#[tokio::test]
async fn c124_a_run_that_was_asked_about_goes_on_under_the_same_ids() {
    let tools = Toolset::new()
        .tool(tool("pay", "", |NoArguments {}| async { "paid" }))
        .tool(tool("look", "", |NoArguments {}| async { "seen" }))
        .gate(Approval::for_tools("pay"));
    let model = calling([("a", "look"), ("b", "pay"), ("c", "nowhere")]);
    let agent = BoxModel::new(AgentLayer::new(tools).layer(model));

    let first = ChatRequest::user("go").with_context(context());
    let first = run(agent.clone(), first).await;
    let Some(Event::Finish(finish)) = first.last().map(|e| &e.event) else {
        unreachable!("it asks");
    };
    let state = finish.state.as_ref().unwrap().to_json().unwrap();

    // In another process, of which the first has told only how far it came.
    let state = RunState::from_json(state.as_bytes(), state.len()).unwrap();
    let replies = state.interrupts().into_iter();
    let replies = replies
        .map(|asked| Reply::approve(asked.id.clone()))
        .collect();
    let open = state.open_round().unwrap();
    let request = ChatRequest::resume(state, replies).with_context(context());
    let answer = agent.oneshot(request).await.unwrap();
    let body = Envelopes::new(answer.body, &context());
    let seq = u64::try_from(first.len()).unwrap();
    let second = body.with_open_round(&open).starting_at(seq);
    let second: Vec<Envelope> = second.map(Result::unwrap).collect().await;

    let all = [first, second].concat();
    assert_numbered(&all);
    let calls = by_call(&all);
    assert_eq!(calls.len(), 3);
    for (id, events) in calls {
        let kinds: Vec<_> = events.into_iter().map(kind).collect();
        assert_eq!(kinds, ["start", "delta", "call", "result"], "{id}");
    }
}

#[tokio::test]
async fn c124_a_sub_agents_events_are_of_the_call_that_it_is() {
    let inner = Toolset::new().tool(tool("look", "", |NoArguments {}| async { "seen" }));
    let inner = BoxModel::new(AgentLayer::new(inner).layer(calling([("c", "look"), ("d", "no")])));
    let outer = Toolset::new().tool(agent_tool("helper", "", inner));
    let model = ScriptedModel::new()
        .tool_call("helper", json!({"task": "look"}))
        .then()
        .text("Done.");
    let agent = AgentLayer::new(outer).layer(model);
    let envelopes = run(agent, ChatRequest::user("go")).await;
    assert_numbered(&envelopes);

    let is_inside = |e: &&Envelope| matches!(e.event, Event::SubAgent(_));
    let inside: Vec<_> = envelopes.iter().filter(is_inside).collect();
    let call = envelopes
        .iter()
        .find(|e| matches!(e.event, Event::ToolCall(_)));
    let call = &call.unwrap().correlation_id;
    assert!(inside.iter().all(|e| e.correlation_id == *call));
    assert!(inside.iter().all(|e| e.inner.len() == 1));
    let calls = inside.iter().filter(|e| e.inner[0].contains('/'));
    let mut kinds: HashMap<&str, Vec<&str>> = HashMap::new();
    for envelope in calls {
        if let Event::SubAgent(event) = &envelope.event {
            let kinds = kinds.entry(&envelope.inner[0]).or_default();
            kinds.push(kind(&event.event));
        }
    }
    assert_eq!(kinds.len(), 2);
    for kinds in kinds.values() {
        assert_eq!(kinds, &["start", "delta", "call", "result"]);
    }
}
