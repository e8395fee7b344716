//! Requests to Google's services.

use crate::common::{CANARY, End, Script, gemini::layer, sent_by, try_sent_by};
use concentric_core::{
    Author, CallId, ChatRequest, ErrorKind, Executor, Media, MediaSource, Message, OutputSchema,
    Part, PartKind, ProviderData, Role, Round, Str, SystemSegment, ToolCallPart, ToolChoice,
    ToolOutcome, ToolResult, ToolSpec, Turn,
};
use concentric_providers::{ApiKey, GeminiLayer};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

async fn sent(layer: GeminiLayer, request: ChatRequest) -> (http::request::Parts, Value) {
    sent_by(&layer, request).await
}

fn old() -> GeminiLayer {
    GeminiLayer::new("gemini-2.0-flash", ApiKey::new("key"))
}

fn part(kind: PartKind) -> Part {
    Part::new(kind)
}

fn own(data: Value) -> Option<Arc<ProviderData>> {
    Some(Arc::new(ProviderData::new("gcp.gemini", data)))
}

fn signed(signature: &str) -> Option<Arc<ProviderData>> {
    own(json!({"fields": {"thoughtSignature": signature}}))
}

fn tool_call(id: &str, provider_id: Option<&str>) -> PartKind {
    let call = ToolCallPart::new(CallId::new(id), "t", "{\"b\":1,\"a\":2}");
    PartKind::ToolCall(call.with_provider_id(provider_id.map(Str::from)))
}

fn result(id: &str, outcome: ToolOutcome) -> ToolResult {
    ToolResult::new(CallId::new(id), "t", outcome)
}

fn by(provider: &str) -> Author {
    Author::Model {
        provider: provider.into(),
        model: "m".into(),
    }
}

#[tokio::test]
async fn a_minimal_request_is_encoded() {
    let (parts, body) = sent(layer(), ChatRequest::user("hi")).await;
    assert_eq!(parts.method, http::Method::POST);
    assert_eq!(
        parts.uri,
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-test:streamGenerateContent?alt=sse"
    );
    assert_eq!(parts.headers["x-goog-api-key"], CANARY);
    assert!(parts.headers["x-goog-api-key"].is_sensitive());
    assert!(!parts.headers.contains_key("authorization"));
    assert_eq!(
        body,
        json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]})
    );
    let mut request = ChatRequest::user("hi");
    request.options_mut().model = Some("tunedModels/mine".into());
    let (parts, _) = sent(layer().streaming(false), request).await;
    assert_eq!(
        parts.uri,
        "https://generativelanguage.googleapis.com/v1beta/tunedModels/mine:generateContent"
    );
}

#[tokio::test]
async fn vertex_calls_use_the_current_token() {
    let count = Arc::new(AtomicU32::new(0));
    let token =
        ApiKey::from_fn(move || Ok(format!("token-{}", count.fetch_add(1, Ordering::Relaxed))));
    let layer = GeminiLayer::vertex("my-project", "us-central1", "gemini-2.5-flash", token);
    for turn in 0..2 {
        let (parts, _) = sent(layer.clone(), ChatRequest::user("hi")).await;
        assert_eq!(
            parts.uri,
            "https://us-central1-aiplatform.googleapis.com/v1/projects/my-project/locations/us-central1/publishers/google/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
        );
        assert_eq!(
            parts.headers["authorization"],
            format!("Bearer token-{turn}")
        );
        assert!(!parts.headers.contains_key("x-goog-api-key"));
    }
    for (region, host) in [
        ("global", "aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ] {
        let layer = GeminiLayer::vertex("p", region, "m", ApiKey::new("t"));
        let (parts, _) = sent(layer, ChatRequest::user("hi")).await;
        assert_eq!(parts.uri.host(), Some(host));
    }
}

#[tokio::test]
async fn every_option_is_encoded() {
    let mut request = ChatRequest::user("hi").with_system("One.");
    request.system.push(SystemSegment::new("Two."));
    let schema = json!({"type": "object", "properties": {"q": {"type": ["string", "null"]}}});
    request
        .tools
        .push(Arc::new(ToolSpec::new("search", "Finds.", schema.clone())));
    let options = request.options_mut();
    options.tool_choice = Some(ToolChoice::Tool("search".into()));
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
    let provider = json!({
        "generationConfig": {"temperature": 1, "topK": 40},
        "toolConfig": {"retrievalConfig": {"languageCode": "de"}},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "serviceTier": "flex",
    });
    options.provider = provider.as_object().unwrap().clone();
    let (_, body) = sent(layer(), request).await;
    assert_eq!(
        body,
        json!({
            "systemInstruction": {"parts": [{"text": "One."}, {"text": "Two."}]},
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
            "tools": [{"functionDeclarations": [
                {"name": "search", "description": "Finds.", "parametersJsonSchema": schema},
            ]}],
            "toolConfig": {
                "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["search"]},
                "retrievalConfig": {"languageCode": "de"},
            },
            "generationConfig": {
                "responseMimeType": "application/json",
                "responseJsonSchema": schema,
                "maxOutputTokens": 9,
                "temperature": 1,
                "topK": 40,
                "topP": 0.9,
                "frequencyPenalty": 0.1,
                "presencePenalty": 0.2,
                "stopSequences": ["a", "b"],
                "seed": -3,
                "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": true},
            },
            "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
            "serviceTier": "flex",
        })
    );
}

#[tokio::test]
async fn schemas_are_converted_for_old_models() {
    let mut request = ChatRequest::user("hi");
    let schema = json!({"type": "object", "properties": {"q": {"type": ["string", "null"]}}});
    for (name, schema) in [
        ("search", schema.clone()),
        ("now", json!({"type": "object"})),
    ] {
        request
            .tools
            .push(Arc::new(ToolSpec::new(name, "", schema)));
    }
    let (_, body) = sent(old(), request).await;
    let adapted =
        json!({"type": "object", "properties": {"q": {"type": "string", "nullable": true}}});
    assert_eq!(
        body["tools"],
        json!([{"functionDeclarations": [{"name": "search", "parameters": adapted}, {"name": "now"}]}])
    );
    let mut request = ChatRequest::user("hi");
    request.options_mut().output_schema = Some(OutputSchema::new("out", schema));
    let (_, body) = sent(old(), request).await;
    assert_eq!(body["generationConfig"]["responseSchema"], adapted);
}

#[tokio::test]
async fn every_tool_choice_and_effort_is_encoded() {
    let choices = [
        (ToolChoice::Auto, "AUTO"),
        (ToolChoice::None, "NONE"),
        (ToolChoice::Required, "ANY"),
    ];
    for (choice, mode) in choices {
        let mut request = ChatRequest::user("hi");
        let can_be_alone = choice != ToolChoice::Required;
        request.options_mut().tool_choice = Some(choice);
        if can_be_alone {
            let (_, body) = sent(layer(), request.clone()).await;
            assert_eq!(body.get("toolConfig"), None);
        }
        request
            .tools
            .push(Arc::new(ToolSpec::new("t", "", json!({}))));
        let (_, body) = sent(layer(), request).await;
        assert_eq!(
            body["toolConfig"],
            json!({"functionCallingConfig": {"mode": mode}})
        );
    }
    let efforts = [
        (
            "gemini-3-pro",
            "high",
            json!({"thinkingLevel": "HIGH", "includeThoughts": true}),
        ),
        (
            "gemini-4-argon",
            "2048",
            json!({"thinkingBudget": 2048, "includeThoughts": true}),
        ),
        ("gemini-2.5-flash", "none", json!({"thinkingBudget": 0})),
        (
            "gemini-2.5-flash",
            "medium",
            json!({"thinkingBudget": 8192, "includeThoughts": true}),
        ),
        (
            "gemini-2.5-flash",
            "-1",
            json!({"thinkingBudget": -1, "includeThoughts": true}),
        ),
    ];
    for (model, effort, thinking) in efforts {
        let mut request = ChatRequest::user("hi");
        request.options_mut().model = Some(model.into());
        request.options_mut().reasoning_effort = Some(effort.into());
        let (_, body) = sent(layer(), request).await;
        assert_eq!(
            body["generationConfig"]["thinkingConfig"], thinking,
            "{model} {effort}"
        );
    }
}

#[tokio::test]
async fn media_are_encoded() {
    let base64 = |kind: &str| Media::new(MediaSource::Base64("QUJD".into())).with_media_type(kind);
    let url = |url: &str| Media::new(MediaSource::Url(url.into()));
    let parts = vec![
        Part::text("see"),
        Part::text(""),
        part(PartKind::Image(base64("image/jpeg"))),
        part(PartKind::Image(Media::new(MediaSource::Base64(
            "QUJD".into(),
        )))),
        part(PartKind::Image(url("https://a.test/x.png"))),
        part(PartKind::Image(url("data:image/webp;base64,QUJD"))),
        part(PartKind::Audio(base64("audio/mpeg"))),
        part(PartKind::File(
            url("gs://bucket/a.pdf").with_media_type("application/pdf"),
        )),
        part(PartKind::File(Media::new(MediaSource::Id(
            "files/abc".into(),
        )))),
        part(PartKind::Provider(ProviderData::new(
            "gcp.gemini",
            json!({"part": {"fileData": {"fileUri": "https://youtu.be/x"}, "videoMetadata": {"fps": 1}}}),
        ))),
        part(PartKind::Provider(ProviderData::new(
            "openai",
            json!({"part": {"text": "no"}}),
        ))),
    ];
    let mut request = ChatRequest::user("hi");
    request
        .transcript
        .push(Turn::message(Message::new(Role::User, parts)).unwrap());
    let (_, body) = sent(layer(), request).await;
    assert_eq!(
        body["contents"],
        json!([{"role": "user", "parts": [
            {"text": "hi"},
            {"text": "see"},
            {"inlineData": {"mimeType": "image/jpeg", "data": "QUJD"}},
            {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
            {"fileData": {"fileUri": "https://a.test/x.png"}},
            {"inlineData": {"mimeType": "image/webp", "data": "QUJD"}},
            {"inlineData": {"mimeType": "audio/mpeg", "data": "QUJD"}},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://bucket/a.pdf"}},
            {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}},
            {"fileData": {"fileUri": "https://youtu.be/x"}, "videoMetadata": {"fps": 1}},
        ]}])
    );
}

#[tokio::test]
async fn a_round_is_sent_in_the_services_format() {
    let image = Media::new(MediaSource::Base64("QUJD".into())).with_media_type("image/png");
    let message = Message::new(
        Role::Assistant,
        vec![
            part(PartKind::Reasoning("not signed".into())),
            part(PartKind::Reasoning("hm".into())).with_provider_data(signed("s0")),
            Part::text("Let me see."),
            Part::text("").with_provider_data(signed("s1")),
            part(tool_call("c1", Some("x1")))
                .by(by("gcp.gemini"))
                .with_provider_data(signed("s2")),
            part(tool_call("c2", None)).by(by("gcp.gemini")),
        ],
    );
    let round = Round::new(
        message,
        vec![
            result("c2", ToolOutcome::denied("No.")),
            result(
                "c1",
                ToolOutcome::done(vec![Part::text("{\"n\": 1}"), part(PartKind::Image(image))]),
            ),
        ],
    )
    .unwrap();
    let mut request = ChatRequest::user("hi");
    request.transcript.push(round);
    request.transcript.push_user("And?");
    let (_, body) = sent(layer(), request.clone()).await;
    let args = json!({"a": 2, "b": 1});
    let model = json!({"role": "model", "parts": [
        {"text": "hm", "thought": true, "thoughtSignature": "s0"},
        {"text": "Let me see."},
        {"text": "", "thoughtSignature": "s1"},
        {"functionCall": {"name": "t", "args": args, "id": "x1"}, "thoughtSignature": "s2"},
        {"functionCall": {"name": "t", "args": args}},
    ]});
    assert_eq!(
        body["contents"],
        json!([
            {"role": "user", "parts": [{"text": "hi"}]},
            model,
            {"role": "user", "parts": [
                {"functionResponse": {"name": "t", "response": {"output": {"n": 1}}, "id": "x1",
                    "parts": [{"inlineData": {"mimeType": "image/png", "data": "QUJD"}}]}},
                {"functionResponse": {"name": "t", "response": {"error": "No."}}},
                {"text": "And?"},
            ]},
        ])
    );
    // Older models do not accept media in a function response.
    let (_, body) = sent(old(), request).await;
    assert_eq!(body["contents"][1], model);
    assert_eq!(
        body["contents"][2]["parts"],
        json!([
            {"functionResponse": {"name": "t", "response": {"output": {"n": 1}}, "id": "x1"}},
            {"functionResponse": {"name": "t", "response": {"error": "No."}}},
            {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
            {"text": "And?"},
        ])
    );
}

#[tokio::test]
async fn another_providers_history_is_converted() {
    let foreign = Arc::new(ProviderData::new(
        "anthropic",
        json!({"fields": {"thoughtSignature": "no"}}),
    ));
    let server =
        ToolCallPart::new(CallId::new("s"), "web_search", "{}").executed_by(Executor::Provider);
    let message = Message::new(
        Role::Assistant,
        vec![
            part(PartKind::Reasoning("hm".into())).with_provider_data(Some(foreign.clone())),
            part(PartKind::ToolCall(server)),
            part(PartKind::ToolCall(ToolCallPart::new(
                CallId::new("c1"),
                "5 odd/name",
                "{\"a\":",
            )))
            .by(by("anthropic"))
            .with_provider_data(Some(foreign)),
            part(tool_call("c2", Some("toolu_2"))).by(by("anthropic")),
        ],
    );
    let round = Round::new(
        message,
        vec![
            result("c1", ToolOutcome::done("[not json")),
            result("c2", ToolOutcome::done("plain")),
        ],
    )
    .unwrap();
    let mut request = ChatRequest::user("hi");
    request.transcript.push(round);
    let (_, body) = sent(layer(), request.clone()).await;
    let model = |unsigned: Value| {
        let mut first = json!({"functionCall": {"name": "_5_odd_name", "args": {}}});
        first
            .as_object_mut()
            .unwrap()
            .extend(unsigned.as_object().unwrap().clone());
        json!({"role": "model", "parts": [
            first,
            {"functionCall": {"name": "t", "args": {"b": 1, "a": 2}}},
        ]})
    };
    let dummy = json!({"thoughtSignature": "skip_thought_signature_validator"});
    assert_eq!(body["contents"][1], model(dummy));
    assert_eq!(
        body["contents"][2]["parts"],
        json!([
            {"functionResponse": {"name": "_5_odd_name", "response": {"output": "[not json"}}},
            {"functionResponse": {"name": "t", "response": {"output": "plain"}}},
        ])
    );
    let (_, body) = sent(old(), request).await;
    assert_eq!(body["contents"][1], model(json!({})));
}

#[tokio::test]
async fn vertex_and_gemini_do_not_share_signatures() {
    let message = Message::new(
        Role::Assistant,
        vec![
            Part::text("Hi.")
                .by(by("gcp.gemini"))
                .with_provider_data(signed("s")),
        ],
    );
    let mut request = ChatRequest::user("hi");
    request.transcript.push(Turn::message(message).unwrap());
    request.transcript.push_user("And?");
    let vertex = GeminiLayer::vertex("p", "global", "gemini-3-pro", ApiKey::new("t"));
    let (_, body) = sent(vertex, request).await;
    assert_eq!(
        body["contents"][1],
        json!({"role": "model", "parts": [{"text": "Hi."}]})
    );
}

#[tokio::test]
async fn server_tool_parts_are_sent_back_unchanged() {
    let whole = |kind: PartKind, part: Value| {
        Part::new(kind).with_provider_data(own(json!({"part": part})))
    };
    let call =
        ToolCallPart::new(CallId::new("s"), "code_execution", "{}").executed_by(Executor::Provider);
    let code =
        json!({"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s"});
    let output = json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}});
    let agent = ToolCallPart::new(CallId::new("a"), "t", "{}").executed_by(Executor::Agent);
    let message = Message::new(
        Role::Assistant,
        vec![
            whole(PartKind::ToolCall(call), code.clone()),
            whole(
                PartKind::ToolResult(result("s", ToolOutcome::done("1"))),
                output.clone(),
            ),
            part(PartKind::ToolCall(agent)),
            part(PartKind::ToolResult(result("a", ToolOutcome::done("ok")))),
            Part::text("Done."),
            part(PartKind::Provider(ProviderData::new(
                "gcp.gemini",
                json!({"metadata": {}}),
            ))),
        ],
    );
    let mut request = ChatRequest::user("hi");
    request.transcript.push(Turn::message(message).unwrap());
    let (_, body) = sent(old(), request).await;
    assert_eq!(
        body["contents"],
        json!([
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [code, output, {"functionCall": {"name": "t", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "t", "response": {"output": "ok"}}}]},
            {"role": "model", "parts": [{"text": "Done."}]},
        ])
    );
}

#[tokio::test]
async fn model_parts_are_sent_back_unchanged() {
    let said = json!([
        {"text": "hm", "thought": true, "thoughtSignature": "s0"},
        {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {}, "id": "q"}, "thoughtSignature": "s1"},
        {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "response": {"a": 1}, "id": "q"}},
        {"text": "Let me see."},
        {"text": "", "thoughtSignature": "s2"},
        {"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thought": true, "thoughtSignature": "s3"},
        {"fileData": {"mimeType": "audio/mpeg", "fileUri": "https://a.test/x.mp3"}, "videoMetadata": {"fps": 1}},
        {"somethingNew": [1], "thoughtSignature": "s4"},
        {"functionCall": {"name": "t", "args": {"b": 1, "a": "x y"}, "id": "c"}, "thoughtSignature": "s5"},
        {"functionCall": {"name": "t", "args": {}}},
    ]);
    let each: String = said
        .as_array()
        .unwrap()
        .iter()
        .map(|part| crate::common::gemini::parts(&part.to_string()))
        .collect();
    let all = json!({"candidates": [{"content": {"parts": said}, "finishReason": "STOP"}]});
    for body in [
        each + &crate::common::gemini::finish("STOP"),
        all.to_string(),
    ] {
        let response = http::Response::new(Script::new([body], End::Clean));
        let answer = crate::common::call(&layer(), response).await.unwrap();
        let message = answer.collect().await.unwrap().message;
        let results = message
            .tool_calls()
            .filter(|call| call.executor == Executor::Loop)
            .map(|call| result(call.id.as_str(), ToolOutcome::done("ok")))
            .collect();
        let mut request = ChatRequest::user("hi");
        request
            .transcript
            .push(Round::new(message, results).unwrap());
        let (_, body) = sent(layer(), request).await;
        assert_eq!(body["contents"][1], json!({"role": "model", "parts": said}));
        assert_eq!(
            body["contents"][2]["parts"],
            json!([
                {"functionResponse": {"name": "t", "response": {"output": "ok"}, "id": "c"}},
                {"functionResponse": {"name": "t", "response": {"output": "ok"}}},
            ])
        );
    }
}

#[tokio::test]
async fn unsupported_features_are_rejected_before_sending() {
    let refused = |layer: GeminiLayer, change: &dyn Fn(&mut ChatRequest)| {
        let mut request = ChatRequest::user("hi");
        change(&mut request);
        let all = layer.check(&request);
        all.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let tool = |name: &str, schema: Value| Arc::new(ToolSpec::new(name, "", schema));
    type Change<'a> = &'a dyn Fn(&mut ChatRequest);
    let cases: [(GeminiLayer, Change<'_>, &str); 13] = [
        (layer(), &|_| {}, ""),
        (
            layer(),
            &|r| r.tools.push(tool("a b", json!({}))),
            "a tool named `a b`",
        ),
        (
            old(),
            &|r| r.tools.push(tool("t", json!({"$ref": "#"}))),
            "the input schema of tool `t`",
        ),
        (
            layer(),
            &|r| r.tools.push(tool("t", json!({"$ref": "#"}))),
            "",
        ),
        (
            layer(),
            &|r| r.options_mut().seed = Some(1 << 40),
            "a seed of more than 32 bits",
        ),
        (
            layer(),
            &|r| r.options_mut().reasoning_effort = Some("none".into()),
            "the reasoning effort `none`",
        ),
        (
            old(),
            &|r| r.options_mut().reasoning_effort = Some("low".into()),
            "a reasoning effort",
        ),
        (
            layer(),
            &|r| r.options_mut().stop = vec!["x".into(); 6],
            "that many stop sequences",
        ),
        (
            layer(),
            &|r| {
                r.tools.push(tool("t", json!({})));
                r.options_mut().parallel_tool_calls = Some(false);
            },
            "`parallel_tool_calls`",
        ),
        (
            GeminiLayer::new("gemini-2.5-pro", ApiKey::new("k")),
            &|r| {
                r.tools.push(tool("t", json!({})));
                r.options_mut().output_schema = Some(OutputSchema::new("o", json!({})));
            },
            "an output schema together with tools",
        ),
        (
            layer(),
            &|r| {
                r.transcript
                    .push(Turn::message(Message::assistant("So")).unwrap())
            },
            "a prefilled assistant message",
        ),
        (
            old(),
            &|r| {
                r.transcript
                    .push(Turn::message(Message::assistant("So")).unwrap())
            },
            "",
        ),
        (
            layer(),
            &|r| *r = ChatRequest::user(""),
            "a conversation without content",
        ),
    ];
    for (layer, change, what) in cases {
        let found = refused(layer, change);
        assert!(
            found.starts_with(what) && found.is_empty() == what.is_empty(),
            "{found}"
        );
    }
    for model in ["", "../secret", "a?b", "a#b", "a b"] {
        let mut request = ChatRequest::user("hi");
        request.options_mut().model = Some(model.into());
        assert_eq!(layer().check(&request).len(), 1, "{model}");
        let error = try_sent_by(&layer(), request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{model}");
    }
}
