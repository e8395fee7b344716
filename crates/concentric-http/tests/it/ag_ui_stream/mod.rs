//! Translation of a run's events to protocol events.

mod ends;
pub mod random;
mod snapshot;

use crate::support::{
    Item, agent, events, finish, finish_with, input, legal, post, run, send, step, step_end, types,
};
use concentric_core::{
    AgentLayer, CallId, CancelReason, ChatRequest, ChatResponse, CustomEvent, Error, ErrorKind,
    Event, Executor, FinishReason, Media, MediaSource, NoTools, Outcome, Part, PartKind, Refusal,
    ResponseHead, RunId, SubAgentEvent, ToolCallDelta, ToolCallPart, ToolCallStart, ToolOutcome,
    ToolResult, Usage,
};
use concentric_http::ag_ui::{AgUiLayer, AgUiState, StateError};
use futures_util::stream;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::{Layer, service_fn};

fn ok(events: Vec<Event>) -> Vec<Item> {
    events.into_iter().map(Ok).collect()
}

fn call(id: &str, name: &str, arguments: &str) -> Event {
    Event::tool_call(ToolCallPart::new(CallId::new(id), name, arguments))
}

fn call_by(executor: Executor, id: &str) -> Event {
    Event::tool_call(ToolCallPart::new(CallId::new(id), "f", "{}").executed_by(executor))
}

fn preview(index: u32, id: &str, name: &str) -> Event {
    Event::ToolCallStart(Box::new(ToolCallStart::new(index, CallId::new(id), name)))
}

fn piece(index: u32, text: &str) -> Event {
    Event::ToolCallDelta(ToolCallDelta::new(index, text))
}

fn result(id: &str, outcome: ToolOutcome) -> Event {
    Event::ToolResult(Box::new(ToolResult::new(CallId::new(id), "f", outcome)))
}

fn state(value: Value) -> Event {
    Event::State(Arc::new(value))
}

fn of<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["type"] == name).collect()
}

#[tokio::test]
async fn the_text_of_a_step_is_one_message() {
    let events = events(ok(vec![
        step(0, "m"),
        Event::text("Hel"),
        Event::PartEnd(Box::default()),
        Event::text(""),
        Event::text("lo"),
        step_end(0),
        finish(),
    ]))
    .await;
    assert_eq!(
        events,
        [
            json!({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "protocolVersion": "1.0"}),
            json!({"type": "STEP_STARTED", "stepName": "step 0"}),
            json!({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}),
            json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Hel"}),
            json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "lo"}),
            json!({"type": "TEXT_MESSAGE_END", "messageId": "m"}),
            json!({"type": "STEP_FINISHED", "stepName": "step 0"}),
            json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r",
                   "outcome": {"type": "success"},
                   "usage": [{"inputTokens": 3, "outputTokens": 2}]}),
        ]
    );
}

#[tokio::test]
async fn reasoning_comes_in_its_own_messages() {
    let events = events(ok(vec![
        step(0, "m"),
        Event::ReasoningDelta("one".into()),
        Event::PartEnd(Box::default()),
        Event::ReasoningDelta("two".into()),
        Event::text("said"),
        Event::RefusalDelta(", or not".into()),
        finish(),
    ]))
    .await;
    let starts: Vec<_> = of(&events, "REASONING_MESSAGE_START")
        .iter()
        .map(|e| e["messageId"].clone())
        .collect();
    assert_eq!(starts, ["m~reasoning", "m~reasoning~2"]);
    assert_eq!(of(&events, "REASONING_END").len(), 2);
    assert_eq!(of(&events, "TEXT_MESSAGE_START").len(), 1);
    assert_eq!(of(&events, "TEXT_MESSAGE_CONTENT")[1]["delta"], ", or not");
}

#[tokio::test]
async fn a_call_with_a_preview_shows_the_preview() {
    let events = events(ok(vec![
        step(0, "m"),
        Event::text("Let me see."),
        preview(0, "c", "f"),
        piece(0, "{\"a\""),
        piece(0, ":1}"),
        call("c", "f", "{\"a\":2}"),
        step_end(0),
        result("c", ToolOutcome::done("found").with_data(json!({"n": 1}))),
        step(1, "m2"),
        Event::text("There."),
        step_end(1),
        finish(),
    ]))
    .await;
    assert_eq!(
        types(&events)[4..11],
        [
            "TEXT_MESSAGE_END",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "STEP_FINISHED",
            "TOOL_CALL_RESULT"
        ]
    );
    assert_eq!(
        events[5],
        json!({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f", "parentMessageId": "m"})
    );
    let result = &events[10];
    assert_eq!(result["toolCallId"], "c");
    assert_eq!(result["content"], "found");
    assert_eq!(result["metadata"], json!({"data": {"n": 1}}));
    assert!(result["messageId"].as_str().unwrap().starts_with("msg_"));
}

#[tokio::test]
async fn a_call_without_a_preview_is_sent_complete() {
    let events = events(ok(vec![
        step(0, "m"),
        call("c", "f", " "),
        Event::text("after"),
        step_end(0),
        result("c", ToolOutcome::failed("no")),
        finish(),
    ]))
    .await;
    assert_eq!(of(&events, "TOOL_CALL_ARGS")[0]["delta"], "{}");
    // The client appends the text to the message that it created for the call.
    assert_eq!(of(&events, "TEXT_MESSAGE_START")[0]["messageId"], "m");
    let result = of(&events, "TOOL_CALL_RESULT")[0];
    assert_eq!(result["metadata"], json!({"status": "failed"}));
}

#[tokio::test]
async fn text_after_a_call_is_a_new_message() {
    let events = events(ok(vec![
        step(0, "m"),
        Event::text("a"),
        call("c", "f", "{}"),
        Event::text("b"),
        step_end(0),
        result("c", ToolOutcome::done("")),
        finish(),
    ]))
    .await;
    let ids: Vec<_> = of(&events, "TEXT_MESSAGE_START")
        .iter()
        .map(|e| e["messageId"].clone())
        .collect();
    assert_eq!(ids, ["m", "m~2"]);
    assert_eq!(of(&events, "TOOL_CALL_START")[0]["parentMessageId"], "m");
}

#[tokio::test]
async fn ids_in_the_history_are_not_reused() {
    let input = json!({"threadId": "t", "runId": "r", "messages": [
        {"id": "u", "role": "user", "content": "hi"},
        {"id": "m", "role": "assistant", "content": "x", "toolCalls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"id": "x", "role": "tool", "toolCallId": "c", "content": "ok"},
        {"id": "u2", "role": "user", "content": "again"},
    ]});
    let script = ok(vec![
        step(0, "m"),
        preview(0, "c", "f"),
        piece(0, "{}"),
        call("c", "f", "{}"),
        step_end(0),
        result("c", ToolOutcome::done("ok")),
        step(1, "u"),
        Event::text("x"),
        finish(),
    ]);
    let events = run(agent(script), &input).await;
    let start = of(&events, "TOOL_CALL_START")[0];
    assert_eq!(start["toolCallId"], "c~2");
    assert_eq!(start["parentMessageId"], "m~2");
    assert_eq!(of(&events, "TOOL_CALL_RESULT")[0]["toolCallId"], "c~2");
    assert_eq!(of(&events, "TEXT_MESSAGE_START")[0]["messageId"], "u~2");
}

#[tokio::test]
async fn a_preview_that_stops_is_withdrawn() {
    let events = events(ok(vec![
        step(0, "m"),
        preview(0, "c", "f"),
        piece(0, "{"),
        step_end(0),
        finish(),
    ]))
    .await;
    assert_eq!(
        types(&events)[2..7],
        [
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "STEP_FINISHED"
        ]
    );
    assert_eq!(events[5]["metadata"]["status"], "cancelled");
    assert_eq!(
        events.last().unwrap()["outcome"],
        json!({"type": "success"})
    );
}

#[tokio::test]
async fn a_reset_after_a_step_names_the_steps_messages() {
    let events = events(ok(vec![
        step(0, "m"),
        Event::text("no"),
        step_end(0),
        Event::Reset,
        step(1, "n"),
        Event::text("yes"),
        step_end(1),
        finish(),
    ]))
    .await;
    let resets = of(&events, "CUSTOM");
    assert_eq!(resets.len(), 1);
    assert_eq!(resets[0]["value"], json!({"messageIds": ["m"]}));
}

#[tokio::test]
async fn a_reset_names_invalid_messages_and_answers_calls() {
    let events = events(ok(vec![
        step(0, "m"),
        Event::text("no"),
        call("c", "f", "{}"),
        Event::Reset,
        Event::text("yes"),
        call("c", "f", "{}"),
        step_end(0),
        result("c", ToolOutcome::done("ok")),
        finish(),
    ]))
    .await;
    let reset = of(&events, "CUSTOM")[0];
    assert_eq!(reset["name"], "concentric.reset");
    assert_eq!(reset["value"], json!({"messageIds": ["m"]}));
    let answered: Vec<_> = of(&events, "TOOL_CALL_RESULT")
        .iter()
        .map(|e| (e["toolCallId"].clone(), e["metadata"]["status"].clone()))
        .collect();
    assert_eq!(
        answered,
        [
            (json!("c"), json!("cancelled")),
            (json!("c~2"), json!(null))
        ]
    );
    assert_eq!(of(&events, "TEXT_MESSAGE_START")[1]["messageId"], "m~2");
}

#[tokio::test]
async fn the_state_is_a_snapshot_and_then_deltas() {
    let long: Vec<u32> = (0..100).collect();
    let mut shifted = long.clone();
    shifted.insert(0, 7);
    let events = events(ok(vec![
        state(json!({"a": 1, "b": {"c/d": [1, 2, 3]}})),
        state(json!({"a": 1, "b": {"c/d": [1, 2, 3]}})),
        state(json!({"a": 2, "b": {"c/d": [1]}})),
        state(json!(null)),
        state(json!(long)),
        state(json!(shifted)),
        finish(),
    ]))
    .await;
    assert_eq!(
        types(&events)[1..6],
        [
            "STATE_SNAPSHOT",
            "STATE_DELTA",
            "STATE_SNAPSHOT",
            "STATE_SNAPSHOT",
            // The patch would be larger than the snapshot.
            "STATE_SNAPSHOT"
        ]
    );
    assert_eq!(
        events[2]["delta"],
        json!([
            {"op": "replace", "path": "/a", "value": 2},
            {"op": "remove", "path": "/b/c~1d/1"},
            {"op": "remove", "path": "/b/c~1d/1"},
        ])
    );
}

#[tokio::test]
async fn custom_events_and_media_are_custom() {
    let image = Media::new(MediaSource::Base64("AA==".into())).with_media_type("image/png");
    let events = events(ok(vec![
        Event::Custom(Box::new(
            CustomEvent::new("progress", json!(0.5)).for_call(CallId::new("c")),
        )),
        Event::Part(Box::new(Part::new(PartKind::Image(image)))),
        Event::Part(Box::new(Part::text("text"))),
        finish(),
    ]))
    .await;
    assert_eq!(
        events[1],
        json!({"type": "CUSTOM", "name": "progress", "value": 0.5, "metadata": {"toolCallId": "c"}})
    );
    assert_eq!(
        events[2]["value"],
        json!({"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}})
    );
    assert_eq!(events[4]["delta"], "text");
}

#[tokio::test]
async fn the_state_handle_is_in_the_context() {
    let model = service_fn(async |request: ChatRequest| {
        let state = request.context.extensions().get::<AgUiState>().unwrap();
        assert_eq!(*state.get(), json!({"n": 1}));
        state.update(|value| value["n"] = 2.into()).unwrap();
        state.update(|_| {}).unwrap();
        state.update(|value| value["n"] = 3.into()).unwrap();
        let error = state.update(|value| value["n"] = "x".repeat(100).into());
        assert!(matches!(error, Err(StateError::TooLarge { .. })));
        assert_eq!(*state.get(), json!({"n": 3}));
        Ok::<_, Error>(ChatResponse::new(stream::iter(ok(vec![finish()]))))
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let service = AgUiLayer::new().state_limit(50).layer(agent);
    let mut input = input();
    input["state"] = json!({"n": 1});
    let events = send(service, post(input.to_string())).await.events();
    // The first update was replaced before it was written.
    assert_eq!(
        of(&events, "STATE_SNAPSHOT")[0]["snapshot"],
        json!({"n": 3})
    );
    assert!(of(&events, "STATE_DELTA").is_empty());
}
