//! Requests to chat completions services.

use crate::common::*;
use concentric_core::{
    Author, CallId, ChatRequest, Executor, Media, MediaSource, Message, OutputSchema, Part,
    PartKind, ProviderData, Role, Round, Str, SystemSegment, ToolCallPart, ToolChoice, ToolOutcome,
    ToolResult, ToolSpec, Turn,
};
use concentric_providers::{ApiKey, OpenAiLayer};
use serde_json::json;
use std::sync::Arc;

fn part(kind: PartKind) -> Part {
    Part::new(kind)
}

#[tokio::test]
async fn a_minimal_request_is_encoded() {
    let (parts, body) = sent_by(&layer(), ChatRequest::user("hi")).await;
    assert_eq!(parts.method, http::Method::POST);
    assert_eq!(parts.uri, "https://api.openai.com/v1/chat/completions");
    assert_eq!(parts.headers["content-type"], "application/json");
    assert_eq!(parts.headers["authorization"], format!("Bearer {CANARY}"));
    assert!(parts.headers["authorization"].is_sensitive());
    assert_eq!(
        body,
        json!({
            "model": "gpt-test",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    );
}

#[tokio::test]
async fn every_option_is_encoded() {
    let mut request = ChatRequest::user("hi").with_system("One.");
    request.system.push(SystemSegment::new("Two."));
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}},
        "required": ["q"], "additionalProperties": false});
    request
        .tools
        .push(Arc::new(ToolSpec::new("search", "Finds.", schema.clone())));
    let options = request.options_mut();
    options.model = Some("other".into());
    options.tool_choice = Some(ToolChoice::Tool("search".into()));
    options.parallel_tool_calls = Some(false);
    options.output_schema = Some(OutputSchema::new("out", schema.clone()));
    options.max_output_tokens = Some(9);
    options.temperature = Some(0.7);
    options.top_p = Some(0.9);
    options.frequency_penalty = Some(0.1);
    options.presence_penalty = Some(0.2);
    options.stop = vec!["a".into(), "b".into()];
    options.seed = Some(-3);
    options.reasoning_effort = Some("low".into());
    options.metadata.insert("a".into(), json!("x"));
    options.metadata.insert("b".into(), json!(1));
    options.provider.insert("temperature".into(), json!(1));
    options
        .provider
        .insert("logit_bias".into(), json!({"1": 2}));
    let (_, body) = sent_by(&layer().streaming(false), request.clone()).await;
    assert_eq!(
        body,
        json!({
            "model": "other",
            "messages": [{"role": "system", "content": "One.\n\nTwo."}, {"role": "user", "content": "hi"}],
            "stream": false,
            "tools": [{"type": "function", "function": {"name": "search", "description": "Finds.", "parameters": schema}}],
            "tool_choice": {"type": "function", "function": {"name": "search"}},
            "parallel_tool_calls": false,
            "response_format": {"type": "json_schema", "json_schema": {"name": "out", "schema": schema, "strict": true}},
            "max_completion_tokens": 9,
            "temperature": 1,
            "top_p": 0.9,
            "frequency_penalty": 0.1,
            "presence_penalty": 0.2,
            "stop": ["a", "b"],
            "seed": -3,
            "reasoning_effort": "low",
            "metadata": {"a": "x", "b": "1"},
            "logit_bias": {"1": 2},
        })
    );

    let mistral = OpenAiLayer::compatible("https://api.mistral.ai/v1", "m", Some(ApiKey::new("k")));
    let (_, body) = sent_by(&mistral, request).await;
    assert_eq!(
        (&body["max_tokens"], &body["random_seed"]),
        (&json!(9), &json!(-3))
    );
    assert!(body.get("metadata").is_none() && body.get("stream_options").is_none());
}

#[tokio::test]
async fn compatible_services_are_recognized() {
    let azure = OpenAiLayer::compatible(
        "https://x.openai.azure.com/openai/v1?api-version=1",
        "m",
        Some(ApiKey::new("k")),
    );
    let (parts, _) = sent_by(&azure, ChatRequest::user("hi")).await;
    assert_eq!(parts.headers["api-key"], "k");
    assert!(!parts.headers.contains_key("authorization"));
    assert_eq!(parts.uri.query(), Some("api-version=1"));
    let local = OpenAiLayer::compatible("http://localhost:8080/v1", "m", None).header("x-a", "b");
    let (parts, _) = sent_by(&local, ChatRequest::user("hi")).await;
    assert!(!parts.headers.contains_key("authorization"));
    assert_eq!(parts.headers["x-a"], "b");
}

#[tokio::test]
async fn media_are_encoded() {
    let base64 = |kind: &str| Media::new(MediaSource::Base64("QUJD".into())).with_media_type(kind);
    let mut request = ChatRequest::user("hi");
    let parts = vec![
        Part::text("see"),
        part(PartKind::Image(Media::new(MediaSource::Url(
            "https://a.test/x.png".into(),
        )))),
        part(PartKind::Image(base64("image/jpeg"))),
        part(PartKind::Audio(base64("audio/mpeg"))),
        part(PartKind::File(base64("application/pdf").with_name("a.pdf"))),
        part(PartKind::File(Media::new(MediaSource::Id("file_1".into())))),
    ];
    request
        .transcript
        .push(Turn::message(Message::new(Role::User, parts)).unwrap());
    let (_, body) = sent_by(&layer(), request).await;
    assert_eq!(
        body["messages"][1],
        json!({"role": "user", "content": [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "https://a.test/x.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}},
            {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
            {"type": "file", "file": {"file_id": "file_1"}},
        ]})
    );
}

#[tokio::test]
async fn a_round_is_sent_in_the_services_format() {
    let call = |id: &str, arguments: &str, provider_id: Option<&str>| {
        ToolCallPart::new(CallId::new(id), "t", arguments)
            .with_provider_id(provider_id.map(Str::from))
    };
    let details = json!([{"type": "reasoning.text", "text": "hm", "signature": "s"}]);
    let provider = |name: &str| {
        Some(Arc::new(ProviderData::new(
            name,
            json!({"reasoning_details": details}),
        )))
    };
    let by = |provider: &str| Author::Model {
        provider: provider.into(),
        model: "m".into(),
    };
    let image = Media::new(MediaSource::Url("https://a.test/x.png".into()));
    let message = Message::new(
        Role::Assistant,
        vec![
            part(PartKind::Reasoning("hm".into())).with_provider_data(provider("openrouter")),
            part(PartKind::Reasoning("other".into())).with_provider_data(provider("elsewhere")),
            Part::text("Let me "),
            Part::text("see."),
            part(PartKind::ToolCall(call(
                "call_1",
                "{\"a\":1}",
                Some("theirs"),
            )))
            .by(by("openrouter")),
            // Another service's id of a call is not used.
            part(PartKind::ToolCall(call(
                "call_2",
                "{\"a\":",
                Some("toolu_2"),
            )))
            .by(by("anthropic")),
            part(PartKind::ToolCall(
                call("call_3", "{}", None).executed_by(Executor::Provider),
            )),
        ],
    );
    let result = |id: &str, outcome| ToolResult::new(CallId::new(id), "t", outcome);
    let round = Round::new(
        message,
        vec![
            result("call_2", ToolOutcome::denied("No.")),
            result(
                "call_1",
                ToolOutcome::done(vec![Part::text("Here."), part(PartKind::Image(image))]),
            ),
        ],
    )
    .unwrap();
    let mut request = ChatRequest::user("hi");
    request.transcript.push(round);
    request
        .transcript
        .push(Turn::message(Message::assistant("Done.")).unwrap());
    let openrouter = OpenAiLayer::compatible("https://openrouter.ai/api/v1", "m", None);
    let (_, body) = sent_by(&openrouter, request).await;
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": [
                {"id": "theirs", "type": "function", "function": {"name": "t", "arguments": "{\"a\":1}"}},
                {"id": "call_2", "type": "function", "function": {"name": "t", "arguments": "{}"}},
            ], "reasoning_details": details},
            {"role": "tool", "tool_call_id": "theirs", "content": "Here."},
            {"role": "tool", "tool_call_id": "call_2", "content": "No."},
            {"role": "user", "content": [
                {"type": "text", "text": "Images that the tools returned:"},
                {"type": "image_url", "image_url": {"url": "https://a.test/x.png"}},
            ]},
            {"role": "assistant", "content": "Done."},
        ])
    );
}

#[tokio::test]
async fn an_agents_steps_are_sent_in_order() {
    let call = ToolCallPart::new(CallId::new("a"), "t", "{}").executed_by(Executor::Agent);
    let result = ToolResult::new(CallId::new("a"), "t", ToolOutcome::done("ok"));
    let message = Message::new(
        Role::Assistant,
        vec![
            part(PartKind::ToolCall(call)),
            part(PartKind::ToolResult(result)),
            Part::text("Done."),
        ],
    );
    let mut request = ChatRequest::user("hi");
    request.transcript.push(Turn::message(message).unwrap());
    let (_, body) = sent_by(&layer(), request).await;
    let roles: Vec<&str> = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
}
