//! Request bodies: the input of real clients, and the texts of errors.

use concentric_http::ag_ui::{
    Content, ContentPart, Message, PartSource, ResumeStatus, RunAgentInput, ToolCall, ToolCallType,
    UserMessage,
};
use serde_json::{Value, json};

fn read(body: &Value) -> Result<RunAgentInput, String> {
    RunAgentInput::from_slice(body.to_string().as_bytes()).map_err(|error| error.to_string())
}

fn with_messages(messages: &Value) -> Result<RunAgentInput, String> {
    read(&json!({"threadId": "t", "runId": "r", "messages": messages}))
}

/// The field that the error names, and its full text.
fn refused(body: &Value) -> (Option<String>, String) {
    let error = RunAgentInput::from_slice(body.to_string().as_bytes()).expect_err("refused");
    (error.field().map(str::to_owned), error.to_string())
}

#[test]
fn input_of_the_ag_ui_client_parses() {
    let input = read(&json!({
        "threadId": "t", "runId": "r", "protocolVersion": "1.0", "parentRunId": "p",
        "state": {"a": 1},
        "messages": [
            {"id": "1", "role": "developer", "content": "d"},
            {"id": "2", "role": "system", "content": "s", "name": "n"},
            {"id": "3", "role": "user", "content": [
                {"type": "text", "text": "what is "},
                {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
                {"type": "audio", "source": {"type": "url", "value": "https://x/y"}},
                {"type": "video", "source": {"type": "url", "value": "u", "mimeType": "video/mp4"}},
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
    .unwrap();

    let roles: Vec<_> = input.messages.iter().map(Message::role).collect();
    assert_eq!(
        roles,
        [
            "developer",
            "system",
            "user",
            "assistant",
            "tool",
            "reasoning",
            "activity"
        ],
    );
    let ids: Vec<_> = input.messages.iter().map(Message::id).collect();
    assert_eq!(ids, ["1", "2", "3", "4", "5", "6", "7"]);
    let Message::User(user) = &input.messages[2] else {
        panic!("{:?}", input.messages[2])
    };
    assert_eq!(user.content.text(), "what is this?");
    let Content::Parts(parts) = &user.content else {
        panic!("{:?}", user.content)
    };
    let ContentPart::Document(document) = &parts[4] else {
        panic!("{:?}", parts[4])
    };
    let provider = Some("openai".to_owned());
    let source = PartSource::File {
        value: "f".to_owned(),
        provider,
        mime_type: None,
    };
    assert_eq!(document.source, source);
    let resume = input.resume.as_deref().unwrap();
    assert_eq!(resume[0].status, ResumeStatus::Resolved);
    assert_eq!(resume[0].payload, Some(json!({"ok": true})));
    assert_eq!(resume[1].status, ResumeStatus::Cancelled);

    let again = serde_json::to_vec(&input).unwrap();
    assert_eq!(RunAgentInput::from_slice(&again).unwrap(), input);
}

#[test]
fn input_of_the_tanstack_client_parses() {
    let input = read(&json!({
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
    .unwrap();
    assert_eq!(input.messages.len(), 2);
    assert_eq!(input.protocol_version, None);
}

#[test]
fn a_minimal_input_parses() {
    let input = with_messages(&json!([])).unwrap();
    assert_eq!(input, RunAgentInput::new("t", "r", []));
    assert_eq!(
        serde_json::to_value(&input).unwrap(),
        json!({"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": []}),
    );
}

#[test]
fn null_is_absent_where_a_field_is_optional() {
    let input = read(&json!({
        "threadId": "t", "runId": "r", "state": null, "forwardedProps": null, "resume": null,
        "parentRunId": null,
        "messages": [{"id": "1", "role": "assistant", "content": null, "toolCalls": null}],
    }))
    .unwrap();
    assert_eq!(input.state, None);
    assert_eq!(input.resume, None);
    let Message::Assistant(message) = &input.messages[0] else {
        panic!("{input:?}")
    };
    assert_eq!(message.content, None);
}

#[test]
fn text_in_parts_is_text_for_every_role() {
    let input = with_messages(&json!([
        {"id": "1", "role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]));
    let Message::System(message) = &input.unwrap().messages[0] else {
        panic!()
    };
    assert_eq!(message.content, "ab");
}

#[test]
fn a_tool_call_without_a_type_is_a_function() {
    let call: ToolCall =
        serde_json::from_value(json!({"id": "c", "function": {"name": "f", "arguments": "{}"}}))
            .unwrap();
    assert_eq!(call.kind, ToolCallType::Function);
    assert_eq!(call, ToolCall::new("c", "f", "{}"));
    assert_eq!(
        serde_json::to_value(&call).unwrap(),
        json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}),
    );
}

#[test]
fn an_error_names_the_field() {
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
    for (body, field, message) in rows {
        let (got_field, got_message) = refused(&body);
        assert_eq!(got_field.as_deref(), Some(field), "{got_message}");
        assert!(got_message.starts_with(message), "{got_message}\n{message}");
        assert!(!got_message.contains(" at line "), "{got_message}");
    }
}

#[test]
fn invalid_json_names_no_field() {
    for body in [
        "",
        "{",
        "{\"threadId\":\"t\",\"messages\":[{\"id\"",
        "nope",
        "{} {}",
        "[]",
        "7",
    ] {
        let error = RunAgentInput::from_slice(body.as_bytes()).unwrap_err();
        assert!(
            error.field().is_none() || body.starts_with("{}"),
            "{body}: {error}"
        );
        let json: Value = serde_json::from_str(&error.to_json()).unwrap();
        assert_eq!(json["error"]["code"], "invalid_request");
        assert_eq!(json["error"]["message"], error.to_string());
    }
    let trailing = b"{\"threadId\":\"t\",\"runId\":\"r\",\"messages\":[]} {}";
    let error = RunAgentInput::from_slice(trailing).unwrap_err();
    assert_eq!(error.field(), None);
    assert_eq!(error.to_string(), "trailing characters at line 1 column 44");
}

#[test]
fn the_body_of_a_400_is_always_json() {
    let error =
        with_error(r#"{"threadId":"t","runId":"r","messages":[{"id":"1","role":"\"}\n"}]}"#);
    let json: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(json["error"]["field"], "messages[0].role");
}

fn with_error(body: &str) -> String {
    RunAgentInput::from_slice(body.as_bytes())
        .expect_err("refused")
        .to_json()
}

#[test]
fn messages_are_created_from_their_required_fields() {
    let message = Message::from(UserMessage::new("1", "hello").name("Ada"));
    assert_eq!(
        serde_json::to_value(message).unwrap(),
        json!({"role": "user", "id": "1", "content": "hello", "name": "Ada"}),
    );
}
