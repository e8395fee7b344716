//! Answers of Anthropic's Messages API, however they come.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::*;
use concentric_core::{
    ErrorKind, Event, Executor, Finish, FinishReason, Head, Message, MessageBuilder, PartKind,
};
use concentric_providers::{AnthropicLayer, ApiKey};
use futures_util::{FutureExt, StreamExt};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::{Arc, atomic::Ordering};

fn layer() -> AnthropicLayer {
    AnthropicLayer::new("claude-opus-4-8", ApiKey::new(CANARY))
}

async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<concentric_core::Error>) {
    read_script(&layer(), Script::new([body], End::Clean)).await
}

fn event(data: &Value) -> String {
    let name = data["type"].as_str().unwrap();
    format!("event: {name}\ndata: {data}\n\n")
}

fn start() -> String {
    event(&json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [],
        "model": "claude-opus-4-8-20260528", "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 10, "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 30, "output_tokens": 1},
    }}))
}

fn block(index: u64, begun: &Value, deltas: &[Value]) -> String {
    let mut out =
        event(&json!({"type": "content_block_start", "index": index, "content_block": begun}));
    for delta in deltas {
        let data = json!({"type": "content_block_delta", "index": index, "delta": delta});
        out += &event(&data);
    }
    out + &event(&json!({"type": "content_block_stop", "index": index}))
}

fn text_block(index: u64, texts: &[&str]) -> String {
    let deltas: Vec<Value> = texts
        .iter()
        .map(|text| json!({"type": "text_delta", "text": text}))
        .collect();
    block(index, &json!({"type": "text", "text": ""}), &deltas)
}

fn call_block(index: u64, begun: &Value, arguments: &[&str]) -> String {
    let deltas: Vec<Value> = arguments
        .iter()
        .map(|json| json!({"type": "input_json_delta", "partial_json": json}))
        .collect();
    block(index, begun, &deltas)
}

fn tool_use(index: u64, id: &str, arguments: &[&str]) -> String {
    let begun = json!({"type": "tool_use", "id": id, "name": "search", "input": {}});
    call_block(index, &begun, arguments)
}

fn stop(reason: &str) -> String {
    let delta = json!({"type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": null},
        "usage": {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 3}}});
    event(&delta) + &event(&json!({"type": "message_stop"}))
}

fn finish_of(events: &[Event]) -> &Finish {
    match events.last() {
        Some(Event::Finish(finish)) => finish,
        other => panic!("{other:?}"),
    }
}

/// The message that the events write.
fn message(events: &[Event]) -> Message {
    let mut builder = MessageBuilder::new(&Head::new("anthropic", "claude-opus-4-8"));
    events.iter().for_each(|event| builder.push(event));
    builder.build()
}

#[tokio::test]
async fn an_answer_is_read_as_it_comes() {
    let ping = event(&json!({"type": "ping"}));
    let body = start() + &ping + &text_block(0, &["Hel", "", "lo"]) + &stop("end_turn");
    let script = Script::new([&body], End::Clean);
    let response = call(&layer(), http::Response::new(script)).await.unwrap();
    assert_eq!(response.head.id.as_deref(), Some("msg_1"));
    assert_eq!(
        response.head.model.as_deref(),
        Some("claude-opus-4-8-20260528")
    );
    assert_eq!(response.head.provider.as_deref(), Some("anthropic"));

    let (events, error) = read(&body).await;
    assert!(error.is_none());
    assert_eq!(events[..2], [Event::text("Hel"), Event::text("lo")]);
    let finish = finish_of(&events);
    assert_eq!(finish.reason, FinishReason::Stop);
    assert_eq!(finish.provider_reason.as_deref(), Some("end_turn"));
    let usage = finish.usage;
    assert_eq!(usage.input_tokens, Some(60));
    assert_eq!(usage.cached_input_tokens, Some(30));
    assert_eq!(usage.cache_write_tokens, Some(20));
    assert_eq!(usage.output_tokens, Some(7));
    assert_eq!(usage.reasoning_tokens, Some(3));
    assert_eq!(usage.total_tokens, None);
}

#[tokio::test]
async fn a_whole_message_says_the_same_as_a_stream() {
    let citation = json!({"type": "char_location", "cited_text": "x", "document_index": 0});
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search"});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
        "content": [], "caller": {"type": "direct"}});
    let streamed = start()
        + &block(
            0,
            &json!({"type": "thinking", "thinking": "", "signature": ""}),
            &[
                json!({"type": "thinking_delta", "thinking": "Hm"}),
                json!({"type": "thinking_delta", "thinking": "m."}),
                json!({"type": "signature_delta", "signature": "sig"}),
            ],
        )
        + &call_block(1, &search, &["{\"query\":", "\"a\"}"])
        + &block(2, &found, &[])
        + &block(
            3,
            &json!({"type": "text", "text": "", "citations": []}),
            &[
                json!({"type": "text_delta", "text": "x"}),
                json!({"type": "citations_delta", "citation": citation}),
            ],
        )
        + &text_block(4, &[" and y"])
        + &tool_use(5, "toolu_1", &["", "{\"q\":", "1}"])
        + &stop("tool_use");
    let mut called = search.clone();
    called["input"] = json!({"query": "a"});
    let whole = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-8-20260528",
        "content": [
            {"type": "thinking", "thinking": "Hmm.", "signature": "sig"},
            called,
            found,
            {"type": "text", "text": "x", "citations": [citation]},
            {"type": "text", "text": " and y", "citations": null},
            {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 10, "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 30, "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 3}},
    });
    let (streamed, error) = read(streamed).await;
    assert!(error.is_none(), "{error:?}");
    let (whole, error) = read(whole.to_string()).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(finish_of(&streamed), finish_of(&whole));
    assert_eq!(finish_of(&whole).reason, FinishReason::ToolCalls);
    let (one, other) = (message(&streamed), message(&whole));
    let said = |message: &Message| -> Vec<(Value, Option<Value>)> {
        let parts = message.parts.iter().map(|part| {
            let kind = match &part.kind {
                PartKind::ToolCall(call) => {
                    json!([call.name, call.provider_id, call.arguments, call.executor])
                }
                kind => json!(kind),
            };
            (
                kind,
                part.provider_data.as_ref().map(|data| data.data.clone()),
            )
        });
        parts.collect()
    };
    assert_eq!(said(&one), said(&other));
    let parts = said(&one);
    assert_eq!(parts.len(), 6);
    assert_eq!(parts[0].1, Some(json!({"signature": "sig"})));
    assert_eq!(
        parts[1].0,
        json!(["web_search", "srvtoolu_1", "{\"query\":\"a\"}", "provider"])
    );
    assert_eq!(parts[1].1, Some(json!({"type": "server_tool_use"})));
    assert_eq!(parts[3].1, Some(json!({"citations": [citation]})));
    assert_eq!(parts[4], (json!({"text": " and y"}), None));
    assert_eq!(
        parts[5].0,
        json!(["search", "toolu_1", "{\"q\":1}", "loop"])
    );
}

#[tokio::test]
async fn f001_an_end_before_message_stop_is_truncated() {
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search"});
    let body = start()
        + &call_block(0, &search, &["{}"])
        + &text_block(1, &["Hel", "lo"])
        + &tool_use(2, "toolu_1", &["{}"])
        + &stop("tool_use");
    let ends: Vec<usize> = body.match_indices("\n\n").map(|(at, _)| at + 2).collect();
    for end in ends.iter().take(ends.len() - 1).chain(&[0]) {
        let (events, error) = read(&body[..*end]).await;
        assert_eq!(
            error.unwrap().kind(),
            ErrorKind::Truncated,
            "{}",
            &body[..*end]
        );
        assert!(!events.iter().any(|event| match event {
            Event::ToolCall(event) => event.call.executor == Executor::Loop,
            _ => false,
        }));
    }
    // The last blank line is no part of it.
    let (events, error) = read(body.trim_end()).await;
    assert!(error.is_none());
    assert_eq!(calls(&events).len(), 2);
    let (_, error) = read(r#"{"type":"message","content":[{"type":"text","te"#).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
}

#[tokio::test]
async fn f005_bytes_in_any_pieces_say_the_same() {
    let body = start()
        + &text_block(0, &["äöü€😀"])
        + &tool_use(1, "toolu_1", &["{\"q\":", "\"€\"}"])
        + &stop("tool_use");
    for size in [1, 2, 3, 7, 64, body.len()] {
        let script = Script::new(body.as_bytes().chunks(size), End::Clean);
        let (events, error) = read_script(&layer(), script).await;
        assert!(error.is_none());
        assert_eq!(text(&events), "äöü€😀");
        assert_eq!(calls(&events)[0].2, "{\"q\":\"€\"}");
    }
}

#[tokio::test]
async fn f008_another_message_behind_the_first_is_an_error() {
    let half = json!({"type": "content_block_start", "index": 0, "content_block":
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}});
    let body =
        start() + &event(&half) + &start() + &tool_use(0, "toolu_2", &["{}"]) + &stop("tool_use");
    let (events, error) = read(body).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
    assert!(calls(&events).is_empty());
    let whole = json!({"type": "message", "content": [{"type": "text", "text": "a"}]});
    let (_, error) = read(format!("{whole}\n{whole}")).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn what_contradicts_itself_is_a_protocol_error() {
    let text = json!({"type": "text", "text": ""});
    let begun = event(&json!({"type": "content_block_start", "index": 0, "content_block": text}));
    let piece = |index: u64| {
        event(&json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "text_delta", "text": "a"}}))
    };
    let nameless = json!({"type": "tool_use", "id": "toolu_1", "input": {}});
    for body in [
        begun.clone(),
        start() + &piece(0),
        start() + &begun + &piece(1),
        start() + &text_block(0, &["a"]) + &piece(0),
        event(&json!({"type": "message_stop"})),
        start() + &block(0, &nameless, &[]) + &stop("tool_use"),
    ] {
        let (_, error) = read(&body).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol, "{body}");
    }
}

#[tokio::test]
async fn f014_what_is_not_known_costs_nothing() {
    let body = start()
        + &event(&json!({"type": "new_event", "index": {}, "delta": 7, "usage": []}))
        + &block(
            0,
            &json!({"type": "new_block", "a": [1], "id": 7}),
            &[json!({"type": "new_delta", "b": {}})],
        )
        + &block(1, &json!(null), &[])
        + &block(
            2,
            &json!({"type": "text", "text": "", "new": null}),
            &[
                json!({"type": "new_delta"}),
                json!({"type": "text_delta", "text": "a", "new": {"text": []}}),
            ],
        )
        + &event(&json!({"type": "message_delta", "delta": null, "usage": null}))
        + &stop("new_reason");
    let (events, error) = read(body).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "a");
    let finish = finish_of(&events);
    assert_eq!(finish.reason, FinishReason::Other("new_reason".into()));
    let message = message(&events);
    let PartKind::Provider(data) = &message.parts[0].kind else {
        panic!("{message:?}")
    };
    assert_eq!(data.data, json!({"type": "new_block", "a": [1], "id": 7}));
    assert_eq!(message.parts.len(), 2);
}

#[tokio::test]
async fn thinking_that_is_not_shown_is_kept() {
    let body = start()
        + &block(
            0,
            &json!({"type": "thinking", "thinking": ""}),
            &[json!({"type": "signature_delta", "signature": "sig"})],
        )
        + &block(1, &json!({"type": "redacted_thinking", "data": "abc"}), &[])
        + &block(
            2,
            &json!({"type": "thinking", "thinking": "", "signature": ""}),
            &[],
        )
        + &text_block(3, &["a"])
        + &stop("end_turn");
    let (events, _) = read(body).await;
    let parts = message(&events).parts;
    assert_eq!(parts.len(), 3);
    assert_eq!(parts[0].kind, PartKind::Reasoning("".into()));
    let data = parts[0].provider_data.as_ref().unwrap();
    assert_eq!(data.data, json!({"signature": "sig"}));
    let PartKind::Provider(data) = &parts[1].kind else {
        panic!()
    };
    assert_eq!(
        data.data,
        json!({"type": "redacted_thinking", "data": "abc"})
    );
}

#[tokio::test]
async fn a_compaction_and_a_fallback_are_kept_as_they_came() {
    let fallback = json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}});
    let body = start()
        + &block(0, &fallback, &[])
        + &block(
            1,
            &json!({"type": "compaction", "content": null, "encrypted_content": null}),
            &[
                json!({"type": "compaction_delta", "content": "So far.", "encrypted_content": "abc"}),
            ],
        )
        + &text_block(2, &["a"])
        + &stop("end_turn");
    let script = Script::new([&body], End::Clean);
    let response = call(&layer(), http::Response::new(script)).await.unwrap();
    assert_eq!(response.head.model.as_deref(), Some("b"));
    let (events, _) = read(body).await;
    let blocks: Vec<Value> = message(&events)
        .parts
        .iter()
        .filter_map(|part| match &part.kind {
            PartKind::Provider(data) => Some(data.data.clone()),
            _ => None,
        })
        .collect();
    let compaction =
        json!({"type": "compaction", "content": "So far.", "encrypted_content": "abc"});
    assert_eq!(blocks, [fallback, compaction]);
}

#[tokio::test]
async fn what_is_said_of_the_message_is_its_last_part_of_the_service() {
    let delta = json!({"type": "message_delta",
        "delta": {"stop_reason": "pause_turn", "container": {"id": "container_1"}},
        "context_management": {"applied_edits": []},
        "usage": {"output_tokens": 7, "iterations": [{"type": "message"}],
            "server_tool_use": {"web_search_requests": 1}}});
    let body = start()
        + &text_block(0, &["a"])
        + &event(&delta)
        + &event(&json!({"type": "message_stop"}));
    let (events, _) = read(body).await;
    assert_eq!(
        finish_of(&events).reason,
        FinishReason::Other("pause_turn".into())
    );
    let message = message(&events);
    let PartKind::Provider(data) = &message.parts[1].kind else {
        panic!()
    };
    assert_eq!(
        data.data,
        json!({
            "type": "message",
            "stop_reason": "pause_turn",
            "container": {"id": "container_1"},
            "context_management": {"applied_edits": []},
            "iterations": [{"type": "message"}],
            "server_tool_use": {"web_search_requests": 1},
        })
    );
}

#[tokio::test]
async fn every_stop_reason_has_its_meaning() {
    for (theirs, ours) in [
        ("end_turn", FinishReason::Stop),
        ("stop_sequence", FinishReason::Stop),
        ("max_tokens", FinishReason::Length),
        ("model_context_window_exceeded", FinishReason::Length),
        ("tool_use", FinishReason::ToolCalls),
        ("refusal", FinishReason::ContentFilter),
        ("pause_turn", FinishReason::Other("pause_turn".into())),
    ] {
        let (events, _) = read(start() + &text_block(0, &["a"]) + &stop(theirs)).await;
        assert_eq!(finish_of(&events).reason, ours);
        assert_eq!(finish_of(&events).provider_reason.as_deref(), Some(theirs));
    }
}

#[tokio::test]
async fn arguments_come_in_deltas_or_with_the_beginning() {
    let with =
        |input: Value| json!({"type": "tool_use", "id": "toolu_1", "name": "t", "input": input});
    for (begun, deltas, expected) in [
        (with(json!({})), &[][..], ""),
        (with(json!({})), &["{}"], "{}"),
        (with(json!({"a": 1})), &[], "{\"a\":1}"),
        (with(json!({"a": 1})), &["{\"a\":", "2}"], "{\"a\":2}"),
        (with(json!("{\"a\":3}")), &[], "{\"a\":3}"),
    ] {
        let body = start() + &call_block(0, &begun, deltas) + &stop("tool_use");
        let (events, error) = read(body).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(calls(&events)[0].2, expected);
    }
}

#[tokio::test]
async fn the_future_is_the_commit_point() {
    let begun = start()
        + &event(&json!({"type": "content_block_start", "index": 0,
        "content_block": {"type": "text", "text": ""}}));
    let silent = Script::new([&begun], End::Silent);
    assert!(
        call(&layer(), http::Response::new(silent))
            .now_or_never()
            .is_none()
    );

    let said = begun
        + &event(&json!({"type": "content_block_delta", "index": 0,
        "delta": {"type": "text_delta", "text": "a"}}));
    let script = Script::new([said], End::Silent);
    let dropped = Arc::clone(&script.dropped);
    let response = call(&layer(), http::Response::new(script))
        .now_or_never()
        .unwrap();
    let mut body = response.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), Event::text("a"));
    assert!(body.next().now_or_never().is_none());
    assert!(!dropped.load(Ordering::SeqCst));
    drop(body);
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn nothing_is_waited_for_behind_message_stop() {
    let body = start() + &text_block(0, &["a"]) + &stop("end_turn");
    let script = Script::new([body], End::Silent);
    let dropped = Arc::clone(&script.dropped);
    let response = call(&layer(), http::Response::new(script)).await.unwrap();
    assert_eq!(response.text().now_or_never().unwrap().unwrap(), "a");
    assert!(dropped.load(Ordering::SeqCst));
}

/// One event, sane or odd.
fn some_event() -> impl Strategy<Value = String> {
    let odd = prop_oneof![
        Just(json!(null)),
        Just(json!(-1)),
        Just(json!("x")),
        Just(json!([1, {"type": "text"}])),
        Just(json!({"type": "tool_use", "id": "toolu_1", "name": "t", "input": [1]})),
        Just(json!({"type": "thinking", "thinking": 7, "signature": {}})),
        Just(json!({"type": "text_delta", "text": "a", "citation": 3})),
        Just(json!({"type": "input_json_delta", "partial_json": "{\"a"})),
        Just(json!({"stop_reason": "end_turn", "usage": {"output_tokens": 1e300}})),
    ];
    let name = prop::sample::select(vec![
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "message",
        "ping",
    ]);
    (name, 0..3_u64, odd.clone(), odd).prop_map(|(name, index, one, other)| {
        event(
            &json!({"type": name, "index": index, "content_block": one, "delta": other,
            "message": other, "usage": one, "content": one, "container": other}),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_comes_ends_once(
        events in prop::collection::vec(some_event(), 0..12),
        sane in any::<bool>(),
    ) {
        let begun = if sane { start() } else { String::new() };
        let body = begun + &events.concat();
        // Asserts that there is one terminal item.
        let (events, error) = read(body).now_or_never().unwrap();
        let executes = |event: &Event| match event {
            Event::ToolCall(event) => event.call.executor == Executor::Loop,
            _ => false,
        };
        prop_assert!(error.is_none() || !events.iter().any(executes));
    }
}
