//! Agents as tools: the events that a client gets from sub-agents.

mod interrupts;

use crate::support::{
    Item,
    client::{Client, approved, end},
    events, finish, finish_with, real, step, step_end, types,
};
use axum::Router;
use concentric_core::{
    AgentLayer, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, CustomEvent, Error,
    ErrorKind, Event, FinishReason, Outcome, RunId, Str, SubAgentEvent, ToolCallDelta,
    ToolCallPart, ToolCallStart, ToolOutcome, ToolResult, Turn, Usage,
};
use concentric_http::ag_ui::AgUiLayer;
use concentric_layers::SuspendLayer;
use concentric_store::MemoryStore;
use concentric_tools::{Approval, ToolError, Toolset, agent_tool, tool};
use futures_util::stream;
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex};
use tower::{Layer, service_fn};

// ---- translation of events ----

/// An event of the sub-agent run that executes `call`.
fn sub(run: &str, call: &str, event: Event) -> Event {
    Event::SubAgent(Box::new(SubAgentEvent::new(
        RunId::new(run),
        Some(Str::from(format!("{run}'s agent"))),
        Some(CallId::new(call)),
        event,
    )))
}

fn call(id: &str) -> Event {
    Event::tool_call(ToolCallPart::new(CallId::new(id), "f", "{}"))
}

fn result(id: &str, outcome: ToolOutcome) -> Event {
    Event::ToolResult(Box::new(ToolResult::new(CallId::new(id), "f", outcome)))
}

fn done(id: &str) -> Event {
    result(id, ToolOutcome::done("it is done"))
}

async fn of(script: Vec<Event>) -> Vec<Value> {
    events(script.into_iter().map(Ok).collect()).await
}

fn all<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["type"] == kind).collect()
}

fn at(events: &[Value], kind: &str, key: &str, value: &str) -> usize {
    let it = |event: &Value| event["type"] == kind && event[key] == value;
    let at = events.iter().position(it);
    at.unwrap_or_else(|| panic!("no {kind} of {value}: {events:#?}"))
}

/// The types of the events of the run `run`.
fn types_of<'a>(events: &'a [Value], run: &str) -> Vec<&'a str> {
    let its = events.iter().filter(|e| e["subagentRunId"] == run);
    its.map(|e| e["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn events_of_a_sub_agent_have_its_run_id() {
    let events = of(vec![
        step(0, "m"),
        call("c"),
        step_end(0),
        sub("s", "c", step(0, "n")),
        sub("s", "c", Event::ReasoningDelta("hm".into())),
        sub("s", "c", Event::text("Let")),
        sub("s", "c", Event::text(" me")),
        sub(
            "s",
            "c",
            Event::ToolCallStart(Box::new(ToolCallStart::new(0, CallId::new("d"), "g"))),
        ),
        sub("s", "c", Event::ToolCallDelta(ToolCallDelta::new(0, "{}"))),
        sub("s", "c", call("d")),
        sub("s", "c", step_end(0)),
        sub(
            "s",
            "c",
            Event::Custom(Box::new(
                CustomEvent::new("progress", json!(1)).for_call(CallId::new("d")),
            )),
        ),
        sub("s", "c", Event::State(Arc::new(json!({"a": 1})))),
        sub("s", "c", done("d")),
        sub("s", "c", step(1, "n2")),
        sub("s", "c", Event::text("Done.")),
        done("c"),
        step(1, "m2"),
        Event::text("Well."),
        finish(),
    ])
    .await;
    assert_eq!(
        types_of(&events, "s"),
        [
            "SUBAGENT_STARTED",
            "STEP_STARTED",
            "REASONING_START",
            "REASONING_MESSAGE_START",
            "REASONING_MESSAGE_CONTENT",
            "REASONING_MESSAGE_END",
            "REASONING_END",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "STEP_FINISHED",
            "CUSTOM",
            "STATE_SNAPSHOT",
            "TOOL_CALL_RESULT",
            "STEP_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "STEP_FINISHED",
            "SUBAGENT_FINISHED",
        ]
    );
    assert_eq!(
        all(&events, "SUBAGENT_STARTED")[0],
        &json!({"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "s's agent",
            "parentToolCallId": "c", "parentMessageId": "m"})
    );
    assert_eq!(
        all(&events, "SUBAGENT_FINISHED")[0],
        &json!({"type": "SUBAGENT_FINISHED", "subagentRunId": "s",
            "outcome": {"type": "success"}})
    );
    // The sub-agent ends before its result, which is an event of the agent itself.
    let over = at(&events, "SUBAGENT_FINISHED", "subagentRunId", "s");
    let result = at(&events, "TOOL_CALL_RESULT", "toolCallId", "c");
    assert!(over < result);
    assert!(events[result]["subagentRunId"].is_null());
    assert_eq!(all(&events, "CUSTOM")[0]["metadata"]["toolCallId"], "d");
    // The agent's usage excludes the steps of a sub-agent.
    assert_eq!(end(&events)["usage"][0]["inputTokens"], 3);
}

#[tokio::test]
async fn sub_agents_of_parallel_calls_run_concurrently() {
    let events = of(vec![
        step(0, "m"),
        call("a"),
        call("b"),
        step_end(0),
        sub("sa", "a", step(0, "ma")),
        sub("sb", "b", step(0, "mb")),
        sub("sa", "a", Event::text("A")),
        sub("sb", "b", Event::text("B")),
        sub("sa", "a", Event::text("a")),
        sub("sb", "b", call("x")),
        sub("sa", "a", call("y")),
        sub("sb", "b", done("x")),
        done("b"),
        sub("sa", "a", done("y")),
        sub("sa", "a", step(1, "ma2")),
        done("a"),
        finish(),
    ])
    .await;
    let texts = all(&events, "TEXT_MESSAGE_CONTENT");
    let texts: Vec<_> = texts.iter().map(|e| e["delta"].as_str().unwrap()).collect();
    assert_eq!(texts, ["A", "B", "a"]);
    assert_eq!(all(&events, "TEXT_MESSAGE_START").len(), 2);
    // One sub-agent ends, and the other continues.
    let over = at(&events, "SUBAGENT_FINISHED", "subagentRunId", "sb");
    assert!(over < at(&events, "TOOL_CALL_RESULT", "toolCallId", "y"));
    assert_eq!(all(&events, "SUBAGENT_FINISHED").len(), 2);
}

#[tokio::test]
async fn sub_agents_may_be_nested() {
    let deep = |event| sub("s", "c", sub("t", "c", event));
    let events = of(vec![
        step(0, "m"),
        call("c"),
        step_end(0),
        sub("s", "c", step(0, "m")),
        sub("s", "c", call("c")),
        sub("s", "c", step_end(0)),
        deep(step(0, "m")),
        deep(Event::text("deep")),
        deep(call("c")),
        deep(done("c")),
        sub("s", "c", done("c")),
        sub("s", "c", step(1, "m2")),
        sub("s", "c", Event::text("less so")),
        done("c"),
        finish(),
    ])
    .await;
    let started = all(&events, "SUBAGENT_STARTED");
    assert_eq!(started[0]["parentToolCallId"], "c");
    assert!(started[0]["parentSubagentRunId"].is_null());
    assert_eq!(started[1]["subagentRunId"], "t");
    assert_eq!(started[1]["parentSubagentRunId"], "s");
    assert_eq!(started[1]["parentToolCallId"], "c~2");
    assert_eq!(started[1]["parentMessageId"], "m~2");
    // No id is used twice.
    let calls: Vec<_> = all(&events, "TOOL_CALL_RESULT")
        .iter()
        .map(|e| (e["toolCallId"].clone(), e["subagentRunId"].clone()))
        .collect();
    assert_eq!(
        calls,
        [
            (json!("c~3"), json!("t")),
            (json!("c~2"), json!("s")),
            (json!("c"), Value::Null)
        ]
    );
    let over: Vec<_> = all(&events, "SUBAGENT_FINISHED")
        .iter()
        .map(|e| e["subagentRunId"].clone())
        .collect();
    assert_eq!(over, ["t", "s"]);
}

#[tokio::test]
async fn a_sub_agent_that_fails_leaves_nothing_open() {
    let deep = |event| sub("s", "c", sub("t", "d", event));
    for (outcome, code) in [
        (ToolOutcome::failed("broken"), "failed"),
        (ToolOutcome::cancelled("broken"), "cancelled"),
        (ToolOutcome::unknown("broken"), "unknown"),
    ] {
        let events = of(vec![
            call("c"),
            sub("s", "c", step(0, "n")),
            sub("s", "c", call("d")),
            deep(step(0, "o")),
            deep(Event::text("half an")),
            result("c", outcome),
            finish(),
        ])
        .await;
        let errors = all(&events, "SUBAGENT_ERROR");
        assert_eq!(errors[0]["subagentRunId"], "t");
        assert_eq!(
            errors[1],
            &json!({"type": "SUBAGENT_ERROR", "subagentRunId": "s", "message": "broken",
                "code": code})
        );
        // A client would execute a call without a result.
        let withdrawn = at(&events, "TOOL_CALL_RESULT", "toolCallId", "d");
        assert_eq!(events[withdrawn]["subagentRunId"], "s");
        assert_eq!(events[withdrawn]["metadata"]["status"], "cancelled");
        assert_eq!(end(&events)["outcome"], json!({"type": "success"}));
    }
}

#[tokio::test]
async fn a_run_that_stops_stops_its_sub_agents() {
    let stopped = || Outcome::Aborted {
        reason: CancelReason::User,
    };
    let ends: [(Option<Item>, &str); 4] = [
        (None, "RUN_ERROR"),
        (Some(Err(Error::new(ErrorKind::Server, "x"))), "RUN_ERROR"),
        (Some(Ok(finish_with(stopped()))), "RUN_FINISHED"),
        (Some(Ok(finish_with(Outcome::StepLimit))), "RUN_FINISHED"),
    ];
    for (last, kind) in ends {
        let script = vec![
            call("c"),
            sub("s", "c", step(0, "n")),
            sub("s", "c", Event::text("half an")),
        ];
        let script = script.into_iter().map(Ok).chain(last);
        let events = events(script.collect()).await;
        let types = types(&events);
        let n = types.len();
        assert_eq!(types[n - 2..], ["SUBAGENT_ERROR", kind]);
    }
}

#[tokio::test]
async fn a_sub_agent_run_id_is_never_reused() {
    // A custom tool that uses the same id for all of its runs.
    let events = of(vec![
        call("a"),
        sub("s", "a", Event::text("one")),
        done("a"),
        call("b"),
        sub("s", "b", Event::text("two")),
        done("b"),
        call("b"),
        sub("s", "b", Event::text("three")),
        sub("s", "b", finish()),
        done("b"),
        finish(),
    ])
    .await;
    let ids: Vec<_> = all(&events, "SUBAGENT_STARTED")
        .iter()
        .map(|e| e["subagentRunId"].clone())
        .collect();
    assert_eq!(ids, ["s", "s~2", "s~3"]);
    assert_eq!(all(&events, "SUBAGENT_FINISHED").len(), 3);
}
