//! Requests with as many elements as an untrusted client can send, for which quadratic work would
//! take hours.

use crate::common::*;
use concentric_core::{
    Author, CallId, ChatRequest, ChatResponse, Error, ErrorKind, Message, Part, PartKind, Role,
    Round, ToolCallPart, ToolOutcome, ToolResult, ToolSpec, Turn,
};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use http_body::Body;
use serde_json::{Map, json};
use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tower::{Layer, Service, ServiceExt};

/// Fails after a time that only quadratic work takes.
fn watched<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    wait.recv_timeout(Duration::from_secs(120))
        .unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// The number of bytes that a layer sends for `request`, or its error.
fn sent<L, B>(layer: &L, request: &ChatRequest) -> Result<u64, Error>
where
    L: Layer<Http>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let http = Http::new(http::Response::new(Script::new([""], End::Clean)));
    let asked = Arc::clone(&http.asked);
    let answer = runtime.block_on(layer.layer(http).oneshot(request.clone()));
    match asked.lock().unwrap().take() {
        Some(asked) => Ok(asked.body().size_hint().exact().unwrap()),
        None => Err(answer.err().unwrap()),
    }
}

/// Sends `request` with the layer of each provider.
fn send_by_all(request: impl Fn() -> ChatRequest + Clone + Send + 'static) {
    let run = move |name: &'static str, send: fn(&ChatRequest) -> Result<u64, Error>| {
        let build = request.clone();
        let sent = watched(name, move || send(&build()));
        let sent = sent.unwrap_or_else(|error| panic!("{name}: {error:.300}"));
        assert!(sent > 1_000_000, "{name}: {sent}");
    };
    run("anthropic", |request| {
        sent(
            &AnthropicLayer::new("claude-opus-4-8", ApiKey::new(CANARY)),
            request,
        )
    });
    run("gemini", |request| {
        sent(
            &GeminiLayer::new("gemini-3.5-flash", ApiKey::new(CANARY)),
            request,
        )
    });
    run("ollama", |request| {
        sent(&OllamaLayer::new("qwen3"), request)
    });
    run("openai", |request| {
        sent(&OpenAiLayer::new("gpt-5.5", ApiKey::new(CANARY)), request)
    });
    run("mistral", |request| {
        let url = "https://api.mistral.ai/v1";
        sent(
            &OpenAiLayer::compatible(url, "m", Some(ApiKey::new(CANARY))),
            request,
        )
    });
    run("responses", |request| {
        sent(
            &OpenAiResponsesLayer::new("gpt-5.5", ApiKey::new(CANARY)),
            request,
        )
    });
}

const MANY: usize = 200_000;

fn call(at: usize, name: &str) -> Part {
    let call = ToolCallPart::new(CallId::new(format!("call_{at}")), name.to_owned(), "{}");
    Part::new(PartKind::ToolCall(call))
}

fn result(at: usize, name: &str) -> ToolResult {
    let id = CallId::new(format!("call_{at}"));
    ToolResult::new(id, name.to_owned(), ToolOutcome::done("ok"))
}

#[test]
fn calls_and_results_take_linear_time() {
    send_by_all(|| {
        let calls = (0..MANY).map(|at| call(at, "search")).collect();
        let results = (0..MANY).rev().map(|at| result(at, "search")).collect();
        let round = Round::new(Message::new(Role::Assistant, calls), results).unwrap();
        let mut request = ChatRequest::user("hi");
        request.transcript.push(round);
        request
    });
}

#[test]
fn results_between_agent_calls_take_linear_time() {
    send_by_all(|| {
        let parts = (0..MANY / 2).flat_map(|at| {
            let Part { kind, .. } = call(at, "search");
            let PartKind::ToolCall(call) = kind else {
                panic!()
            };
            let call = call.executed_by(concentric_core::Executor::Agent);
            [
                Part::new(PartKind::ToolCall(call)),
                Part::new(PartKind::ToolResult(result(at, "search"))),
            ]
        });
        let message = Message::new(Role::Assistant, parts.collect());
        let mut request = ChatRequest::user("hi");
        request.transcript.push(Turn::message(message).unwrap());
        request.transcript.push(Turn::user("and now?"));
        request
    });
}

#[test]
fn equal_ids_of_calls_take_linear_time() {
    // The service has assigned the same id to each call, or ids with the same prefix.
    for tail in ["", "x"] {
        let request = move || {
            let mut request = ChatRequest::user("hi");
            for at in 0..MANY / 4 {
                let provided = match tail {
                    "" => "toolu_1".to_owned(),
                    _ => format!("{}{:07}", "x".repeat(57), at / 2),
                };
                let own = ToolCallPart::new(CallId::new(format!("call_{at}")), "t", "{}")
                    .with_provider_id(Some(provided.into()));
                let part = Part::new(PartKind::ToolCall(own)).by(Author::Model {
                    provider: "anthropic".into(),
                    model: "claude".into(),
                });
                let message = Message::new(Role::Assistant, vec![part]);
                request
                    .transcript
                    .push(Round::new(message, vec![result(at, "t")]).unwrap());
            }
            request
        };
        let sent = watched("anthropic", move || {
            sent(
                &AnthropicLayer::new("claude-opus-4-8", ApiKey::new(CANARY)),
                &request(),
            )
        });
        assert!(sent.unwrap() > 1_000_000);
    }
}

#[test]
fn converted_names_with_many_tools_take_linear_time() {
    // Only some services accept such names.
    let request = || {
        let mut request = ChatRequest::user("hi");
        for at in 0..MANY / 10 {
            let spec = ToolSpec::new(format!("tool.{at}"), "", json!({"type": "object"}));
            request.tools.push(Arc::new(spec));
        }
        let calls = (0..MANY).map(|at| call(at, "no.tool")).collect();
        let results = (0..MANY).map(|at| result(at, "no.tool")).collect();
        let round = Round::new(Message::new(Role::Assistant, calls), results).unwrap();
        request.transcript.push(round);
        request
    };
    let ollama = watched("ollama", move || {
        sent(&OllamaLayer::new("qwen3"), &request())
    });
    assert!(ollama.unwrap() > 1_000_000);
    let mistral = watched("mistral", move || {
        let url = "https://api.mistral.ai/v1";
        sent(
            &OpenAiLayer::compatible(url, "m", Some(ApiKey::new(CANARY))),
            &request(),
        )
    });
    assert!(mistral.unwrap() > 1_000_000);
}

#[test]
fn required_properties_take_linear_time() {
    let sent = watched("responses", || {
        let names = (0..5000).map(|at| format!("property_{at}"));
        let names: Vec<String> = names.collect();
        let properties = names
            .iter()
            .map(|name| (name.clone(), json!({"type": "string"})));
        let properties: Map<_, _> = properties.collect();
        // The names follow many repetitions of the last one.
        let again = std::iter::repeat_n(names.last().unwrap(), 2 * MANY);
        let required: Vec<&String> = again.chain(&names).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        });
        let mut request = ChatRequest::user("hi");
        for at in 0..4 {
            let spec = ToolSpec::new(format!("tool_{at}"), "", schema.clone());
            request.tools.push(Arc::new(spec));
        }
        sent(
            &OpenAiResponsesLayer::new("gpt-5.5", ApiKey::new(CANARY)),
            &request,
        )
    });
    assert!(sent.unwrap() > 100_000);
}

#[test]
fn an_error_names_a_few_of_many_unsupported_parts() {
    let mut request = ChatRequest::user("hi");
    for at in 0..MANY / 10 {
        let spec = ToolSpec::new(format!("tool {at}"), "", json!({"type": "object"}));
        request.tools.push(Arc::new(spec));
    }
    let error = sent(
        &AnthropicLayer::new("claude-opus-4-8", ApiKey::new(CANARY)),
        &request,
    )
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    let text = error.to_string();
    let more = format!("and {} more", MANY / 10 - 16);
    assert!(text.contains(&more), "{text:.2000}");
    assert!(text.len() < 4096);
}
