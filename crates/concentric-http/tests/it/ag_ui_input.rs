//! Request bodies: the input of real clients, and the texts of errors.

use crate::support::{agent, asked_openly, open_policy, post, send};
use concentric_core::{ChatRequest, MediaSource, PartKind, ResumePoint};
use concentric_http::ag_ui::AgUiLayer;
use serde_json::{Value, json};
use tower_layer::Layer;

async fn with_messages(messages: &Value) -> ChatRequest {
    asked_openly(&json!({"threadId": "t", "runId": "r", "messages": messages})).await
}

/// The error of a `400`.
async fn refused(body: &str) -> Value {
    let layer = AgUiLayer::new().client_policy(open_policy());
    let answer = send(layer.layer(agent(vec![])), post(body.to_owned())).await;
    assert_eq!(answer.status, 400, "{body}");
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "invalid_request");
    error
}

#[tokio::test]
async fn input_of_the_ag_ui_client_parses() {
    let request = asked_openly(&json!({
        "threadId": "t", "runId": "r", "protocolVersion": "1.0", "parentRunId": "p",
        "state": {"a": 1},
        "messages": [
            {"id": "1", "role": "developer", "content": "d"},
            {"id": "2", "role": "system", "content": "s", "name": "n"},
            {"id": "3", "role": "user", "content": [
                {"type": "text", "text": "what is "},
                {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
                {"type": "audio", "source": {"type": "url", "value": "https://x/y"}},
                {"type": "video", "source": {"type": "url", "value": "https://x/u", "mimeType": "video/mp4"}},
                {"type": "document", "source": {"type": "file", "value": "f", "provider": "openai"}},
                {"type": "text", "text": "this?"},
            ]},
            {"id": "4", "role": "assistant", "toolCalls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ]},
            {"id": "5", "role": "tool", "toolCallId": "c", "content": "ok"},
            {"id": "6", "role": "reasoning", "content": "hm", "encryptedValue": "e"},
            {"id": "7", "role": "activity", "activityType": "plan", "content": {"done": 1}},
        ],
        "tools": [{"name": "f", "description": "d", "parameters": {"type": "object"}}],
        "context": [{"description": "d", "value": "v"}],
        "forwardedProps": {"x": 1},
        "resume": [
            {"interruptId": "i", "status": "resolved", "payload": {"ok": true}},
            {"interruptId": "j", "status": "cancelled"},
        ],
    }))
    .await;
    assert_eq!(request.system.iter().count(), 2);
    let user = request.transcript.iter().next().unwrap().as_message();
    assert_eq!(user.text(), "what is this?");
    let PartKind::File(document) = &user.parts[4].kind else {
        panic!("{user:?}")
    };
    assert_eq!(document.source, MediaSource::Id("f".into()));
    let round = request.transcript.last().unwrap();
    assert_eq!(round.results()[0].outcome.content.text(), "ok");
    let Some((ResumePoint::InStore, replies)) = request.resume.unwrap().take() else {
        panic!("the run is not resumed")
    };
    assert_eq!(replies.len(), 2);
    assert_eq!(replies[0].payload, Some(json!({"ok": true})));
}

#[tokio::test]
async fn input_of_the_tanstack_client_parses() {
    let request = asked_openly(&json!({
        "threadId": "thread-1795303160566-e738wd", "runId": "run-1795303160668-mv1hjs",
        "state": {},
        "messages": [
            {"id": "msg-1", "role": "user", "content": "hello",
             "metadata": {"tanstack": {"createdAt": "2026-11-21T23:19:20.646Z"}}},
            {"role": "tool", "id": "tool-c1", "toolCallId": "c1", "content": "a.txt",
             "metadata": {"tanstack": {"toolResult": {}}}},
        ],
        "tools": [], "context": [], "forwardedProps": {}, "data": {},
    }))
    .await;
    assert_eq!(
        request
            .transcript
            .iter()
            .next()
            .unwrap()
            .as_message()
            .text(),
        "hello"
    );
}

#[tokio::test]
async fn null_is_absent_where_a_field_is_optional() {
    let request = asked_openly(&json!({
        "threadId": "t", "runId": "r", "state": null, "forwardedProps": null, "resume": null,
        "parentRunId": null,
        "messages": [
            {"id": "0", "role": "user", "content": "hi"},
            {"id": "1", "role": "assistant", "content": null, "toolCalls": null},
        ],
    }))
    .await;
    assert!(request.resume.is_none());
    assert_eq!(request.transcript.len(), 1);
}

#[tokio::test]
async fn text_in_parts_is_text_for_every_role() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([
        {"id": "0", "role": "user", "content": "hi"},
        {"id": "1", "role": "assistant", "content": [text("a"), text("b")]},
    ]);
    let request = with_messages(&messages).await;
    let answer = request.transcript.last().unwrap().as_message();
    assert_eq!(answer.text(), "ab");
}

#[tokio::test]
async fn a_tool_call_without_a_type_is_a_function() {
    let call = |kind: Option<&str>| {
        let mut call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
        if let Some(kind) = kind {
            call["type"] = kind.into();
        }
        json!([{"id": "1", "role": "assistant", "toolCalls": [call]}])
    };
    for kind in [None, Some("function")] {
        let request = with_messages(&call(kind)).await;
        let round = request.transcript.last().unwrap();
        assert_eq!(round.as_message().tool_calls().count(), 1);
    }
    let body = json!({"threadId": "t", "runId": "r", "messages": call(Some("other"))});
    let error = refused(&body.to_string()).await;
    assert_eq!(error["field"], "messages[0].toolCalls[0].type");
}

#[tokio::test]
async fn an_error_names_the_field() {
    let user = json!({"id": "1", "role": "user", "content": "x"});
    let rows = [
        (
            json!({"threadId": 1, "runId": "r", "messages": []}),
            "threadId",
            "threadId: invalid type",
        ),
        (
            json!({"threadId": "t", "messages": []}),
            "runId",
            "runId: missing field",
        ),
        (
            json!({"threadId": "t", "runId": "r"}),
            "messages",
            "messages: missing field",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": {}}),
            "messages",
            "messages: invalid type: map, expected a sequence",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [user, {"id": "2", "role": "user", "content": 7}]}),
            "messages[1].content",
            "messages[1].content: invalid type: integer `7`, expected a string, an array of content parts or an object",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user"}]}),
            "messages[0].content",
            "messages[0].content: missing field",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": {}}]}),
            "messages[0].content",
            "messages[0].content: expected a string or an array of content parts",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "activity", "activityType": "a", "content": "x"}]}),
            "messages[0].content",
            "messages[0].content: expected an object",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "tool", "content": "x"}]}),
            "messages[0].toolCallId",
            "messages[0].toolCallId: missing field",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "robot", "content": "x"}]}),
            "messages[0].role",
            "messages[0].role: unknown variant `robot`",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "content": "x"}]}),
            "messages[0].role",
            "messages[0].role: missing field",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
            "messages[0].content[0].text: missing field",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": [{"type": "hologram"}]}]}),
            "messages[0].content[0].type",
            "messages[0].content[0].type: unknown variant `hologram`",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": [{"type": "image", "source": {"type": "data", "value": "x"}}]}]}),
            "messages[0].content[0].source.mimeType",
            "messages[0].content[0].source.mimeType: missing field",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "assistant", "toolCalls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]}]}),
            "messages[0].toolCalls[0].function.arguments",
            "messages[0].toolCalls[0].function.arguments: invalid type: map, expected a string",
        ),
        (
            json!({"threadId": "t", "runId": "r", "messages": [], "resume": [{"interruptId": "i", "status": "maybe"}]}),
            "resume[0].status",
            "resume[0].status: unknown variant `maybe`",
        ),
    ];
    for (body, field, expected) in rows {
        let error = refused(&body.to_string()).await;
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["field"], field, "{message}");
        assert!(message.starts_with(expected), "{message}\n{expected}");
        assert!(!message.contains(" at line "), "{message}");
    }
}

#[tokio::test]
async fn invalid_json_names_no_field() {
    for body in [
        "",
        "{",
        "{\"threadId\":\"t\",\"messages\":[{\"id\"",
        "nope",
        "[]",
        "7",
    ] {
        let error = refused(body).await;
        assert!(error.get("field").is_none(), "{body}: {error}");
    }
    let trailing = "{\"threadId\":\"t\",\"runId\":\"r\",\"messages\":[]} {}";
    let error = refused(trailing).await;
    assert_eq!(error.get("field"), None);
    assert_eq!(error["message"], "trailing characters at line 1 column 44");
}

#[tokio::test]
async fn the_body_of_a_400_is_always_json() {
    let body = r#"{"threadId":"t","runId":"r","messages":[{"id":"1","role":"\"}\n"}]}"#;
    assert_eq!(refused(body).await["field"], "messages[0].role");
}
