//! Translation of a run's events to protocol events.

use crate::support::{
    Item, agent, events, finish, finish_with, input, legal, post, run, send, step, step_end, types,
};
use concentric_core::{
    AgentLayer, CallId, CancelReason, ChatRequest, ChatResponse, Custom, Error, ErrorKind, Event,
    Executor, FinishReason, Head, Media, MediaSource, NoTools, Outcome, Part, PartKind, Refusal,
    RunId, SubAgentEvent, ToolCallDelta, ToolCallPart, ToolCallStart, ToolOutcome, ToolResult,
    Usage,
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
async fn a_reset_after_a_step_names_the_messages_of_that_step() {
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
            Custom::new("progress", json!(0.5)).for_call(CallId::new("c")),
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
async fn each_outcome_has_its_terminal_event() {
    let halted = Outcome::Halted {
        reason: "enough".into(),
    };
    let aborted = Outcome::Aborted {
        reason: CancelReason::User,
    };
    for (outcome, expected, metadata) in [
        (Outcome::Completed, "success", json!(null)),
        (
            halted,
            "success",
            json!({"outcome": "halted", "reason": "enough"}),
        ),
        (
            Outcome::StepLimit,
            "success",
            json!({"outcome": "step_limit"}),
        ),
        (
            Outcome::CallLimit,
            "success",
            json!({"outcome": "call_limit"}),
        ),
        (aborted, "cancelled", json!({"reason": "user"})),
    ] {
        let events = events(ok(vec![Event::text("x"), finish_with(outcome)])).await;
        let last = events.last().unwrap();
        assert_eq!(last["type"], "RUN_FINISHED");
        assert_eq!(last["outcome"]["type"], expected);
        assert_eq!(last["metadata"], metadata);
        assert_eq!(last["usage"][0]["outputTokens"], 2);
    }
}

#[tokio::test]
async fn unexecuted_calls_are_pending_for_the_client() {
    let events = events(ok(vec![
        call_by(Executor::Loop, "a"),
        call_by(Executor::Client, "b"),
        call_by(Executor::Provider, "c"),
        call_by(Executor::Agent, "d"),
        call_by(Executor::Loop, "e"),
        result("e", ToolOutcome::done("")),
        finish(),
    ]))
    .await;
    assert_eq!(
        events.last().unwrap()["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["a", "b"]})
    );
}

#[tokio::test]
async fn a_client_tool_ends_the_run_with_its_call_pending() {
    let model = service_fn(async |_: ChatRequest| {
        Ok::<_, Error>(ChatResponse::new(stream::iter(ok(vec![
            call("c", "confirm", "{}"),
            Event::finish(FinishReason::ToolCalls, Usage::new(1, 1)),
        ]))))
    });
    let agent = AgentLayer::new(NoTools).layer(model);
    let mut input = input();
    input["tools"] = json!([{"name": "confirm", "description": "Asks the user."}]);
    let first = run(agent.clone(), &input).await;
    assert_eq!(
        first.last().unwrap()["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["c"]})
    );

    // The client sends the conversation without the result, so the run waits for it again.
    input["messages"].as_array_mut().unwrap().push(json!(
        {"id": "a", "role": "assistant", "toolCalls": [
            {"id": "c", "type": "function", "function": {"name": "confirm", "arguments": "{}"}}]}
    ));
    let again = run(agent, &input).await;
    assert_eq!(types(&again), ["RUN_STARTED", "RUN_FINISHED"],);
    assert_eq!(
        again.last().unwrap()["outcome"],
        json!({"type": "success", "pendingToolCallIds": ["c"]})
    );
}

#[tokio::test]
async fn a_run_that_waits_without_an_interrupt_is_an_error() {
    let events = events(ok(vec![finish_with(Outcome::Interrupted)])).await;
    assert_eq!(events.last().unwrap()["type"], "RUN_ERROR");
    assert_eq!(events.last().unwrap()["code"], "configuration");
}

#[tokio::test]
async fn an_error_closes_open_items_and_reveals_no_secret() {
    let error = || {
        Error::new(ErrorKind::Authentication, "Incorrect API key: sk-secret")
            .with_source(std::io::Error::other("postgres://user:hunter2-pw@host"))
    };
    let mut script = ok(vec![
        step(0, "m"),
        Event::text("x"),
        step_end(0),
        step(1, "n"),
        preview(0, "c", "f"),
    ]);
    script.push(Err(error()));
    script.push(Ok(Event::text("never")));
    let service = AgUiLayer::new().layer(agent(script));
    let answer = send(service, post(input().to_string())).await;
    assert!(!answer.body.contains("secret") && !answer.body.contains("hunter2-pw"));
    let events = answer.events();
    assert_eq!(
        types(&events)[types(&events).len() - 4..],
        [
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "STEP_FINISHED",
            "RUN_ERROR"
        ]
    );
    assert_eq!(
        *events.last().unwrap(),
        json!({"type": "RUN_ERROR", "code": "authentication",
               "message": "The agent has no access to its model.",
               "usage": [{"inputTokens": 3, "outputTokens": 2}]})
    );

    // An error of the future, with a message from the host.
    let failing = service_fn(move |_: ChatRequest| {
        let error = error();
        async move { Err::<ChatResponse<crate::support::Script>, _>(error) }
    });
    let service = AgUiLayer::new()
        .error_message(|error| format!("{}!", error.kind()))
        .layer(failing);
    let events = send(service, post(input().to_string())).await.events();
    assert_eq!(types(&events), ["RUN_STARTED", "RUN_ERROR"]);
    assert_eq!(events[1]["message"], "authentication!");
}

#[tokio::test]
async fn a_body_that_ends_early_is_an_error() {
    let events = events(ok(vec![Event::text("Once upon a")])).await;
    assert_eq!(types(&events)[3..], ["TEXT_MESSAGE_END", "RUN_ERROR"]);
    assert_eq!(events.last().unwrap()["code"], "truncated");
}

#[tokio::test]
async fn the_usage_names_provider_and_model() {
    let agent = service_fn(async |_: ChatRequest| {
        let mut head = Head::default();
        head.provider = Some("openai".into());
        head.model = Some("gpt".into());
        let body = stream::iter(ok(vec![finish()]));
        Ok::<_, Error>(ChatResponse::new(body).with_head(head))
    });
    let events = run(agent, &input()).await;
    assert_eq!(
        events.last().unwrap()["usage"],
        json!([{"provider": "openai", "model": "gpt", "inputTokens": 3, "outputTokens": 2}])
    );
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

#[tokio::test]
async fn a_thousand_events_keep_their_order() {
    let mut script = vec![step(0, "m")];
    script.extend((0..1000).map(|n| Event::text(format!("{n} "))));
    script.push(finish());
    let events = events(ok(script)).await;
    let text: String = of(&events, "TEXT_MESSAGE_CONTENT")
        .iter()
        .map(|e| e["delta"].as_str().unwrap())
        .collect();
    let expected: String = (0..1000).map(|n| format!("{n} ")).collect();
    assert_eq!(text, expected);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..5_i64).prop_map(Value::from),
        "[a-c/~\"]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c/~ ]{0,2}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// An event of the agent, of a sub-agent, or of a nested sub-agent. Events of a hostile agent come
/// in any order, and use few ids so that they collide.
fn any_event() -> impl Strategy<Value = Event> {
    let id = || prop_oneof![Just("u"), Just("c"), Just("s")];
    let sub = move |event| {
        let of = (id(), prop::option::of(id()), event);
        of.prop_map(|(run, call, event)| {
            let call = call.map(CallId::new);
            let event = SubAgentEvent::new(RunId::new(run), None, call, event);
            Event::SubAgent(Box::new(event))
        })
    };
    let end = any_end().prop_map(|end| match end {
        Some(Ok(end)) => end,
        _ => Event::Reset,
    });
    let inner = prop_oneof![6 => own_event(), 1 => end].boxed();
    let inner = inner.prop_recursive(2, 4, 1, sub);
    prop_oneof![3 => own_event(), 2 => sub(inner.boxed())]
}

fn own_event() -> impl Strategy<Value = Event> {
    let id = || prop_oneof![Just("u"), Just("c"), Just("c~2"), Just(""), Just("\"\n")];
    let text = || prop_oneof![Just(""), Just("x"), Just("\r\n\n"), Just("\u{0}é\"")];
    let executor = || {
        prop_oneof![
            Just(Executor::Loop),
            Just(Executor::Client),
            Just(Executor::Agent),
            Just(Executor::Provider)
        ]
    };
    prop_oneof![
        (0..2_u32, id()).prop_map(|(n, id)| step(n, id)),
        (0..2_u32).prop_map(step_end),
        text().prop_map(Event::text),
        text().prop_map(|t| Event::ReasoningDelta(t.into())),
        text().prop_map(|t| Event::RefusalDelta(t.into())),
        Just(Event::PartEnd(Box::default())),
        text().prop_map(|t| Event::Part(Box::new(Part::text(t)))),
        text().prop_map(|t| Event::Part(Box::new(Part::new(PartKind::Reasoning(t.into()))))),
        (id(), executor()).prop_map(|(id, executor)| {
            let call = ToolCallPart::new(CallId::new(id), "g", "{").executed_by(executor);
            Event::Part(Box::new(Part::new(PartKind::ToolCall(call))))
        }),
        (0..3_u32, id()).prop_map(|(n, id)| preview(n, id, "f")),
        (0..3_u32, text()).prop_map(|(n, t)| piece(n, t)),
        (id(), executor()).prop_map(|(id, executor)| call_by(executor, id)),
        id().prop_map(|id| result(id, ToolOutcome::done("x"))),
        id().prop_map(|id| {
            let call = ToolCallPart::new(CallId::new(id), "f", "");
            result(id, Refusal::DuplicateId.outcome(&call))
        }),
        any_json().prop_map(state),
        any_json().prop_map(|v| Event::Custom(Box::new(Custom::new("n", v)))),
        Just(Event::Resumed),
        Just(Event::Reset),
    ]
}

fn any_end() -> impl Strategy<Value = Option<Item>> {
    prop_oneof![
        Just(None),
        Just(Some(Err(Error::new(ErrorKind::Server, "x")))),
        Just(Some(Ok(finish()))),
        Just(Some(Ok(finish_with(Outcome::Interrupted)))),
        Just(Some(Ok(finish_with(Outcome::StepLimit)))),
        Just(Some(Ok(finish_with(Outcome::Aborted {
            reason: CancelReason::User
        })))),
    ]
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Applies a patch like a client.
fn apply(value: &mut Value, delta: &Value) {
    for op in delta.as_array().unwrap() {
        let path = op["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').expect("never the root");
        let key = key.replace("~1", "/").replace("~0", "~");
        match value.pointer_mut(parent).unwrap() {
            Value::Object(map) => match op["op"].as_str().unwrap() {
                "add" => assert!(map.insert(key, op["value"].clone()).is_none()),
                "replace" => assert!(map.insert(key, op["value"].clone()).is_some()),
                "remove" => assert!(map.remove(&key).is_some()),
                other => panic!("{other}"),
            },
            Value::Array(list) => {
                let at: usize = key.parse().unwrap();
                match op["op"].as_str().unwrap() {
                    "add" => list.insert(at, op["value"].clone()),
                    "replace" => list[at] = op["value"].clone(),
                    "remove" => drop(list.remove(at)),
                    other => panic!("{other}"),
                }
            }
            other => panic!("{other}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_sequence_of_events_becomes_a_legal_stream(
        script in prop::collection::vec(any_event(), 0..40),
        end in any_end(),
        rest in prop::collection::vec(any_event(), 0..3),
    ) {
        let text = |events: &[Event]| -> String {
            events.iter().map(|event| match event {
                Event::TextDelta(text) | Event::RefusalDelta(text) => text.as_str(),
                Event::Part(part) => match &part.kind {
                    PartKind::Text(text) => text.as_str(),
                    _ => "",
                },
                _ => "",
            }).collect()
        };
        let expected = text(&script);
        let mut items = ok(script);
        items.extend(end);
        if items.last().is_some_and(|last| last.as_ref().map_or(true, Event::is_finish)) {
            items.extend(ok(rest));
        }
        let events = block_on(events(items));
        let written: String = of(&events, "TEXT_MESSAGE_CONTENT")
            .iter()
            .filter(|e| e["subagentRunId"].is_null())
            .map(|e| e["delta"].as_str().unwrap())
            .collect();
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn applying_the_deltas_yields_the_state(
        states in prop::collection::vec(any_json(), 1..8),
    ) {
        let script = states.iter().cloned().map(state).chain([finish()]);
        let events = block_on(events(ok(script.collect())));
        let mut value = Value::Null;
        for event in &events {
            match event["type"].as_str().unwrap() {
                "STATE_SNAPSHOT" => value = event["snapshot"].clone(),
                "STATE_DELTA" => apply(&mut value, &event["delta"]),
                _ => {}
            }
        }
        prop_assert_eq!(Some(&value), states.last());
    }
}

#[test]
fn the_helper_rejects_an_illegal_stream() {
    let cut = "data: {\"type\":\"RUN_STARTED\",\"threadId\":\"t\",\"runId\":\"r\"}\n\n";
    assert!(std::panic::catch_unwind(|| legal(cut)).is_err());
}

/// Returns the written events; fails if writing takes longer than linear work could.
fn in_time(events: Vec<Item>) -> Vec<Value> {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        done.send(runtime.block_on(crate::support::events(events)))
    });
    let events = wait.recv_timeout(std::time::Duration::from_secs(60));
    events.expect("it takes too long")
}

#[test]
fn many_messages_of_a_step_are_written() {
    const MANY: usize = 50_000;
    let mut script = vec![Ok(step(0, "m"))];
    for _ in 0..MANY {
        script.push(Ok(Event::ReasoningDelta("a".into())));
        script.push(Ok(Event::text("b")));
    }
    script.push(Ok(finish()));
    let events = in_time(script);
    let texts = types(&events)
        .into_iter()
        .filter(|t| *t == "TEXT_MESSAGE_START");
    assert_eq!(texts.count(), MANY);
}

#[test]
fn many_concurrent_calls_are_written() {
    const MANY: u32 = 20_000;
    let mut script = vec![Ok(step(0, "m"))];
    for at in 0..MANY {
        let id = CallId::new(format!("c{at}"));
        script.push(Ok(Event::ToolCallStart(Box::new(ToolCallStart::new(
            at, id, "f",
        )))));
    }
    for at in 0..MANY {
        script.push(Ok(Event::ToolCallDelta(ToolCallDelta::new(at, "{}"))));
    }
    script.push(Ok(finish()));
    let events = in_time(script);
    let deltas = types(&events)
        .into_iter()
        .filter(|t| *t == "TOOL_CALL_ARGS");
    assert_eq!(deltas.count(), MANY as usize);
}

#[tokio::test]
async fn a_rejected_run_reports_its_code() {
    for (code, message) in [
        ("run_live", "This run is already in progress."),
        ("run_exists", "A run with this id already exists."),
        (
            "conflict",
            "There is nothing to resume: the questions were already answered, or have expired.",
        ),
    ] {
        let error = Error::new(ErrorKind::Conflict, "secret").with_code(code);
        let events = events(vec![Err(error)]).await;
        let end = events.last().unwrap();
        assert_eq!(
            (&end["type"], &end["code"], &end["message"]),
            (&json!("RUN_ERROR"), &json!(code), &json!(message))
        );
    }
}
