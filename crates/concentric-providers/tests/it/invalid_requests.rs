//! Requests that are invalid for every service, and rejected by every layer before they are sent.

use crate::common::*;
use concentric_core::{
    ChatRequest, ErrorKind, Message, Part, PartKind, ProviderData, Role, ToolChoice, ToolSpec,
    Transcript, Turn,
};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
    Unsupported,
};
use serde_json::json;
use std::sync::Arc;

/// The unsupported features of `request` for each provider.
fn listed(request: &ChatRequest) -> [Vec<String>; 5] {
    let key = || ApiKey::new(CANARY);
    let all = |listed: Vec<Unsupported>| listed.iter().map(ToString::to_string).collect();
    [
        all(AnthropicLayer::new("claude-haiku-4-5", key()).check(request)),
        all(GeminiLayer::new("gemini-3.5-flash", key()).check(request)),
        all(OllamaLayer::new("qwen3").check(request)),
        all(OpenAiLayer::new("gpt-5.5", key()).check(request)),
        all(OpenAiResponsesLayer::new("gpt-5.5", key()).check(request)),
    ]
}

/// Asserts that each provider lists `expected`, possibly among others.
fn assert_listed(request: &ChatRequest, expected: &[&str]) {
    for listed in listed(request) {
        for what in expected {
            let times = listed.iter().filter(|one| one == what).count();
            assert_eq!(times, 1, "{what}: {listed:?}");
        }
    }
}

fn with_tools(names: &[&str]) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    for name in names {
        let spec = ToolSpec::new((*name).to_owned(), "", json!({"type": "object"}));
        request.tools.push(Arc::new(spec));
    }
    request
}

#[test]
fn every_invalid_property_is_listed() {
    let mut request = with_tools(&["a", "b", "a", "a", "b", "c"]);
    let options = request.options_mut();
    options.model = Some("".into());
    options.tool_choice = Some(ToolChoice::Tool("nothere".into()));
    options.temperature = Some(f32::NAN);
    options.top_p = Some(f32::INFINITY);
    options.frequency_penalty = Some(f32::NEG_INFINITY);
    options.presence_penalty = Some(f32::NAN);
    let expected = [
        "an empty model name",
        "two tools named `a`",
        "two tools named `b`",
        "a forced call of `nothere`, which is not among the tools",
        "a temperature that is not a number",
        "a `top_p` that is not a number",
        "a frequency penalty that is not a number",
        "a presence penalty that is not a number",
    ];
    assert_listed(&request, &expected);
}

#[test]
fn a_forced_call_without_tools_is_rejected() {
    let mut request = with_tools(&[]);
    request.options_mut().tool_choice = Some(ToolChoice::Required);
    assert_listed(&request, &["a forced tool call without tools"]);
    // Tools in the provider options replace those of the request.
    let tools = json!([{"type": "web_search"}]);
    request.options_mut().provider.insert("tools".into(), tools);
    assert_eq!(listed(&request), <[Vec<String>; 5]>::default());
    request.options_mut().tool_choice = Some(ToolChoice::Tool("web_search".into()));
    assert_eq!(listed(&request), <[Vec<String>; 5]>::default());

    for choice in [ToolChoice::Auto, ToolChoice::None] {
        let mut request = with_tools(&[]);
        request.options_mut().tool_choice = Some(choice);
        assert_eq!(listed(&request), <[Vec<String>; 5]>::default());
    }
}

#[test]
fn a_conversation_without_content_is_rejected() {
    const NO_CONTENT: &str = "a conversation without content";
    let nothing = |request: &ChatRequest| {
        let [anthropic, gemini, _, chat, responses] = listed(request);
        [anthropic, gemini, chat, responses].map(|listed| listed == [NO_CONTENT])
    };
    let empty = ChatRequest::new(Transcript::new());
    assert_eq!(nothing(&empty), [true; 4]);
    let of = |parts| {
        let turn = Turn::message(Message::new(Role::User, parts)).unwrap();
        ChatRequest::new([turn].into_iter().collect())
    };
    let theirs = ProviderData::new("another", json!({}));
    let unknown = of(vec![Part::new(PartKind::Provider(theirs))]);
    assert_eq!(nothing(&unknown), [true; 4]);
    // Some chat completions servers reject an empty text.
    for request in [
        ChatRequest::user(""),
        of(vec![Part::text("")]),
        of(vec![Part::text(""), Part::text("")]),
    ] {
        assert_eq!(nothing(&request), [true; 4]);
    }
    assert_eq!(
        nothing(&ChatRequest::user("  \n")),
        [true, false, false, false]
    );
    assert_eq!(nothing(&ChatRequest::user("hi")), [false; 4]);

    // Provider options replace the conversation.
    let mut elsewhere = empty;
    let options = elsewhere.options_mut();
    for name in ["messages", "input"] {
        let said = json!([{"role": "user", "content": "hi"}]);
        options.provider.insert(name.into(), said);
    }
    assert_eq!(nothing(&elsewhere), [false, true, false, false]);
}

#[test]
fn a_server_tool_may_be_forced() {
    let layer = AnthropicLayer::new("claude-opus-4-8", ApiKey::new(CANARY))
        .server_tool(json!({"type": "web_search_20250305", "name": "web_search"}));
    for choice in [ToolChoice::Required, ToolChoice::Tool("web_search".into())] {
        let mut request = ChatRequest::user("hi");
        request.options_mut().tool_choice = Some(choice);
        assert_eq!(layer.check(&request), []);
    }
}

#[tokio::test]
async fn duplicate_tool_names_fail_the_call() {
    let layer = OpenAiLayer::new("gpt-5.5", ApiKey::new(CANARY));
    let mut request = with_tools(&["a", "a"]);
    let error = try_sent_by(&layer, request.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert_eq!(error.message(), "two tools are named `a`");

    request.tools = ChatRequest::user("hi").tools;
    request.options_mut().temperature = Some(f32::NAN);
    let error = try_sent_by(&layer, request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(error.code(), Some("unsupported"));
}
