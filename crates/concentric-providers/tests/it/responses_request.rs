//! Requests to Responses services.

use crate::common::*;
use concentric_core::{
    Author, CallId, ChatRequest, Event, Executor, Media, MediaSource, Message, MessageBuilder,
    OutputSchema, Part, PartKind, ProviderData, ResponseHead, Role, Round, Stability,
    SystemSegment, ToolCallPart, ToolChoice, ToolOutcome, ToolResult, ToolSpec, Transcript, Turn,
};
use concentric_providers::{ApiKey, Capabilities, OpenAiResponsesLayer, responses::Compat};
use serde_json::{Value, json};
use std::sync::Arc;

fn layer() -> OpenAiResponsesLayer {
    OpenAiResponsesLayer::new("gpt-test", ApiKey::new(CANARY))
}

fn part(kind: PartKind) -> Part {
    Part::new(kind)
}

fn provider_options(request: &mut ChatRequest, options: Value) {
    let Value::Object(options) = options else {
        panic!()
    };
    request.options_mut().provider = options;
}

/// The input that is sent for `transcript` with these provider options.
async fn input(layer: OpenAiResponsesLayer, transcript: Transcript, options: Value) -> Value {
    let mut request = ChatRequest::new(transcript);
    provider_options(&mut request, options);
    sent_by(&layer, request).await.1["input"].clone()
}

fn user_of(parts: Vec<Part>) -> Transcript {
    let message = Message::new(Role::User, parts);
    [Turn::message(message).unwrap()].into_iter().collect()
}

#[tokio::test]
async fn a_minimal_request_is_encoded() {
    let (parts, body) = sent_by(&layer(), ChatRequest::user("hi")).await;
    assert_eq!(parts.method, http::Method::POST);
    assert_eq!(parts.uri, "https://api.openai.com/v1/responses");
    assert_eq!(parts.headers["content-type"], "application/json");
    assert_eq!(parts.headers["authorization"], format!("Bearer {CANARY}"));
    assert!(parts.headers["authorization"].is_sensitive());
    assert_eq!(
        body,
        json!({
            "model": "gpt-test",
            "input": [{"role": "user", "content": "hi"}],
            "stream": true,
            "store": false,
            "include": ["reasoning.encrypted_content"],
        })
    );
}

#[tokio::test]
async fn every_option_is_encoded() {
    let mut request = ChatRequest::user("hi").with_system("One.");
    request.system.push(SystemSegment::new("Two."));
    let closed = json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": false});
    let open = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    request
        .tools
        .push(Arc::new(ToolSpec::new("search", "Finds.", closed.clone())));
    request
        .tools
        .push(Arc::new(ToolSpec::new("look", "", open.clone())));
    request
        .tools
        .push(Arc::new(ToolSpec::new("now", "Time.", json!({}))));
    let options = request.options_mut();
    options.model = Some("other".into());
    options.tool_choice = Some(ToolChoice::Tool("search".into()));
    options.parallel_tool_calls = Some(false);
    options.output_schema = Some(OutputSchema::new("out", closed.clone()));
    options.max_output_tokens = Some(99);
    options.temperature = Some(0.7);
    options.top_p = Some(0.9);
    options.reasoning_effort = Some("low".into());
    options.metadata.insert("a".into(), json!("x"));
    options.metadata.insert("b".into(), json!(1));
    provider_options(
        &mut request,
        json!({
            "temperature": 1,
            "service_tier": "flex",
            "text": {"verbosity": "low"},
            "reasoning": {"summary": "auto"},
            "truncation": "auto",
        }),
    );
    let (_, body) = sent_by(&layer().streaming(false), request.clone()).await;
    assert_eq!(
        body,
        json!({
            "model": "other",
            "instructions": "One.\n\nTwo.",
            "input": [{"role": "user", "content": "hi"}],
            "stream": false,
            "store": false,
            "include": ["reasoning.encrypted_content"],
            "tools": [
                {"type": "function", "name": "search", "description": "Finds.", "parameters": closed, "strict": true},
                {"type": "function", "name": "look", "parameters": open, "strict": false},
                {"type": "function", "name": "now", "description": "Time.", "parameters": {"type": "object", "properties": {}}, "strict": false},
            ],
            "tool_choice": {"type": "function", "name": "search"},
            "parallel_tool_calls": false,
            "text": {"format": {"type": "json_schema", "name": "out", "schema": closed, "strict": true}, "verbosity": "low"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "max_output_tokens": 99,
            "temperature": 1,
            "top_p": 0.9,
            "metadata": {"a": "x", "b": "1"},
            "service_tier": "flex",
            "truncation": "auto",
        })
    );

    // Provider options take precedence, including fields of these two objects.
    provider_options(
        &mut request,
        json!({"text": {"format": {"type": "text"}}, "reasoning": null, "tools": []}),
    );
    let (_, body) = sent_by(&layer(), request).await;
    assert_eq!(body["text"], json!({"format": {"type": "text"}}));
    assert_eq!(
        (&body["reasoning"], &body["tools"]),
        (&Value::Null, &json!([]))
    );
}

#[tokio::test]
async fn storage_is_configurable() {
    let of = async |model: &str, options: Value| {
        let mut request = ChatRequest::user("hi");
        request.options_mut().model = Some(model.into());
        provider_options(&mut request, options);
        let (_, body) = sent_by(&layer(), request).await;
        (body["store"].clone(), body.get("include").is_some())
    };
    assert_eq!(of("gpt-5.5", json!({})).await, (json!(false), true));
    assert_eq!(
        of("gpt-5.5", json!({"store": true})).await,
        (json!(true), false)
    );
    // Encrypted reasoning is requested only from models that reason.
    for model in [
        "gpt-4o",
        "gpt-4.1-mini",
        "openai/gpt-4o",
        "ft:gpt-4o:x",
        "gpt-5-chat-latest",
    ] {
        assert_eq!(of(model, json!({})).await, (json!(false), false), "{model}");
    }
}

#[tokio::test]
async fn compatible_services_are_recognized() {
    let request = || {
        let mut request = ChatRequest::user("hi");
        let schema = json!({"type": "object", "properties": {}});
        request
            .tools
            .push(Arc::new(ToolSpec::new("t", "T.", schema)));
        request.options_mut().metadata.insert("a".into(), json!(1));
        request
    };
    let azure = OpenAiResponsesLayer::compatible(
        "https://x.openai.azure.com/openai/v1?api-version=1",
        "m",
        Some(ApiKey::new("k")),
    );
    let (parts, body) = sent_by(&azure, request()).await;
    assert_eq!(parts.headers["api-key"], "k");
    assert!(!parts.headers.contains_key("authorization"));
    assert_eq!(parts.uri.path(), "/openai/v1/responses");
    assert_eq!(parts.uri.query(), Some("api-version=1"));
    assert_eq!(
        (&body["tools"][0]["strict"], &body["metadata"]),
        (&json!(true), &json!({"a": "1"}))
    );
    let local = || OpenAiResponsesLayer::compatible("http://localhost:8080/v1", "m", None);
    let (parts, body) = sent_by(&local().header("x-a", "b"), request()).await;
    assert!(!parts.headers.contains_key("authorization"));
    assert_eq!(parts.headers["x-a"], "b");
    assert_eq!(body["tools"][0]["strict"], json!(false));
    assert!(body.get("metadata").is_none());
    let (_, body) = sent_by(&local().compat(Compat::openai()), request()).await;
    assert_eq!(body["tools"][0]["strict"], json!(true));
}

#[tokio::test]
async fn media_are_encoded() {
    let base64 = |kind: &str| Media::new(MediaSource::Base64("QUJD".into())).with_media_type(kind);
    let url = |url: &str| Media::new(MediaSource::Url(url.into()));
    let id = |id: &str| Media::new(MediaSource::Id(id.into()));
    let transcript = user_of(vec![
        Part::text("see"),
        Part::text(""),
        part(PartKind::Image(url("https://a.test/x.png"))),
        part(PartKind::Image(base64("image/jpeg"))),
        part(PartKind::Image(id("file_1"))),
        part(PartKind::File(base64("application/pdf").with_name("a.pdf"))),
        part(PartKind::File(url("https://a.test/x.pdf"))),
        part(PartKind::File(id("file_2"))),
    ]);
    assert_eq!(
        input(layer(), transcript, json!({})).await,
        json!([{"role": "user", "content": [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": "https://a.test/x.png", "detail": "auto"},
            {"type": "input_image", "image_url": "data:image/jpeg;base64,QUJD", "detail": "auto"},
            {"type": "input_image", "file_id": "file_1", "detail": "auto"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"},
            {"type": "input_file", "file_url": "https://a.test/x.pdf"},
            {"type": "input_file", "file_id": "file_2"},
        ]}])
    );
}

#[tokio::test]
async fn cache_breakpoints_are_in_the_input() {
    let mut request = ChatRequest::user("hi");
    for (text, stability) in [
        ("a", Stability::Fixed),
        ("b", Stability::Fixed),
        ("c", Stability::Thread),
        ("d", Stability::Step),
    ] {
        request
            .system
            .push(SystemSegment::new(text).stable_for(stability));
    }
    provider_options(
        &mut request,
        json!({"prompt_cache_options": {"mode": "explicit"}}),
    );
    let (_, body) = sent_by(&layer(), request).await;
    assert!(body.get("instructions").is_none());
    let end = json!({"mode": "explicit"});
    assert_eq!(
        body["input"],
        json!([
            {"role": "system", "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_text", "text": "b", "prompt_cache_breakpoint": end},
                {"type": "input_text", "text": "c", "prompt_cache_breakpoint": end},
                {"type": "input_text", "text": "d"},
            ]},
            {"role": "user", "content": "hi"},
        ])
    );
}

/// A conversation with `output` from the service, in which each call has the outcome `result`.
fn after(output: &Value, result: &ToolOutcome) -> Transcript {
    // Decoded by the layer.
    let body =
        json!({"id": "resp_1", "model": "gpt-test-1", "status": "completed", "output": output})
            .to_string();
    let script = Script::new([body], End::Clean);
    let layer = layer();
    let read = read_script(&layer, script);
    let (events, error) = futures_util::FutureExt::now_or_never(read).unwrap();
    assert!(error.is_none(), "{error:?}");
    let mut builder = MessageBuilder::new(&ResponseHead::new("openai", "gpt-test-1"));
    events.iter().for_each(|event: &Event| builder.push(event));
    let message = builder.build();
    let results: Vec<ToolResult> = message
        .tool_calls()
        .filter(|call| call.executor == Executor::Loop)
        .map(|call| ToolResult::new(call.id.clone(), call.name.clone(), result.clone()))
        .collect();
    let mut transcript = Transcript::new();
    transcript.push_user("hi");
    match results.is_empty() {
        true => transcript.push(Turn::message(message).unwrap()),
        false => transcript.push(Round::new(message, results).unwrap()),
    }
    transcript
}

#[tokio::test]
async fn an_own_response_is_sent_back_unchanged() {
    let cited = json!([{"type": "url_citation", "url": "https://a.test", "title": "A", "start_index": 0, "end_index": 2}]);
    let output = json!([
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary",
            "content": [{"type": "output_text", "text": "So", "annotations": cited}, {"type": "refusal", "refusal": "No."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "f", "arguments": "{\"x\":1}"},
        {"type": "reasoning", "id": "rs_2", "encrypted_content": "gBBB", "summary": []},
        {"type": "program", "id": "cm_1", "call_id": "call_p", "code": "x", "fingerprint": "y"},
        {"type": "function_call", "id": "fc_2", "call_id": "call_b", "name": "g", "arguments": "{}",
            "caller": {"type": "program", "caller_id": "call_p"}, "namespace": "n"},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QUJD"},
    ]);
    let transcript = after(&output, &ToolOutcome::done("ok"));
    let sent = input(layer(), transcript.clone(), json!({})).await;
    let mut expected = vec![json!({"role": "user", "content": "hi"})];
    expected.extend(output.as_array().unwrap().iter().cloned());
    expected.extend([
        json!({"type": "function_call_output", "call_id": "call_a", "output": "ok"}),
        json!({"type": "function_call_output", "call_id": "call_b", "output": "ok",
            "caller": {"type": "program", "caller_id": "call_p"}}),
    ]);
    assert_eq!(sent, Value::Array(expected.clone()));

    // The service has stored its own response.
    let options = json!({"store": true, "previous_response_id": "resp_1"});
    let remembered = input(layer(), transcript.clone(), options).await;
    assert_eq!(remembered, json!(expected[expected.len() - 2..]));
    // A different response.
    let options = json!({"store": true, "previous_response_id": "resp_0"});
    assert_eq!(input(layer(), transcript.clone(), options).await, sent);

    // Another service receives only texts and calls.
    let other = OpenAiResponsesLayer::compatible("https://api.x.ai/v1", "grok", None);
    let sent = input(other, transcript, json!({})).await;
    let items: Vec<&str> = sent
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["type"].as_str().or(item["role"].as_str()).unwrap())
        .collect();
    assert_eq!(
        items,
        [
            "user",
            "assistant",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output"
        ]
    );
    assert_eq!(
        sent[1],
        json!({"role": "assistant", "content": "SoNo.[image]"})
    );
    assert!(sent[2].get("id").is_none());
    assert_ne!(sent[2]["call_id"], "call_a");
    assert_eq!(sent[2]["call_id"], sent[4]["call_id"]);
}

#[tokio::test]
async fn only_readable_reasoning_is_sent_back() {
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "f", "arguments": "{}"});
    let of = async |reasoning: Value, options: Value| {
        let transcript = after(&json!([reasoning, call]), &ToolOutcome::done("ok"));
        let sent = input(layer(), transcript, options).await;
        let sent = sent.as_array().unwrap()[1..].to_vec();
        (
            sent[0]["type"] == "reasoning",
            sent.iter().any(|item| item.get("id").is_some()),
        )
    };
    let plain = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]});
    let shown = json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    let encrypted =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"});
    assert_eq!(of(plain.clone(), json!({})).await, (false, false));
    assert_eq!(of(plain, json!({"store": true})).await, (true, true));
    assert_eq!(of(shown, json!({})).await, (true, true));
    assert_eq!(of(encrypted.clone(), json!({})).await, (true, true));

    // An id over the limit is omitted.
    let mut long = encrypted.clone();
    long["id"] = json!("x".repeat(65));
    let sent = input(
        layer(),
        after(&json!([long, call]), &ToolOutcome::done("ok")),
        json!({}),
    )
    .await;
    assert!(sent[1].get("id").is_none() && sent[1]["encrypted_content"] == "gAAA");

    // Reasoning without a following item.
    let sent = input(
        layer(),
        after(&json!([encrypted]), &ToolOutcome::done("ok")),
        json!({}),
    )
    .await;
    assert_eq!(sent, json!([{"role": "user", "content": "hi"}]));
}

#[tokio::test]
async fn service_defined_tools_have_their_own_result_types() {
    let output = json!([
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "math", "input": "4 + 4"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c2", "action": {"command": ["ls"], "env": {}, "type": "exec"}, "status": "completed"},
        {"type": "shell_call", "id": "sh_1", "call_id": "c3", "action": {"commands": ["ls"]}, "status": "completed"},
        {"type": "apply_patch_call", "id": "apc_1", "call_id": "c4", "operation": {"path": "a", "type": "delete_file"}, "status": "completed"},
    ]);
    let sent = input(layer(), after(&output, &ToolOutcome::done("ok")), json!({})).await;
    let mut calls = output.as_array().unwrap().clone();
    // The ids are not needed.
    calls[0].as_object_mut().unwrap().remove("id");
    calls[3].as_object_mut().unwrap().remove("id");
    assert_eq!(json!(sent.as_array().unwrap()[1..5]), json!(calls));
    let exit = |code: i32| json!({"type": "exit", "exit_code": code});
    assert_eq!(
        json!(sent.as_array().unwrap()[5..]),
        json!([
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
            {"type": "local_shell_call_output", "call_id": "c2", "output": "ok"},
            {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "ok", "stderr": "", "outcome": exit(0)}]},
            {"type": "apply_patch_call_output", "call_id": "c4", "status": "completed", "output": "ok"},
        ])
    );
    let sent = input(
        layer(),
        after(&output, &ToolOutcome::failed("no")),
        json!({}),
    )
    .await;
    assert_eq!(
        sent[7]["output"],
        json!([{"stdout": "", "stderr": "no", "outcome": exit(1)}])
    );
    assert_eq!(sent[8]["status"], "failed");
}

#[tokio::test]
async fn results_may_contain_images_and_documents() {
    let output = json!([{"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}]);
    let image = Media::new(MediaSource::Url("https://a.test/x.png".into()));
    let result = ToolOutcome::done(vec![Part::text("Here."), part(PartKind::Image(image))]);
    let sent = input(layer(), after(&output, &result), json!({})).await;
    assert_eq!(
        sent[2]["output"],
        json!([
            {"type": "input_text", "text": "Here."},
            {"type": "input_image", "image_url": "https://a.test/x.png", "detail": "auto"},
        ])
    );
    let result = ToolOutcome::done(vec![Part::text("a"), Part::text("b")]);
    let sent = input(layer(), after(&output, &result), json!({})).await;
    assert_eq!(sent[2]["output"], "ab");
}

#[tokio::test]
async fn every_history_is_converted() {
    let by = |provider: &'static str| Author::Model {
        provider: provider.into(),
        model: "m".into(),
    };
    let data =
        |provider: &str, data: Value| Some(Arc::new(ProviderData::new(provider.to_owned(), data)));
    let call = |id: &str, provided: &str| {
        ToolCallPart::new(CallId::new(id), "t", "{\"a\":").with_provider_id(Some(provided.into()))
    };
    let long = "x".repeat(70);
    let message = Message::new(
        Role::Assistant,
        vec![
            part(PartKind::Reasoning("hm".into()))
                .by(by("anthropic"))
                .with_provider_data(data("anthropic", json!({"signature": "s"}))),
            // Chat completions of the same provider.
            part(PartKind::Reasoning("hm".into()))
                .by(by("openai"))
                .with_provider_data(data("openai", json!({"reasoning_details": []}))),
            part(PartKind::Provider(ProviderData::new(
                "gemini",
                json!({"item": {"type": "x"}}),
            ))),
            Part::text("Let me "),
            Part::text(""),
            Part::text("see."),
            part(PartKind::ToolCall(call("call_1", "toolu_1"))).by(by("anthropic")),
            part(PartKind::ToolCall(call("call_2", "call_x"))).by(by("openai")),
            part(PartKind::ToolCall(call(&long, &long))).by(by("openai")),
            part(PartKind::ToolCall(
                call("p", "p").executed_by(Executor::Provider),
            ))
            .by(by("anthropic")),
        ],
    );
    let result = |id: &str| ToolResult::new(CallId::new(id), "t", ToolOutcome::denied("No."));
    let round = Round::new(
        message,
        vec![result("call_1"), result("call_2"), result(&long)],
    )
    .unwrap();
    let mut transcript = Transcript::new();
    transcript.push_user("hi");
    transcript.push(round);
    transcript
        .push(Turn::message(Message::new(Role::System, vec![Part::text("Be brief.")])).unwrap());
    transcript.push(Turn::message(Message::new(Role::Assistant, vec![Part::text("")])).unwrap());
    transcript.push(Turn::message(Message::new(Role::User, vec![])).unwrap());
    let approval =
        json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true});
    let parts = vec![
        Part::text("Yes."),
        part(PartKind::Provider(ProviderData::new(
            "openai",
            json!({"item": approval}),
        ))),
        Part::text("Go on."),
    ];
    transcript.push(Turn::message(Message::new(Role::User, parts)).unwrap());
    let sent = input(layer(), transcript, json!({})).await;
    let made = sent[4]["call_id"].as_str().unwrap().to_owned();
    assert!(made.len() <= 64);
    let call =
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "t", "arguments": "{}"});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "No."});
    assert_eq!(
        sent,
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Let me see."},
            call("call_1"), call("call_x"), call(&made),
            output("call_1"), output("call_x"), output(&made),
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Yes."}]},
            approval,
            {"role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
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
    let mut transcript = Transcript::new();
    transcript.push(Turn::message(message).unwrap());
    let sent = input(layer(), transcript, json!({})).await;
    let kinds: Vec<&Value> = sent
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.get("type").unwrap_or(&item["role"]))
        .collect();
    assert_eq!(
        kinds,
        ["function_call", "function_call_output", "assistant"]
    );
}

#[test]
fn unsupported_features_are_rejected_before_sending() {
    let refused = |request: &ChatRequest| -> Vec<String> {
        let all = layer().check(request);
        all.iter().map(ToString::to_string).collect()
    };
    let mut request = ChatRequest::user("hi");
    let options = request.options_mut();
    options.seed = Some(1);
    options.stop = vec!["x".into()];
    options.frequency_penalty = Some(0.1);
    options.presence_penalty = Some(0.1);
    options.output_schema = Some(OutputSchema::new(
        "Vec<T>",
        json!({"type": "object", "properties": {}}),
    ));
    let schemas = [
        ("ok", json!({"type": "object"})),
        ("bad name", json!({})),
        ("list", json!({"type": "array"})),
        ("any", json!({"type": "object", "anyOf": []})),
    ];
    for (name, schema) in schemas {
        request
            .tools
            .push(Arc::new(ToolSpec::new(name, "", schema)));
    }
    let sound = Media::new(MediaSource::Base64("QUJD".into()));
    request
        .transcript
        .extend(user_of(vec![part(PartKind::Audio(sound))]).iter().cloned());
    assert_eq!(
        refused(&request),
        [
            "a frequency penalty",
            "a presence penalty",
            "a seed",
            "that many stop sequences",
            "audio (turn 1)",
            "an output schema named `Vec<T>`",
            "a tool named `bad name`",
            "the input schema of tool `list`: a type other than `object`",
            "the input schema of tool `any`: `anyOf` at the top level",
        ]
    );
    let mut request = ChatRequest::new(Transcript::new());
    provider_options(&mut request, json!({"previous_response_id": "resp_1"}));
    assert!(refused(&request).is_empty());
}

#[tokio::test]
async fn configured_capabilities_are_sent() {
    let mut request = ChatRequest::user("hi");
    let options = request.options_mut();
    options.seed = Some(1);
    options.stop = vec!["x".into()];
    options.presence_penalty = Some(0.5);
    let (_, body) = sent_by(&layer().capabilities(Capabilities::all()), request).await;
    assert_eq!((&body["seed"], &body["stop"]), (&json!(1), &json!(["x"])));
    assert_eq!(body["presence_penalty"], 0.5);
}
