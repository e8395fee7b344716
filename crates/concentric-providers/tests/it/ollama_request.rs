//! Requests to Ollama.

use crate::common::*;
use concentric_core::{
    Author, CallId, ChatRequest, ErrorKind, Media, MediaSource, Message, OutputSchema, Part,
    PartKind, ProviderData, Role, Round, Str, SystemSegment, ToolCallPart, ToolChoice, ToolOutcome,
    ToolResult, ToolSpec, Turn,
};
use concentric_providers::{ApiKey, OllamaLayer};
use serde_json::{Value, json};
use std::sync::Arc;

fn layer() -> OllamaLayer {
    OllamaLayer::new("qwen3")
}

async fn body(layer: &OllamaLayer, request: ChatRequest) -> Value {
    try_sent_by(layer, request).await.unwrap().1
}

fn search() -> Arc<ToolSpec> {
    let schema = json!({
        "type": "object",
        "properties": {"q": {"$ref": "#/$defs/Q"}},
        "$defs": {"Q": {"type": "string"}},
    });
    Arc::new(ToolSpec::new("search", "Finds.", schema))
}

#[tokio::test]
async fn a_minimal_request_is_encoded() {
    let (parts, body) = try_sent_by(&layer(), ChatRequest::user("hi"))
        .await
        .unwrap();
    assert_eq!(parts.method, http::Method::POST);
    assert_eq!(parts.uri, "http://localhost:11434/api/chat");
    assert_eq!(parts.headers["content-type"], "application/json");
    assert!(!parts.headers.contains_key("authorization"));
    let expected = json!({
        "model": "qwen3",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": true,
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn a_host_and_a_key_are_used() {
    let cloud = OllamaLayer::with_host("ollama.com", "m", Some(ApiKey::new(CANARY)));
    let (parts, _) = try_sent_by(&cloud, ChatRequest::user("hi")).await.unwrap();
    assert_eq!(parts.uri, "https://ollama.com:443/api/chat");
    assert_eq!(parts.headers["authorization"], format!("Bearer {CANARY}"));
    assert!(parts.headers["authorization"].is_sensitive());
    let no_host = OllamaLayer::with_host("a b", "m", None);
    let error = try_sent_by(&no_host, ChatRequest::user("hi"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn every_option_is_encoded() {
    let mut request = ChatRequest::user("hi").with_system("One.");
    request.system.push(SystemSegment::new("Two."));
    request.tools.push(search());
    let options = request.options_mut();
    options.model = Some("other".into());
    options.max_output_tokens = Some(9);
    options.temperature = Some(0.5);
    options.top_p = Some(0.25);
    options.frequency_penalty = Some(0.5);
    options.presence_penalty = Some(0.25);
    options.stop = vec!["a".into(), "b".into()];
    options.seed = Some(-3);
    options.reasoning_effort = Some("high".into());
    options.metadata.insert("a".into(), json!("x"));
    let provider = &mut options.provider;
    provider.insert("keep_alive".into(), json!("5m"));
    provider.insert("options".into(), json!({"num_ctx": 8192, "seed": 7}));
    assert_eq!(
        body(&layer().streaming(false), request).await,
        json!({
            "model": "other",
            "messages": [
                {"role": "system", "content": "One.\n\nTwo."},
                {"role": "user", "content": "hi"},
            ],
            "stream": false,
            "tools": [{"type": "function", "function": {
                "name": "search",
                "description": "Finds.",
                "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
            }}],
            "think": "high",
            "options": {
                "num_predict": 9, "temperature": 0.5, "top_p": 0.25, "frequency_penalty": 0.5,
                "presence_penalty": 0.25, "stop": ["a", "b"], "num_ctx": 8192, "seed": 7,
            },
            "keep_alive": "5m",
        })
    );
}

#[tokio::test]
async fn a_schema_is_the_format_and_none_disables_thinking() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let mut request = ChatRequest::user("hi");
    request.options_mut().output_schema = Some(OutputSchema::new("out", schema.clone()));
    request.options_mut().reasoning_effort = Some("none".into());
    let body = body(&layer(), request).await;
    assert_eq!((&body["format"], &body["think"]), (&schema, &json!(false)));
}

#[tokio::test]
async fn disabled_tools_are_omitted() {
    let mut request = ChatRequest::user("hi");
    request.tools.push(search());
    request.options_mut().tool_choice = Some(ToolChoice::None);
    assert!(body(&layer(), request).await.get("tools").is_none());
}

#[tokio::test]
async fn unsupported_features_are_rejected_before_sending() {
    let mut request = ChatRequest::user("hi");
    request.tools.push(search());
    let image = Media::new(MediaSource::Url("https://a.test/x.png".into()));
    let message = Message::new(Role::User, vec![Part::new(PartKind::Image(image))]);
    request.transcript.push(Turn::message(message).unwrap());
    let options = request.options_mut();
    options.tool_choice = Some(ToolChoice::Required);
    options.parallel_tool_calls = Some(true);
    options.output_schema = Some(OutputSchema::new("out", json!({"type": "object"})));
    options.reasoning_effort = Some("extreme".into());
    let unsupported = layer().check(&request);
    let said: Vec<String> = unsupported.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "a forced tool call",
            "`parallel_tool_calls`",
            "an output schema together with tools",
            "an image at a URL (turn 1)",
            "the reasoning effort `extreme`",
        ]
    );
    let error = try_sent_by(&layer(), request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(error.code(), Some("unsupported"));
}

#[tokio::test]
async fn an_exponential_tool_schema_is_rejected() {
    let properties = (0..10).map(|at| (at.to_string(), json!({"$ref": "#"})));
    let properties: serde_json::Map<_, _> = properties.collect();
    let schema = json!({"type": "object", "properties": properties});
    let mut request = ChatRequest::user("hi");
    let tool = Arc::new(ToolSpec::new("grow", "Grows.", schema));
    request.tools.push(tool);
    let unsupported = layer().check(&request);
    let said: Vec<String> = unsupported.iter().map(ToString::to_string).collect();
    let what = "a size over the limit of 1 MiB after its references are replaced";
    assert_eq!(said, [format!("the input schema of tool `grow`: {what}")]);
    let error = try_sent_by(&layer(), request).await.unwrap_err();
    assert_eq!(error.code(), Some("unsupported"));
}

#[tokio::test]
async fn a_round_is_sent_in_the_servers_format() {
    let call = |id: &str, arguments: &str, provider_id: Option<&str>| {
        ToolCallPart::new(CallId::new(id), "t", arguments)
            .with_provider_id(provider_id.map(Str::from))
    };
    let by = |provider: &str| Author::Model {
        provider: provider.into(),
        model: "m".into(),
    };
    let base64 = |data: &str| Media::new(MediaSource::Base64(data.into()));
    let opaque = ProviderData::new("anthropic", json!({"signature": "s"}));
    let message = Message::new(
        Role::Assistant,
        vec![
            Part::new(PartKind::Reasoning("hm".into())).by(by("ollama")),
            Part::new(PartKind::Reasoning("theirs".into()))
                .with_provider_data(Some(Arc::new(opaque))),
            Part::new(PartKind::Provider(ProviderData::new(
                "anthropic",
                json!({}),
            ))),
            Part::text("Let me see."),
            Part::new(PartKind::ToolCall(call(
                "call_1",
                "{\"a\":1}",
                Some("theirs"),
            )))
            .by(by("ollama")),
            Part::new(PartKind::ToolCall(call(
                "call_2",
                "{\"a\":",
                Some("toolu_2"),
            )))
            .by(by("anthropic")),
        ],
    );
    let result = |id: &str, outcome| ToolResult::new(CallId::new(id), "t", outcome);
    let image = Part::new(PartKind::Image(base64("QUJD")));
    let round = Round::new(
        message,
        vec![
            result("call_2", ToolOutcome::denied("No.")),
            result(
                "call_1",
                ToolOutcome::done(vec![Part::text("Here."), image.clone()]),
            ),
        ],
    )
    .unwrap();
    let mut request = ChatRequest::user("hi");
    request.transcript.push(round);
    let parts = vec![Part::text("this"), image, Part::text("that")];
    let message = Message::new(Role::User, parts);
    request.transcript.push(Turn::message(message).unwrap());
    assert_eq!(
        body(&layer(), request).await["messages"],
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Let me see.", "thinking": "hm", "tool_calls": [
                {"id": "theirs", "function": {"index": 0, "name": "t", "arguments": {"a": 1}}},
                {"id": "call_2", "function": {"index": 1, "name": "t", "arguments": {}}},
            ]},
            {"role": "tool", "content": "Here.", "tool_name": "t", "tool_call_id": "theirs"},
            {"role": "tool", "content": "No.", "tool_name": "t", "tool_call_id": "call_2"},
            {"role": "user", "content": "Images that the tools returned:", "images": ["QUJD"]},
            {"role": "user", "content": "this\nthat", "images": ["QUJD"]},
        ])
    );
}

#[tokio::test]
async fn generate_sends_a_prompt() {
    let layer = layer().generate();
    let mut request = ChatRequest::user("def f(").with_system("Code.");
    request
        .options_mut()
        .provider
        .insert("suffix".into(), json!("return 1"));
    let (parts, body) = try_sent_by(&layer, request).await.unwrap();
    assert_eq!(parts.uri, "http://localhost:11434/api/generate");
    let expected = json!({
        "model": "qwen3", "prompt": "def f(", "system": "Code.", "stream": true,
        "suffix": "return 1",
    });
    assert_eq!(body, expected);
    let mut request = ChatRequest::user("hi");
    request.transcript.push_user("and");
    let error = try_sent_by(&layer, request).await.unwrap_err();
    assert!(
        error.message().contains("more than one user message"),
        "{error}"
    );
}
