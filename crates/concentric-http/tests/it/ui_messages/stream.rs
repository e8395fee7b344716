//! The chunks of each event.

use super::*;
use crate::{
    ag_ui_stream::random::{any_end, any_event, block_on},
    support::{finish, finish_with, step, step_end},
};
use concentric_core::{
    CallId, CancelReason, CustomEvent, ErrorKind, Executor, Media, MediaSource, Outcome, Part,
    PartKind, RunId, SubAgentEvent, ToolCallDelta, ToolCallPart, ToolCallStart, ToolOutcome,
    ToolResult,
};
use concentric_http::ui_messages::Sdk;
use proptest::prelude::*;
use std::sync::Arc;

fn ok(events: Vec<Event>) -> Vec<Item> {
    events.into_iter().map(Ok).collect()
}

fn call(id: &str, arguments: &str) -> Event {
    Event::tool_call(ToolCallPart::new(CallId::new(id), "look", arguments))
}

fn result(id: &str, outcome: ToolOutcome) -> Event {
    let result = ToolResult::new(CallId::new(id), "look", outcome);
    Event::ToolResult(Box::new(result))
}

fn custom(name: &str, value: Value, call: Option<&str>) -> Event {
    let mut event = CustomEvent::new(name, value);
    event.call_id = call.map(CallId::new);
    Event::Custom(Box::new(event))
}

#[tokio::test]
async fn text_and_reasoning_are_parts_of_a_step() {
    let script = vec![
        step(0, "m"),
        Event::ReasoningDelta("think".into()),
        Event::text("a"),
        Event::text("\"\n"),
        step_end(0),
        finish(),
    ];
    let (chunks, message) = run(ok(script)).await;
    assert_eq!(
        rest(&chunks),
        json!([
            {"type": "start-step"},
            {"type": "reasoning-start", "id": "m~reasoning"},
            {"type": "reasoning-delta", "id": "m~reasoning", "delta": "think"},
            {"type": "reasoning-end", "id": "m~reasoning"},
            {"type": "text-start", "id": "m~text"},
            {"type": "text-delta", "id": "m~text", "delta": "a"},
            {"type": "text-delta", "id": "m~text", "delta": "\"\n"},
            {"type": "text-end", "id": "m~text"},
            {"type": "finish-step"},
            {"type": "finish", "finishReason": "stop", "messageMetadata":
                {"usage": {"inputTokens": 3, "outputTokens": 2}}},
        ])
    );
    assert!(message.id.starts_with("msg_"));
    let quiet = UiMessagesLayer::new().reasoning(false);
    let (_, message) = run_with(
        &quiet,
        ok(vec![Event::ReasoningDelta("x".into()), finish()]),
    )
    .await;
    assert!(message.parts.is_empty());
}

#[tokio::test]
async fn two_parallel_calls_have_previews_and_results() {
    let preview = |at, id: &str| {
        Event::ToolCallStart(Box::new(ToolCallStart::new(at, CallId::new(id), "look")))
    };
    let script = vec![
        step(0, "m"),
        preview(0, "a"),
        preview(1, "b"),
        Event::ToolCallDelta(ToolCallDelta::new(0, "{\"n\":")),
        Event::ToolCallDelta(ToolCallDelta::new(1, "{}")),
        call("a", "{\"n\":\n1}"),
        call("b", "{}"),
        custom("progress", json!("half"), Some("b")),
        result("b", ToolOutcome::done("B")),
        result("a", ToolOutcome::failed("A")),
        step_end(0),
        finish(),
    ];
    let (chunks, message) = run(ok(script)).await;
    assert_eq!(
        Value::from(chunks[2..10].to_vec()),
        json!([
            {"type": "tool-input-start", "toolCallId": "a", "toolName": "look", "dynamic": true},
            {"type": "tool-input-start", "toolCallId": "b", "toolName": "look", "dynamic": true},
            {"type": "tool-input-delta", "toolCallId": "a", "inputTextDelta": "{\"n\":"},
            {"type": "tool-input-delta", "toolCallId": "b", "inputTextDelta": "{}"},
            {"type": "tool-input-available", "toolCallId": "a", "toolName": "look",
             "input": {"n": 1}, "dynamic": true},
            {"type": "tool-input-available", "toolCallId": "b", "toolName": "look",
             "input": {}, "dynamic": true},
            {"type": "tool-output-available", "toolCallId": "b", "output": "half",
             "preliminary": true},
            {"type": "tool-output-available", "toolCallId": "b", "output": "B"},
        ])
    );
    assert_eq!(message.tool("b")["output"], "B");
    assert_eq!(message.tool("a")["state"], "output-error");
    assert_eq!(message.tool("a")["errorText"], "A");
    assert_eq!(message.tool("a")["input"], json!({"n": 1}));
}

#[tokio::test]
async fn each_outcome_has_a_state() {
    for (outcome, state) in [
        (ToolOutcome::done("x"), "output-available"),
        (ToolOutcome::failed("x"), "output-error"),
        (ToolOutcome::unknown("x"), "output-error"),
        (ToolOutcome::cancelled("x"), "output-error"),
        // The client has no approval of the call, which a denied part must have.
        (ToolOutcome::denied("x"), "output-error"),
    ] {
        let script = vec![call("a", "{}"), result("a", outcome), finish()];
        assert_eq!(run(ok(script)).await.1.tool("a")["state"], state);
    }
    let mut outcome = ToolOutcome::done("for the model");
    outcome.data = Some(Arc::new(json!({"rows": [1]})));
    let script = vec![call("a", ""), result("a", outcome), finish()];
    let (_, message) = run(ok(script)).await;
    assert_eq!(message.tool("a")["output"], json!({"rows": [1]}));
    assert_eq!(message.tool("a")["input"], json!({}));
}

#[tokio::test]
async fn arguments_that_are_not_json_are_an_error_of_the_input() {
    let script = vec![
        call("a", "{\"n"),
        result("a", ToolOutcome::failed("no JSON")),
        finish(),
    ];
    let (chunks, _) = run(ok(script)).await;
    assert_eq!(
        chunks[2],
        json!({"type": "tool-input-error", "toolCallId": "a", "toolName": "look",
            "input": "{\"n", "errorText": "no JSON", "dynamic": true})
    );
}

#[tokio::test]
async fn static_and_provider_tools_are_marked() {
    let part = ToolCallPart::new(CallId::new("a"), "look", "{}").executed_by(Executor::Provider);
    let layer = UiMessagesLayer::new().dynamic_tools(false);
    let script = vec![Event::tool_call(part), finish()];
    let (chunks, message) = run_with(&layer, ok(script)).await;
    assert_eq!(chunks[1]["providerExecuted"], true);
    assert_eq!(message.tool("a")["type"], "tool-look");
}

#[tokio::test]
async fn a_reset_removes_the_parts_of_its_step() {
    let script = || {
        ok(vec![
            step(0, "m"),
            Event::text("kept"),
            call("a", "{}"),
            result("a", ToolOutcome::done("kept")),
            step_end(0),
            step(1, "n"),
            Event::text("gone"),
            call("b", "{}"),
            Event::Reset,
            Event::text("new"),
            step_end(1),
            finish(),
        ])
    };
    let (_, message) = run(script()).await;
    assert_eq!(message.text(), "keptnew");
    assert!(message.parts.iter().all(|part| part["toolCallId"] != "b"));
    let v6 = UiMessagesLayer::new().sdk(Sdk::V6);
    let (chunks, message) = run_with(&v6, script()).await;
    assert!(chunks.iter().all(|chunk| chunk["type"] != "reset-step"));
    assert!(chunks.iter().any(|chunk| chunk["type"] == "data-reset"));
    assert_eq!(message.tool("b")["state"], "output-error");
}

#[tokio::test]
async fn data_sources_and_files_are_parts() {
    let image = Media::new(MediaSource::Base64("AAAA".into())).with_media_type("image/png");
    let url = Media::new(MediaSource::Url("https://example.com/a.pdf".into()));
    let hidden = Media::new(MediaSource::Id("file_1".into()));
    let part = |kind| Event::Part(Box::new(Part::new(kind)));
    let script = || {
        ok(vec![
            Event::State(Arc::new(json!({"n": 1}))),
            Event::State(Arc::new(json!({"n": 2}))),
            custom("weather", json!({"t": 20}), None),
            custom(
                "source-url",
                json!({"url": "https://a.example", "title": "A"}),
                None,
            ),
            custom(
                "source-document",
                json!({"title": "B", "mediaType": "text/plain"}),
                None,
            ),
            part(PartKind::Image(image.clone())),
            part(PartKind::File(url.clone())),
            part(PartKind::File(hidden.clone())),
            finish(),
        ])
    };
    let (_, message) = run(script()).await;
    assert_eq!(
        Value::from(message.parts),
        json!([
            {"type": "data-state", "id": "state", "data": {"n": 2}},
            {"type": "data-weather", "data": {"t": 20}},
            {"type": "source-url", "sourceId": "https://a.example", "url": "https://a.example", "title": "A"},
            {"type": "source-document", "sourceId": "B", "title": "B", "mediaType": "text/plain"},
            {"type": "file", "url": "data:image/png;base64,AAAA", "mediaType": "image/png"},
            {"type": "file", "url": "https://example.com/a.pdf", "mediaType": "application/octet-stream"},
        ])
    );
    let layer = UiMessagesLayer::new().sources(false).transient(true);
    let (_, message) = run_with(&layer, script()).await;
    let kinds: Vec<_> = message
        .parts
        .iter()
        .map(|part| part["type"].clone())
        .collect();
    assert_eq!(kinds, ["data-state", "file", "file"]);
}

#[tokio::test]
async fn sub_agents_are_data() {
    let sub = |event| {
        let call = Some(CallId::new("a"));
        let event = SubAgentEvent::new(RunId::new("r1"), Some("helper".into()), call, event);
        Event::SubAgent(Box::new(event))
    };
    let script = || {
        ok(vec![
            call("a", "{}"),
            sub(Event::text("inner")),
            sub(Event::ReasoningDelta("thought".into())),
            result("a", ToolOutcome::done("done")),
            finish(),
        ])
    };
    let quiet = UiMessagesLayer::new().reasoning(false);
    for (layer, has_thought) in [(UiMessagesLayer::new(), true), (quiet, false)] {
        let (chunks, _) = run_with(&layer, script()).await;
        let is_thought = |chunk: &Value| chunk["data"]["delta"] == "thought";
        assert_eq!(chunks.iter().any(is_thought), has_thought);
    }
    let (chunks, message) = run(script()).await;
    let delta = json!({"type": "data-agent-delta", "transient": true,
        "data": {"runId": "r1", "type": "text", "delta": "inner"}});
    assert!(chunks.contains(&delta), "{chunks:?}");
    assert_eq!(message.text(), "");
    assert_eq!(
        message.parts[1],
        json!({"type": "data-agent", "id": "r1", "data": {"runId": "r1", "name": "helper",
            "toolCallId": "a", "status": "done"}})
    );
}

#[tokio::test]
async fn each_end_has_its_chunk() {
    let aborted = Outcome::Aborted {
        reason: CancelReason::User,
    };
    let (chunks, message) = run(ok(vec![call("a", "{}"), finish_with(aborted)])).await;
    assert_eq!(
        chunks.last().unwrap(),
        &json!({"type": "abort", "reason": "user"})
    );
    assert_eq!(message.tool("a")["state"], "output-error");
    let (_, message) = run(ok(vec![finish_with(Outcome::StepLimit)])).await;
    assert_eq!(message.end.unwrap()["finishReason"], "other");
    assert_eq!(message.metadata["outcome"], "step_limit");

    let secret = Error::new(ErrorKind::Server, "key sk-123 at 10.0.0.1");
    let (chunks, _) = run(vec![Ok(Event::text("a")), Err(secret)]).await;
    let text = "The model could not be reached. Please try again.";
    assert_eq!(
        chunks.last().unwrap(),
        &json!({"type": "error", "errorText": text})
    );
    let code = json!({"type": "data-error", "data": {"code": "server"}, "transient": true});
    assert!(chunks.contains(&code), "{chunks:?}");
    let (chunks, _) = run(vec![Ok(Event::text("a"))]).await;
    let text = "The answer was cut off.";
    assert_eq!(
        chunks.last().unwrap(),
        &json!({"type": "error", "errorText": text})
    );
    // Nothing could be answered.
    let (chunks, _) = run(ok(vec![finish_with(Outcome::Interrupted)])).await;
    assert_eq!(chunks.last().unwrap()["type"], "error");
}

#[tokio::test]
async fn a_panic_ends_the_answer() {
    let panics = tower::service_fn(|_: ChatRequest| async {
        let events = futures_util::stream::iter(0..2).map(|n| match n {
            0 => Ok(Event::text("a")),
            _ => panic!("secret"),
        });
        Ok::<_, Error>(ChatResponse::new(events))
    });
    use futures_util::StreamExt;
    let answer = ask(&UiMessagesLayer::new(), panics, &hi()).await;
    let chunks = chunks(&answer.body);
    assert_eq!(chunks.last().unwrap()["errorText"], "Something went wrong.");
    assert!(!answer.body.contains("secret"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_sequence_of_events_builds_a_message(
        script in prop::collection::vec(any_event(), 0..40),
        end in any_end(),
        is_old in any::<bool>(),
    ) {
        let sdk = if is_old { Sdk::V6 } else { Sdk::V7 };
        let layer = UiMessagesLayer::new().sdk(sdk);
        let mut items = ok(script);
        items.extend(end);
        block_on(run_with(&layer, items));
    }
}
