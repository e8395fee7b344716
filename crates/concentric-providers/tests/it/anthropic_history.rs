//! Conversations that are sent to Anthropic's Messages API.

use crate::anthropic::*;
use crate::common::{End, Script};
use concentric_core::{
    Author, CallId, ChatRequest, Event, Executor, Media, MediaSource, Message, MessageBuilder,
    Part, PartKind, ProviderData, ResponseHead, Role, Round, ToolCallPart, ToolOutcome, Turn,
};
use concentric_providers::AnthropicLayer;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn provider_data_is_sent_back_unchanged() {
    let search = ToolCallPart::new(CallId::new("call_0"), "web_search", "{\"query\":\"a\"}")
        .with_provider_id(Some("srvtoolu_1".into()))
        .executed_by(Executor::Provider);
    let found =
        json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let redacted = json!({"type": "redacted_thinking", "data": "abc"});
    let mut request = ChatRequest::user("hi");
    request.transcript.push(round(
        vec![
            own(
                PartKind::Reasoning("Hmm.".into()),
                Some(json!({"signature": "sig"})),
            ),
            own(
                PartKind::ToolCall(search),
                Some(json!({"type": "server_tool_use", "caller": {"type": "direct"}})),
            ),
            opaque(found.clone()),
            opaque(redacted.clone()),
            own(
                PartKind::Text("x".into()),
                Some(json!({"citations": [{"cited_text": "x"}]})),
            ),
            opaque(json!({"type": "message", "stop_sequence": "a"})),
            // The call preceded the text.
            own(
                PartKind::ToolCall(call("call_1", "toolu_1")),
                Some(json!({"followed_by": 1})),
            ),
            own(
                PartKind::ToolCall(call("call_2", "toolu_2")),
                Some(json!({"caller": {"type": "direct"}})),
            ),
        ],
        vec![
            result("call_1", ToolOutcome::done("found")),
            result("call_2", ToolOutcome::failed("no")),
        ],
    ));
    request.transcript.push_user("and?");
    let body = sent(&plain(), request).await;
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hmm.", "signature": "sig"},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search",
                    "input": {"query": "a"}, "caller": {"type": "direct"}},
                found,
                redacted,
                {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": 1}},
                {"type": "text", "text": "x", "citations": [{"cited_text": "x"}]},
                {"type": "tool_use", "id": "toolu_2", "name": "search", "input": {"q": 1},
                    "caller": {"type": "direct"}},
            ]},
            // The results are grouped, and come first.
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": true},
                {"type": "text", "text": "and?"},
            ]},
        ])
    );
}

#[tokio::test]
async fn a_response_is_sent_back_unchanged() {
    let content = json!([
        {"type": "thinking", "thinking": "Hmm.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
        {"type": "compaction", "content": null},
        {"type": "text", "text": "So,"},
        {"type": "text", "text": "x", "citations": [{"type": "char_location", "cited_text": "x"}]},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "1"}},
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": 1},
            "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}},
        {"type": "thinking", "thinking": "", "signature": "sig2"},
        {"type": "tool_use", "id": "toolu_2", "name": "search", "input": {}},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "ask", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": false, "content": []},
        {"type": "text", "text": "and so on."},
        {"type": "tool_use", "id": "toolu_3", "name": "search", "input": {"q": "\u{20ac}"}},
    ]);
    let answer = json!({"type": "message", "id": "msg_1", "model": "claude-opus-4-8",
        "content": content, "stop_reason": "tool_use", "container": {"id": "container_1"}});
    let script = Script::new([answer.to_string()], End::Clean);
    let response = call_with(&plain(), script).await;
    let mut builder = MessageBuilder::new(&response.0);
    response.1.iter().for_each(|event| builder.push(event));
    let message = builder.build();
    let results = message
        .tool_calls()
        .filter(|call| call.executor == Executor::Loop)
        .map(|call| result(call.id.as_str(), ToolOutcome::done("ok")))
        .collect();
    // As in a store.
    let kept: Turn = Round::new(message, results).unwrap().into();
    let kept: Turn = serde_json::from_value(serde_json::to_value(kept).unwrap()).unwrap();
    let mut request = ChatRequest::user("hi");
    request.transcript.push(kept);
    let body = sent(&plain(), request).await;
    assert_eq!(body["messages"][1]["content"], content);
    assert_eq!(body["container"], "container_1");
    let results = body["messages"][2]["content"].as_array().unwrap();
    let ids: Vec<&Value> = results
        .iter()
        .map(|result| &result["tool_use_id"])
        .collect();
    assert_eq!(ids, ["toolu_1", "toolu_2", "toolu_3"]);
}

async fn call_with(layer: &AnthropicLayer, script: Script) -> (ResponseHead, Vec<Event>) {
    let response = crate::common::call(layer, http::Response::new(script))
        .await
        .unwrap();
    let events: Vec<_> = response.body.collect().await;
    (
        response.head,
        events.into_iter().map(Result::unwrap).collect(),
    )
}

#[tokio::test]
async fn other_providers_messages_are_converted() {
    let by = |kind: PartKind| {
        Part::new(kind)
            .by(Author::Model {
                provider: "openai".into(),
                model: "gpt".into(),
            })
            .with_provider_data(Some(Arc::new(ProviderData::new(
                "openai",
                json!({"signature": "x"}),
            ))))
    };
    let odd = ToolCallPart::new(CallId::new("call|1"), "a.b c", "{\"q\":\"\\ud83d\"}")
        .with_provider_id(Some("fc_1".into()));
    let cut = ToolCallPart::new(CallId::new("call_2"), "search", "{\"q");
    let mut request = ChatRequest::user("hi");
    request.transcript.push(round(
        vec![
            by(PartKind::Reasoning("secret".into())),
            by(PartKind::Text("  \n".into())),
            by(PartKind::Refusal("No.".into())),
            by(PartKind::Image(Media::new(MediaSource::Base64(
                "QUJD".into(),
            )))),
            Part::new(PartKind::Provider(ProviderData::new(
                "openai",
                json!({"type": "x"}),
            ))),
            by(PartKind::ToolCall(odd)),
            by(PartKind::ToolCall(cut)),
        ],
        vec![
            result("call|1", ToolOutcome::done("")),
            result("call_2", ToolOutcome::failed(" ")),
        ],
    ));
    // Ids repeat across runs.
    request.transcript.push(round(
        vec![Part::new(PartKind::ToolCall(call("call_2", "fc_2")))],
        vec![result(
            "call_2",
            ToolOutcome::done(vec![
                Part::text("see"),
                Part::text(""),
                Part::new(PartKind::Image(Media::new(MediaSource::Base64(
                    "QUJD".into(),
                )))),
            ]),
        )],
    ));
    let body = sent(&plain(), request).await;
    let messages = &body["messages"];
    let id = messages[1]["content"][2]["id"].as_str().unwrap().to_owned();
    assert!(!id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric()));
    assert_eq!(
        *messages,
        json!([
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "No."},
                {"type": "text", "text": "[image]"},
                {"type": "tool_use", "id": id, "name": "a_b_c", "input": {"q": "\u{fffd}"}},
                {"type": "tool_use", "id": "call_2", "name": "search", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "The call failed.", "is_error": true},
            ]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "call_2_2", "name": "search", "input": {"q": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_2_2", "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                ]},
            ]},
        ])
    );
}

#[tokio::test]
async fn a_paused_turn_continues() {
    let search = ToolCallPart::new(CallId::new("call_0"), "web_search", "{}")
        .with_provider_id(Some("srvtoolu_1".into()))
        .executed_by(Executor::Provider);
    let begun = own(
        PartKind::ToolCall(search),
        Some(json!({"type": "server_tool_use"})),
    );
    let details = opaque(json!({"type": "message", "stop_reason": "pause_turn",
        "container": {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}}));
    let mut request = ChatRequest::user("hi");
    request.transcript.push(assistant(vec![begun, details]));
    let body = sent(&plain(), request.clone()).await;
    assert_eq!(body["container"], "container_1");
    assert_eq!(
        body["messages"][1],
        json!({"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        ]})
    );
    // The result arrives in the next message of the same turn.
    let found =
        json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let mut whole = request.clone();
    whole
        .transcript
        .push(assistant(vec![opaque(found.clone()), Part::text("Done.")]));
    whole.transcript.push_user("and?");
    let body = sent(&plain(), whole).await;
    assert_eq!(body["messages"][1]["content"].as_array().unwrap().len(), 3);
    assert_eq!(body["messages"][1]["content"][1], found);
    assert!(body.get("container").is_none());
    // Without a result, the call is omitted, and so is a result without a call.
    request
        .transcript
        .push(assistant(vec![Part::text("Done.")]));
    request.transcript.push_user("and?");
    let lost =
        json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_9", "content": []});
    request
        .transcript
        .push(assistant(vec![opaque(lost), Part::text("More.")]));
    request.transcript.push_user("and?");
    let body = sent(&plain(), request).await;
    assert_eq!(
        body["messages"][1]["content"],
        json!([{"type": "text", "text": "Done."}])
    );
    assert_eq!(
        body["messages"][3]["content"],
        json!([{"type": "text", "text": "More."}])
    );
}

#[tokio::test]
async fn a_later_system_message_joins_the_system_prompt() {
    let mut request = ChatRequest::user("hi").with_system("One.");
    let message = Message::new(Role::System, vec![Part::text("Two.")]);
    request.transcript.push(Turn::message(message).unwrap());
    request.transcript.push_user("ho");
    let body = sent(&plain(), request).await;
    assert_eq!(
        body["system"],
        json!([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}])
    );
    assert_eq!(body["messages"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_round_without_thinking_continues_without_it() {
    let thought = |signature: &str| {
        own(
            PartKind::Reasoning("Hmm.".into()),
            Some(json!({ "signature": signature })),
        )
    };
    let redacted = || opaque(json!({"type": "redacted_thinking", "data": "abc"}));
    let called = || Part::new(PartKind::ToolCall(call("call_1", "toolu_1")));
    let cases = [
        (vec![called()], false),
        (vec![Part::text("Let me look."), called()], false),
        (vec![thought("sig"), called()], true),
        (vec![redacted(), called()], true),
    ];
    for (parts, thinks) in cases {
        let mut request = ChatRequest::user("hi");
        request.options_mut().reasoning_effort = Some("high".into());
        let results = vec![result("call_1", ToolOutcome::done("found"))];
        request.transcript.push(round(parts, results));
        let budget = sent(&of("claude-sonnet-4-5"), request.clone()).await;
        let found = budget["thinking"]["type"].as_str();
        assert_eq!(found, thinks.then_some("enabled"), "{budget:#}");
        // With an effort, thinking may start at any time.
        let words = sent(&plain(), request.clone()).await;
        assert_eq!(words["thinking"]["type"], "adaptive");
        // With a budget, it may start again after the round.
        request.transcript.push(assistant(vec![Part::text("So.")]));
        request.transcript.push_user("and?");
        let budget = sent(&of("claude-sonnet-4-5"), request).await;
        assert_eq!(budget["thinking"]["type"], "enabled");
    }
}
