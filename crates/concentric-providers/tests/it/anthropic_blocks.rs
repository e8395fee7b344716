//! Content blocks of Anthropic's responses, and message fields.

use crate::anthropic::stream::*;
use crate::common::{End, Script, call, calls};
use concentric_core::{FinishReason, Message, PartKind};
use serde_json::{Value, json};

#[tokio::test]
async fn a_late_block_stop_is_ignored() {
    let begun = |index| {
        let block = json!({"type": "text", "text": ""});
        event(&json!({"type": "content_block_start", "index": index, "content_block": block}))
    };
    let said = |index, text: &str| {
        let delta = json!({"type": "text_delta", "text": text});
        event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    };
    let ended = |index| event(&json!({"type": "content_block_stop", "index": index}));
    let blocks = [
        begun(0),
        said(0, "a"),
        begun(1),
        ended(0),
        said(1, "b"),
        ended(1),
    ];
    let (events, error) = read(start() + &blocks.concat() + &stop("end_turn")).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(crate::common::text(&events), "ab");
    assert_eq!(message(&events).parts.len(), 2);
}

#[tokio::test]
async fn a_complete_message_yields_the_same_as_a_stream() {
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
            "cache_creation": {"ephemeral_1h_input_tokens": 15},
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
async fn hidden_thinking_is_stored() {
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
async fn compactions_and_fallbacks_are_stored_unchanged() {
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
async fn message_fields_are_the_last_provider_part() {
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
async fn every_stop_reason_is_mapped() {
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
async fn arguments_arrive_in_deltas_or_at_the_start() {
    let with =
        |input: Value| json!({"type": "tool_use", "id": "toolu_1", "name": "t", "input": input});
    for (begun, deltas, expected) in [
        (with(json!({})), &[][..], "{}"),
        (with(json!({})), &[""], "{}"),
        (with(json!("")), &[], "{}"),
        (with(json!(null)), &[], "{}"),
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
