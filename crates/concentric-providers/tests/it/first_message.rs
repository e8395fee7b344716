//! Conversations that are empty, or that do not start with a user message.

use crate::common::*;
use concentric_core::{
    CallId, ChatRequest, ErrorKind, Message, Part, PartKind, Role, Round, SystemSegment,
    ToolCallPart, ToolOutcome, ToolResult, Transcript, Turn,
};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use serde_json::{Value, json};

fn of(turns: impl IntoIterator<Item = Turn>) -> ChatRequest {
    ChatRequest::new(turns.into_iter().collect())
}

fn greeting() -> Turn {
    Turn::message(Message::assistant("Hello, what can I do for you?")).unwrap()
}

fn round() -> Turn {
    let call = ToolCallPart::new(CallId::new("c"), "t", "{}");
    let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
    let result = ToolResult::new(CallId::new("c"), "t", ToolOutcome::done("ok"));
    Round::new(message, vec![result]).unwrap().into()
}

fn key() -> ApiKey {
    ApiKey::new(CANARY)
}

fn roles(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap().iter();
    list.filter_map(|message| message["role"].as_str())
        .collect()
}

#[tokio::test]
async fn every_service_accepts_an_initial_assistant_message() {
    let request = || of([greeting(), Turn::user("My order.")]);
    let (_, body) = sent_by(&AnthropicLayer::new("claude-opus-4-8", key()), request()).await;
    assert_eq!(roles(&body["messages"]), ["user", "assistant", "user"]);
    let first = json!([{"type": "text", "text": "[The conversation begins with the assistant.]"}]);
    assert_eq!(body["messages"][0]["content"], first);

    let (_, body) = sent_by(&GeminiLayer::new("gemini-3.5-flash", key()), request()).await;
    assert_eq!(roles(&body["contents"]), ["model", "user"]);
    let (_, body) = sent_by(&OllamaLayer::new("qwen3"), request()).await;
    assert_eq!(roles(&body["messages"]), ["assistant", "user"]);
    let (_, body) = sent_by(&OpenAiLayer::new("gpt-5.5", key()), request()).await;
    assert_eq!(roles(&body["messages"]), ["assistant", "user"]);
    let (_, body) = sent_by(&OpenAiResponsesLayer::new("gpt-5.5", key()), request()).await;
    assert_eq!(roles(&body["input"]), ["assistant", "user"]);
}

#[tokio::test]
async fn every_service_accepts_an_initial_call() {
    let request = || of([round()]);
    let (_, body) = sent_by(&AnthropicLayer::new("claude-opus-4-8", key()), request()).await;
    assert_eq!(roles(&body["messages"]), ["user", "assistant", "user"]);
    let (_, body) = sent_by(&GeminiLayer::new("gemini-3.5-flash", key()), request()).await;
    assert_eq!(roles(&body["contents"]), ["user", "model", "user"]);
    let text = &body["contents"][0]["parts"][0]["text"];
    assert_eq!(text, "[The conversation begins with the assistant.]");
    let (_, body) = sent_by(&OllamaLayer::new("qwen3"), request()).await;
    assert_eq!(roles(&body["messages"]), ["assistant", "tool"]);
    let (_, body) = sent_by(&OpenAiLayer::new("gpt-5.5", key()), request()).await;
    assert_eq!(roles(&body["messages"]), ["assistant", "tool"]);
    let (_, body) = sent_by(&OpenAiResponsesLayer::new("gpt-5.5", key()), request()).await;
    assert_eq!(body["input"][0]["type"], "function_call");
}

#[tokio::test]
async fn every_layer_rejects_an_empty_conversation() {
    let empty = || ChatRequest::new(Transcript::new());
    let without_text = || ChatRequest::user("");
    let without_any_text = || {
        let mut request = ChatRequest::user("");
        request.system.push(SystemSegment::new(""));
        request
    };
    for request in [empty, without_text, without_any_text] {
        let errors = [
            try_sent_by(&AnthropicLayer::new("claude-opus-4-8", key()), request()).await,
            try_sent_by(&GeminiLayer::new("gemini-3.5-flash", key()), request()).await,
            try_sent_by(&OllamaLayer::new("qwen3"), request()).await,
            try_sent_by(&OllamaLayer::new("qwen3").generate(), request()).await,
            try_sent_by(&OpenAiLayer::new("gpt-5.5", key()), request()).await,
            try_sent_by(&OpenAiResponsesLayer::new("gpt-5.5", key()), request()).await,
        ];
        for error in errors {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert_eq!(error.code(), Some("unsupported"));
            assert!(error.to_string().contains("without content"), "{error}");
        }
    }
    // Provider options can supply the conversation.
    let mut request = empty();
    let said = json!([{"role": "user", "content": "hi"}]);
    request
        .options_mut()
        .provider
        .insert("messages".into(), said.clone());
    let (_, body) = sent_by(&OllamaLayer::new("qwen3"), request).await;
    assert_eq!(body["messages"], said);
    let mut request = empty();
    request
        .options_mut()
        .provider
        .insert("prompt".into(), json!("hi"));
    let (_, body) = sent_by(&OllamaLayer::new("qwen3").generate(), request).await;
    assert_eq!(body["prompt"], "hi");
}

#[tokio::test]
async fn a_rejection_names_the_model_and_the_reason() {
    for (model, text) in [
        (
            "",
            "the request was not sent: the provider does not support an empty model name",
        ),
        (
            "a b",
            "the request for `a b` was not sent: the provider does not support a model name with characters other than letters, digits and `._-/@:`",
        ),
    ] {
        let layer = GeminiLayer::new(model, key());
        let error = try_sent_by(&layer, ChatRequest::user("hi")).await;
        assert_eq!(error.unwrap_err().message(), text);
    }
}
