//! Helpers for the tests of Anthropic.

pub mod stream;

use crate::common::*;
use concentric_core::{
    Author, CallId, ChatRequest, Message, Part, PartKind, ProviderData, Role, Round, ToolCallPart,
    ToolOutcome, ToolResult, ToolSpec, Turn,
};
use concentric_providers::{AnthropicLayer, ApiKey, anthropic::PromptCache};
use serde_json::Value;
use std::sync::Arc;

pub fn of(model: &str) -> AnthropicLayer {
    AnthropicLayer::new(model.to_owned(), ApiKey::new(CANARY))
}

/// A layer without prompt caching, for short expectations.
pub fn plain() -> AnthropicLayer {
    of("claude-opus-4-8").prompt_cache(PromptCache::Off)
}

pub async fn sent(layer: &AnthropicLayer, request: ChatRequest) -> Value {
    sent_by(layer, request).await.1
}

/// The unsupported features of `request`, according to the layer.
pub fn unsupported(layer: &AnthropicLayer, request: &ChatRequest) -> Vec<String> {
    layer
        .check(request)
        .iter()
        .map(ToString::to_string)
        .collect()
}

pub fn own(kind: PartKind, data: Option<Value>) -> Part {
    let part = Part::new(kind).by(Author::Model {
        provider: "anthropic".into(),
        model: "claude-opus-4-8".into(),
    });
    part.with_provider_data(data.map(|data| Arc::new(ProviderData::new("anthropic", data))))
}

pub fn opaque(data: Value) -> Part {
    Part::new(PartKind::Provider(ProviderData::new("anthropic", data)))
}

pub fn call(id: &str, provided: &str) -> ToolCallPart {
    ToolCallPart::new(CallId::new(id), "search", "{\"q\": 1}")
        .with_provider_id(Some(provided.into()))
}

pub fn result(id: &str, outcome: ToolOutcome) -> ToolResult {
    ToolResult::new(CallId::new(id), "search", outcome)
}

pub fn round(parts: Vec<Part>, results: Vec<ToolResult>) -> Turn {
    Round::new(Message::new(Role::Assistant, parts), results)
        .unwrap()
        .into()
}

pub fn assistant(parts: Vec<Part>) -> Turn {
    Turn::message(Message::new(Role::Assistant, parts)).unwrap()
}

pub fn user(parts: Vec<Part>) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    request
        .transcript
        .push(Turn::message(Message::new(Role::User, parts)).unwrap());
    request
}

pub fn tool(name: &str, schema: Value) -> Arc<ToolSpec> {
    Arc::new(ToolSpec::new(name.to_owned(), "Finds.", schema))
}
