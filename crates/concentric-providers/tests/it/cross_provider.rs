//! Conversations that move between providers: the requests of each provider for the history of any
//! other.
//!
//! The requests are stored in `tests/golden/cross_provider`; `WRITE_GOLDEN=1` writes missing ones.

use bytes::Bytes;
use concentric_core::{
    Answer, BoxModel, CallId, ChatRequest, Media, MediaSource, Message, Part, PartKind, Role,
    Round, ToolCallPart, ToolOutcome, ToolResult, ToolSpec, Transcript, Turn,
};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, OpenAiResponsesLayer,
};
use concentric_test::TestEnvironment;
use http_body_util::Full;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    path::PathBuf,
    sync::{Arc, Mutex},
};
use tower::{Layer, ServiceExt, service_fn};

const APIS: [&str; 5] = ["chat", "responses", "anthropic", "gemini", "ollama"];

/// The responses of a service: first reasoning that must be sent back, text, and two calls; then a
/// text.
fn answers(api: &str) -> [Value; 2] {
    let paris = r#"{"city":"Paris"}"#;
    let rome = r#"{"city":"Rome"}"#;
    match api {
        "chat" => {
            let call = |id: &str, arguments: &str| {
                json!({"id": id, "type": "function",
                    "function": {"name": "weather", "arguments": arguments}})
            };
            let choice = |message: Value, reason: &str| {
                json!({"id": "gen-1", "model": "m", "choices":
                    [{"index": 0, "message": message, "finish_reason": reason}]})
            };
            [
                choice(
                    json!({"role": "assistant", "content": "Let me look.",
                        "reasoning": "I should look.",
                        "reasoning_details": [{"type": "reasoning.text", "index": 0,
                            "text": "I should look.", "signature": "chat-signature"}],
                        "tool_calls": [call("call_a", paris), call("call_b", rome)]}),
                    "tool_calls",
                ),
                choice(
                    json!({"role": "assistant", "content": "18 degrees."}),
                    "stop",
                ),
            ]
        }
        "responses" => {
            let message = |id: &str, text: &str| {
                json!({"type": "message", "id": id, "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": []}]})
            };
            let call = |id: &str, call_id: &str, arguments: &str| {
                json!({"type": "function_call", "id": id, "call_id": call_id,
                    "name": "weather", "arguments": arguments, "status": "completed"})
            };
            let whole = |output: Value| {
                json!({"id": "resp_1", "object": "response", "status": "completed", "model": "m",
                    "output": output, "usage": {"input_tokens": 1, "output_tokens": 1,
                    "total_tokens": 2}})
            };
            [
                whole(json!([
                    {"type": "reasoning", "id": "rs_1", "encrypted_content": "responses-secret",
                        "summary": [{"type": "summary_text", "text": "I should look."}]},
                    message("msg_1", "Let me look."),
                    call("fc_1", "call_a", paris),
                    call("fc_2", "call_b", rome),
                ])),
                whole(json!([message("msg_2", "18 degrees.")])),
            ]
        }
        "anthropic" => {
            let whole = |content: Value, reason: &str| {
                json!({"type": "message", "id": "msg_1", "role": "assistant", "model": "m",
                    "content": content, "stop_reason": reason,
                    "usage": {"input_tokens": 1, "output_tokens": 1}})
            };
            let call = |id: &str, input: &str| {
                json!({"type": "tool_use", "id": id, "name": "weather",
                    "input": serde_json::from_str::<Value>(input).unwrap()})
            };
            [
                whole(
                    json!([
                        {"type": "thinking", "thinking": "I should look.",
                            "signature": "anthropic-signature"},
                        {"type": "redacted_thinking", "data": "anthropic-secret"},
                        {"type": "text", "text": "Let me look."},
                        call("toolu_a", paris),
                        call("toolu_b", rome),
                    ]),
                    "tool_use",
                ),
                whole(json!([{"type": "text", "text": "18 degrees."}]), "end_turn"),
            ]
        }
        "gemini" => {
            let whole = |parts: Value| {
                json!({"responseId": "r", "modelVersion": "m", "candidates":
                    [{"index": 0, "finishReason": "STOP",
                        "content": {"role": "model", "parts": parts}}],
                    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1,
                        "totalTokenCount": 2}})
            };
            let call = |city: &str| json!({"name": "weather", "args": {"city": city}});
            [
                whole(json!([
                    {"text": "I should look.", "thought": true},
                    {"text": "Let me look."},
                    {"functionCall": call("Paris"), "thoughtSignature": "Z2VtaW5pLXNpZ25hdHVyZQ=="},
                    {"functionCall": call("Rome")},
                ])),
                whole(json!([{"text": "18 degrees."}])),
            ]
        }
        "ollama" => {
            let whole = |message: Value| {
                json!({"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message,
                    "done": true, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 1})
            };
            let call =
                |city: &str| json!({"function": {"name": "weather", "arguments": {"city": city}}});
            [
                whole(json!({"role": "assistant", "thinking": "I should look.",
                    "content": "Let me look.", "tool_calls": [call("Paris"), call("Rome")]})),
                whole(json!({"role": "assistant", "content": "18 degrees."})),
            ]
        }
        other => panic!("{other}"),
    }
}

/// Data that may be sent back only to the service that produced them.
const SECRETS: [&str; 5] = [
    "chat-signature",
    "responses-secret",
    "anthropic-signature",
    "anthropic-secret",
    "Z2VtaW5pLXNpZ25hdHVyZQ==",
];

type Sent = Arc<Mutex<Option<Value>>>;

/// A model of `api` that receives `answer`, and records the request.
fn model(api: &str, answer: &Value, sent: &Sent) -> BoxModel {
    let (answer, sent) = (answer.to_string(), Arc::clone(sent));
    let http = service_fn(move |request: http::Request<Full<Bytes>>| {
        let (answer, sent) = (answer.clone(), Arc::clone(&sent));
        async move {
            let body = http_body_util::BodyExt::collect(request.into_body())
                .await
                .unwrap();
            let json = serde_json::from_slice(&body.to_bytes()).unwrap();
            *sent.lock().unwrap() = Some(json);
            Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from(answer)))
        }
    });
    let key = || ApiKey::new("k");
    match api {
        // A service whose profile sends reasoning back.
        "chat" => {
            let layer = OpenAiLayer::compatible("https://openrouter.ai/api/v1", "m", Some(key()));
            BoxModel::new(layer.streaming(false).layer(http))
        }
        "responses" => BoxModel::new(
            OpenAiResponsesLayer::new("m", key())
                .streaming(false)
                .layer(http),
        ),
        "anthropic" => BoxModel::new(AnthropicLayer::new("m", key()).streaming(false).layer(http)),
        "gemini" => BoxModel::new(
            GeminiLayer::new("gemini-3-pro", key())
                .streaming(false)
                .layer(http),
        ),
        "ollama" => BoxModel::new(OllamaLayer::new("m").streaming(false).layer(http)),
        other => panic!("{other}"),
    }
}

fn request(transcript: Transcript) -> ChatRequest {
    let mut request = ChatRequest::new(transcript).with_system("Be brief.");
    request.context = TestEnvironment::new().context();
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"], "additionalProperties": false});
    let spec = ToolSpec::new("weather", "Says how warm it is.", schema);
    request.tools.push(Arc::new(spec));
    request
}

async fn ask(api: &str, answer: &Value, transcript: Transcript) -> (Answer, Value) {
    let sent = Sent::default();
    let model = model(api, answer, &sent);
    let answer = model.oneshot(request(transcript)).await.unwrap();
    let answer = answer.collect().await.unwrap();
    let sent = sent.lock().unwrap().take().unwrap();
    (answer, sent)
}

/// The transcript after both responses of a service of `api` and another user message.
async fn history(api: &str) -> Transcript {
    let [first, then] = answers(api);
    let mut transcript = Transcript::new();
    transcript.push_user("How warm is it in Paris and Rome?");
    let (answer, sent) = ask(api, &first, transcript.clone()).await;
    assert_eq!(
        crate::common::strict::faults(api, &sent),
        Vec::<String>::new(),
        "{sent:#}"
    );
    let calls: Vec<CallId> = answer
        .message
        .tool_calls()
        .map(|call| call.id.clone())
        .collect();
    assert_eq!(calls.len(), 2, "{api}: {answer:?}");
    let results = vec![
        ToolResult::new(calls[0].clone(), "weather", ToolOutcome::done("18 degrees")),
        ToolResult::new(
            calls[1].clone(),
            "weather",
            ToolOutcome::failed("Nobody knows."),
        ),
    ];
    transcript.push(Round::new(answer.message, results).unwrap());
    // The service must accept its own round.
    let (answer, sent) = ask(api, &then, transcript.clone()).await;
    assert_eq!(
        crate::common::strict::faults(api, &sent),
        Vec::<String>::new(),
        "{sent:#}"
    );
    transcript.push(Turn::message(answer.message).unwrap());
    transcript.push_user("Thanks. And why?");
    transcript
}

fn golden(name: &str, sent: &Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/cross_provider")
        .join(format!("{name}.json"));
    let text = format!("{sent:#}\n");
    if !path.exists() && std::env::var_os("WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    assert_eq!(*sent, expected, "{name}");
}

// Case F021.
#[tokio::test]
async fn every_service_accepts_every_providers_history() {
    for from in APIS {
        let transcript = history(from).await;
        for to in APIS {
            let [_, then] = answers(to);
            let (_, sent) = ask(to, &then, transcript.clone()).await;
            let faults = crate::common::strict::faults(to, &sent);
            assert_eq!(faults, Vec::<String>::new(), "{from} to {to}: {sent:#}");
            let text = sent.to_string();
            for (at, secret) in SECRETS.iter().enumerate() {
                let of = APIS[[0, 1, 2, 2, 3][at]];
                assert_eq!(
                    text.contains(secret),
                    of == from && from == to,
                    "{secret} from {from} to {to}: {sent:#}"
                );
            }
            // Reasoning is sent only to its own provider.
            assert!(
                from == to || !text.contains("I should look."),
                "from {from} to {to}: {sent:#}"
            );
            // Texts, calls and results are sent to every provider.
            for said in [
                "Let me look.",
                "Paris",
                "Rome",
                "18 degrees",
                "Nobody knows.",
            ] {
                assert!(text.contains(said), "{said} from {from} to {to}: {sent:#}");
            }
            golden(&format!("{from}_to_{to}"), &sent);
        }
    }
}

#[tokio::test]
async fn gemini_server_tools_are_sent_to_gemini_only() {
    let ran = json!({"responseId": "r", "modelVersion": "m", "candidates":
    [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": [
        {"executableCode": {"language": "PYTHON", "code": "print(6*7)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "the output"}},
        {"text": "It is 42."},
    ]}}]});
    let mut transcript = Transcript::new();
    transcript.push_user("What is six times seven?");
    let (answer, _) = ask("gemini", &ran, transcript.clone()).await;
    transcript.push(Turn::message(answer.message).unwrap());
    transcript.push_user("Thanks. And why?");
    for to in APIS {
        let [_, then] = answers(to);
        let (_, sent) = ask(to, &then, transcript.clone()).await;
        let faults = crate::common::strict::faults(to, &sent);
        assert_eq!(faults, Vec::<String>::new(), "to {to}: {sent:#}");
        let text = sent.to_string();
        assert!(text.contains("It is 42."), "to {to}: {sent:#}");
        // Either both the call and its result, or neither.
        for ran in ["print(6*7)", "the output"] {
            assert_eq!(text.contains(ran), to == "gemini", "to {to}: {sent:#}");
        }
    }
}

#[tokio::test]
async fn invalid_tool_names_are_converted() {
    let long = "x".repeat(200);
    let names = ["files.read", "mcp:server/tool näme", "", "5 words", &long];
    let calls = names.iter().enumerate().map(|(at, name)| {
        let call = ToolCallPart::new(CallId::new(format!("call_{at}")), *name, "{}");
        Part::new(PartKind::ToolCall(call))
    });
    let message = Message::new(Role::Assistant, calls.collect());
    let results = names.iter().enumerate().map(|(at, name)| {
        let id = CallId::new(format!("call_{at}"));
        ToolResult::new(id, *name, ToolOutcome::failed("There is no such tool."))
    });
    let mut transcript = Transcript::new();
    transcript.push_user("Read it.");
    transcript.push(Round::new(message, results.collect()).unwrap());
    for to in APIS {
        let [_, then] = answers(to);
        let (_, sent) = ask(to, &then, transcript.clone()).await;
        let faults = crate::common::strict::faults(to, &sent);
        assert_eq!(faults, Vec::<String>::new(), "to {to}: {sent:#}");
        let text = sent.to_string();
        assert!(
            text.contains(if to == "gemini" {
                "files.read"
            } else {
                "files_read"
            }),
            "to {to}: {sent:#}"
        );
    }
}

/// The features of `request` that the layer of `api` rejects.
fn refused(api: &str, request: &ChatRequest) -> Vec<String> {
    let key = || ApiKey::new("k");
    let refused = match api {
        "chat" => OpenAiLayer::new("m", key()).check(request),
        "responses" => OpenAiResponsesLayer::new("m", key()).check(request),
        "anthropic" => AnthropicLayer::new("m", key()).check(request),
        "gemini" => GeminiLayer::new("gemini-3-pro", key()).check(request),
        "ollama" => OllamaLayer::new("m").check(request),
        other => panic!("{other}"),
    };
    refused.iter().map(ToString::to_string).collect()
}

fn base64(media_type: &str) -> Media {
    Media::new(MediaSource::Base64("QUJD".into())).with_media_type(media_type)
}

#[tokio::test]
async fn a_medium_in_a_result_is_sent_or_rejected() {
    let pdf = PartKind::File(base64("application/pdf"));
    let sound = PartKind::Audio(base64("audio/wav"));
    for (kind, refusing) in [
        (pdf, ["chat", "ollama"].as_slice()),
        (
            sound,
            ["chat", "responses", "anthropic", "ollama"].as_slice(),
        ),
    ] {
        let call = ToolCallPart::new(CallId::new("call_1"), "weather", "{}");
        let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
        let outcome = ToolOutcome::done(vec![Part::text("Here."), Part::new(kind)]);
        let result = ToolResult::new(CallId::new("call_1"), "weather", outcome);
        let mut transcript = Transcript::new();
        transcript.push_user("How warm is it?");
        transcript.push(Round::new(message, vec![result]).unwrap());
        for to in APIS {
            let refused = refused(to, &request(transcript.clone()));
            if refusing.contains(&to) {
                assert_eq!(refused.len(), 1, "{to}: {refused:?}");
                assert!(refused[0].contains("in a tool result"), "{refused:?}");
                continue;
            }
            assert!(refused.is_empty(), "{to}: {refused:?}");
            let [_, then] = answers(to);
            let (_, sent) = ask(to, &then, transcript.clone()).await;
            assert!(sent.to_string().contains("QUJD"), "{to}: {sent:#}");
        }
    }
}

#[tokio::test]
async fn generated_media_are_sent_or_named() {
    let kinds = [
        (PartKind::Image(base64("image/png")), "[image]"),
        (PartKind::Audio(base64("audio/wav")), "[sound]"),
        (PartKind::File(base64("application/pdf")), "[document]"),
    ];
    for (kind, name) in kinds {
        for said in [vec![], vec![Part::text("Here it is: ")]] {
            let is_image = matches!(kind, PartKind::Image(_));
            let parts = said.into_iter().chain([Part::new(kind.clone())]);
            let message = Message::new(Role::Assistant, parts.collect());
            let mut transcript = Transcript::new();
            transcript.push_user("Draw a cat.");
            transcript.push(Turn::message(message).unwrap());
            transcript.push_user("Thanks. And why?");
            for to in APIS {
                let [_, then] = answers(to);
                let (_, sent) = ask(to, &then, transcript.clone()).await;
                let faults = crate::common::strict::faults(to, &sent);
                assert_eq!(faults, Vec::<String>::new(), "to {to}: {sent:#}");
                let text = sent.to_string();
                let is_sent = to == "gemini" || to == "ollama" && is_image;
                assert_eq!(text.contains("QUJD"), is_sent, "to {to}: {sent:#}");
                assert_eq!(text.contains(name), !is_sent, "to {to}: {sent:#}");
            }
        }
    }
}

#[tokio::test]
async fn an_unpaired_surrogate_in_arguments_is_replaced() {
    let call = ToolCallPart::new(CallId::new("call_1"), "weather", r#"{"city":"caf\ud83d"}"#);
    let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
    let outcome = ToolOutcome::failed("There is no such city.");
    let result = ToolResult::new(CallId::new("call_1"), "weather", outcome);
    let mut transcript = Transcript::new();
    transcript.push_user("How warm is it?");
    transcript.push(Round::new(message, vec![result]).unwrap());
    for (to, path) in [
        ("anthropic", "/messages/1/content/0/input"),
        ("gemini", "/contents/1/parts/0/functionCall/args"),
        ("ollama", "/messages/2/tool_calls/0/function/arguments"),
    ] {
        let [_, then] = answers(to);
        // The body must be parsed, which an unpaired surrogate prevents.
        let (_, sent) = ask(to, &then, transcript.clone()).await;
        let city = json!({"city": "caf\u{fffd}"});
        assert_eq!(sent.pointer(path), Some(&city), "to {to}: {sent:#}");
    }
}
