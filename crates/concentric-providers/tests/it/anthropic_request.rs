//! Requests to Anthropic's Messages API.

use crate::anthropic::*;
use crate::common::*;
use concentric_core::{
    ChatRequest, ErrorKind, Media, MediaSource, Message, OutputSchema, Part, PartKind,
    ProviderData, Stability, SystemSegment, ToolChoice, Turn,
};
use concentric_providers::{AnthropicLayer, ApiKey, anthropic::PromptCache};
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn a_minimal_request_is_encoded() {
    let (parts, body) = sent_by(&of("claude-opus-4-8"), ChatRequest::user("hi")).await;
    assert_eq!(parts.method, http::Method::POST);
    assert_eq!(parts.uri, "https://api.anthropic.com/v1/messages");
    assert_eq!(parts.headers["content-type"], "application/json");
    assert_eq!(parts.headers["anthropic-version"], "2023-06-01");
    assert_eq!(parts.headers["x-api-key"], CANARY);
    assert!(parts.headers["x-api-key"].is_sensitive());
    assert_eq!(
        body,
        json!({
            "model": "claude-opus-4-8",
            "max_tokens": 32000,
            "stream": true,
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
            ]}],
        })
    );
}

#[tokio::test]
async fn every_option_is_encoded() {
    let mut request = ChatRequest::user("hi").with_system("One.");
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    request.tools.push(tool("search", schema.clone()));
    let options = request.options_mut();
    options.model = Some("claude-sonnet-4-6".into());
    options.tool_choice = Some(ToolChoice::Tool("search".into()));
    options.parallel_tool_calls = Some(false);
    options.output_schema = Some(OutputSchema::new("out", schema.clone()));
    options.max_output_tokens = Some(9);
    options.temperature = Some(0.5);
    options.stop = vec!["a".into(), "b".into()];
    options.metadata.insert("user_id".into(), json!("u"));
    options.metadata.insert("other".into(), json!("x"));
    options
        .provider
        .insert("service_tier".into(), json!("auto"));
    options.provider.insert("temperature".into(), json!(1));
    let layer = plain()
        .streaming(false)
        .betas(["a-1", "b-2"])
        .server_tool(json!({"type": "web_search_20250305", "name": "web_search"}));
    let (parts, body) = sent_by(&layer, request).await;
    assert_eq!(parts.headers["anthropic-beta"], "a-1,b-2");
    assert_eq!(
        body,
        json!({
            "model": "claude-sonnet-4-6",
            "max_tokens": 9,
            "stream": false,
            "system": [{"type": "text", "text": "One."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "tools": [
                {"type": "web_search_20250305", "name": "web_search"},
                {"name": "search", "description": "Finds.", "input_schema": schema},
            ],
            "tool_choice": {"type": "tool", "name": "search", "disable_parallel_tool_use": true},
            "output_config": {"format": {"type": "json_schema", "schema": {
                "type": "object",
                "properties": {"q": {"type": "string"}},
                "additionalProperties": false,
            }}},
            "stop_sequences": ["a", "b"],
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "temperature": 1,
        })
    );
}

#[tokio::test]
async fn every_tool_choice_is_encoded() {
    for (choice, parallel, expected) in [
        (None, None, json!(null)),
        (
            None,
            Some(true),
            json!({"type": "auto", "disable_parallel_tool_use": false}),
        ),
        (Some(ToolChoice::Auto), None, json!({"type": "auto"})),
        (
            Some(ToolChoice::Required),
            Some(false),
            json!({"type": "any", "disable_parallel_tool_use": true}),
        ),
        (Some(ToolChoice::None), Some(false), json!({"type": "none"})),
    ] {
        let mut request = ChatRequest::user("hi");
        request.tools.push(tool("search", json!({})));
        request.options_mut().tool_choice = choice;
        request.options_mut().parallel_tool_calls = parallel;
        let body = sent(&plain(), request).await;
        assert_eq!(body["tool_choice"], expected);
        assert_eq!(body["tools"][0]["input_schema"], json!({"type": "object"}));
    }
    // A tool that the service defines and the client executes keeps the service's definition.
    let mut request = ChatRequest::user("hi");
    request.tools.push(tool("bash", json!({})));
    let bash = json!({"type": "bash_20250124", "name": "bash"});
    let body = sent(&plain().server_tool(bash.clone()), request).await;
    assert_eq!(body["tools"], json!([bash]));
}

#[tokio::test]
async fn every_reasoning_effort_is_encoded() {
    let asked = async |model: &str, effort: &str, max: Option<u32>| {
        let mut request = ChatRequest::user("hi");
        request.options_mut().reasoning_effort = Some(effort.into());
        request.options_mut().max_output_tokens = max;
        let layer = of(model);
        match unsupported(&layer, &request) {
            refused if refused.is_empty() => {
                let body = sent(&layer, request).await;
                Ok(json!([
                    body["thinking"],
                    body["output_config"],
                    body["max_tokens"]
                ]))
            }
            refused => Err(refused.join(", ")),
        }
    };
    let adaptive = json!({"type": "adaptive"});
    let budget = |tokens: u32| json!({"type": "enabled", "budget_tokens": tokens});
    for (model, effort, max, expected) in [
        (
            "claude-opus-4-8",
            "xhigh",
            None,
            json!([adaptive, {"effort": "xhigh"}, 32000]),
        ),
        (
            "my-deployment",
            "low",
            None,
            json!([adaptive, {"effort": "low"}, 8192]),
        ),
        (
            "claude-haiku-4-5",
            "high",
            None,
            json!([budget(16384), null, 32000]),
        ),
        (
            "claude-haiku-4-5",
            "high",
            Some(2000),
            json!([budget(1999), null, 2000]),
        ),
        (
            "claude-sonnet-4-6",
            "5000",
            None,
            json!([budget(5000), null, 32000]),
        ),
        (
            "claude-sonnet-4-5",
            "40000",
            None,
            json!([budget(40000), null, 48192]),
        ),
        ("claude-opus-4-8", "none", None, json!([null, null, 32000])),
        (
            "claude-sonnet-5",
            "none",
            None,
            json!([{"type": "disabled"}, null, 32000]),
        ),
    ] {
        assert_eq!(
            asked(model, effort, max).await,
            Ok(expected),
            "{model} {effort}"
        );
    }
    for (model, effort, max) in [
        ("claude-fable-5", "none", None),
        ("claude-opus-4-7", "5000", None),
        ("claude-3-5-haiku-latest", "low", None),
        ("claude-haiku-4-5", "strange", None),
        ("claude-haiku-4-5", "low", Some(1024)),
        ("claude-haiku-4-5", "1000", None),
        ("claude-haiku-4-5", "5000", Some(5000)),
    ] {
        assert!(asked(model, effort, max).await.is_err(), "{model} {effort}");
    }
    let mut request = ChatRequest::user("hi");
    request.options_mut().reasoning_effort = Some("low".into());
    let thinking = json!({"type": "adaptive", "display": "summarized"});
    request
        .options_mut()
        .provider
        .insert("thinking".into(), thinking.clone());
    let body = sent(&plain(), request).await;
    assert_eq!(body["thinking"], thinking);
    assert_eq!(body["output_config"], json!({"effort": "low"}));
}

#[tokio::test]
async fn a_forced_call_is_allowed_with_adaptive_thinking() {
    for (model, effort, taken) in [
        ("claude-opus-4-8", "high", true),
        ("claude-opus-4-6", "high", true),
        ("claude-opus-4-6", "5000", false),
        ("claude-haiku-4-5", "high", false),
    ] {
        for choice in [ToolChoice::Required, ToolChoice::Tool("search".into())] {
            let mut request = ChatRequest::user("hi");
            request.tools.push(tool("search", json!({})));
            let options = request.options_mut();
            options.tool_choice = Some(choice);
            options.reasoning_effort = Some(effort.into());
            let expected: &[&str] = match taken {
                true => &[],
                false => &["a forced tool call together with a reasoning effort"],
            };
            let layer = of(model);
            assert_eq!(unsupported(&layer, &request), expected, "{model} {effort}");
            if taken {
                let body = sent(&layer, request).await;
                assert_eq!(body["thinking"], json!({"type": "adaptive"}));
                assert!(matches!(
                    body["tool_choice"]["type"].as_str(),
                    Some("any" | "tool")
                ));
            }
        }
    }
}

#[tokio::test]
async fn unsupported_features_are_rejected_before_sending() {
    let asks = |change: &dyn Fn(&mut ChatRequest)| {
        let mut request = ChatRequest::user("hi");
        change(&mut request);
        request
    };
    let requests = [
        asks(&|r| r.options_mut().seed = Some(1)),
        asks(&|r| r.options_mut().presence_penalty = Some(0.1)),
        asks(&|r| r.options_mut().temperature = Some(0.1)),
        asks(&|r| r.options_mut().stop = vec![" \n".into()]),
        asks(&|r| r.tools.push(tool("a b", json!({})))),
        asks(&|r| r.tools.push(tool("a", json!({"anyOf": []})))),
        asks(&|r| {
            let output = OutputSchema::new("out", json!({"type": "object"}));
            r.options_mut().output_schema = Some(output);
        }),
        asks(&|r| {
            r.tools.push(tool("a", json!({})));
            r.options_mut().model = Some("claude-haiku-4-5".into());
            r.options_mut().tool_choice = Some(ToolChoice::Required);
            r.options_mut().reasoning_effort = Some("low".into());
        }),
        asks(&|r| {
            r.transcript
                .push(Turn::message(Message::assistant("Sure")).unwrap())
        }),
        ChatRequest::user("  "),
        user(vec![Part::new(PartKind::Audio(Media::new(
            MediaSource::Base64("QUJD".into()),
        )))]),
        user(vec![Part::new(PartKind::Image(
            Media::new(MediaSource::Base64("QUJD".into())).with_media_type("image/tiff"),
        ))]),
        user(vec![Part::new(PartKind::File(
            Media::new(MediaSource::Base64("QUJD".into())).with_media_type("application/zip"),
        ))]),
    ];
    for request in requests {
        let refused = unsupported(&plain(), &request);
        assert_eq!(refused.len(), 1, "{refused:?} {request:?}");
        let script = http::Response::new(Script::new([""], End::Clean));
        let model = tower::Layer::layer(&plain(), Http::new(script));
        let Err(error) = tower::ServiceExt::oneshot(model, request).await else {
            panic!("{refused:?}")
        };
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!(error.code(), Some("unsupported"));
    }
    // Older models support sampling and prefill.
    let mut request = ChatRequest::user("hi");
    request
        .transcript
        .push(Turn::message(Message::assistant("Sure: ")).unwrap());
    request.options_mut().temperature = Some(0.1);
    let body = sent(&of("claude-haiku-4-5"), request.clone()).await;
    assert_eq!(
        body["messages"][1]["content"],
        json!([{"type": "text", "text": "Sure:"}])
    );
    request.options_mut().top_p = Some(0.1);
    assert_eq!(unsupported(&of("claude-haiku-4-5"), &request).len(), 1);
}

#[tokio::test]
async fn stable_prompt_prefixes_get_cache_breakpoints() {
    let places = |body: &Value| {
        let marks = |list: &Value| -> Vec<usize> {
            let list = list.as_array().into_iter().flatten().enumerate();
            list.filter(|(_, block)| block.get("cache_control").is_some())
                .map(|(at, _)| at)
                .collect()
        };
        let tail = body["messages"].as_array().unwrap().last().unwrap();
        (
            marks(&body["tools"]),
            marks(&body["system"]),
            marks(&tail["content"]),
        )
    };
    use Stability::{Fixed, Run, Step, Thread};
    for (segments, expected) in [
        (&[][..], (vec![0], vec![], vec![0])),
        (&[Fixed, Fixed], (vec![], vec![1], vec![0])),
        (&[Fixed, Thread, Run], (vec![], vec![0, 1, 2], vec![0])),
        (&[Thread, Fixed], (vec![0], vec![1], vec![0])),
        (&[Fixed, Step, Fixed], (vec![], vec![0], vec![])),
        (&[Step], (vec![0], vec![], vec![])),
    ] {
        let mut request = ChatRequest::user("hi");
        request.tools.push(tool("search", json!({})));
        for stability in segments {
            let segment = SystemSegment::new("x").stable_for(*stability);
            request.system.push(segment);
        }
        let body = sent(&of("claude-opus-4-8"), request.clone()).await;
        assert_eq!(places(&body), expected, "{segments:?}");
        let body = sent(&plain(), request).await;
        assert_eq!(places(&body), (vec![], vec![], vec![]));
    }
    let layer = of("claude-opus-4-8").prompt_cache(PromptCache::OneHour);
    let body = sent(&layer, ChatRequest::user("hi")).await;
    let control = &body["messages"][0]["content"][0]["cache_control"];
    assert_eq!(*control, json!({"type": "ephemeral", "ttl": "1h"}));
}

#[tokio::test]
async fn media_are_encoded() {
    let base64 = |kind: &str| Media::new(MediaSource::Base64("QUJD".into())).with_media_type(kind);
    let url = |url: &str| Media::new(MediaSource::Url(url.into()));
    let id = || Media::new(MediaSource::Id("file_1".into()));
    let cited = Arc::new(ProviderData::new(
        "anthropic",
        json!({"citations": {"enabled": true}}),
    ));
    let request = user(vec![
        Part::new(PartKind::Image(base64("image/jpg"))),
        Part::new(PartKind::Image(url("https://a.test/x.png"))),
        Part::new(PartKind::Image(url("data:image/webp;base64,QUJD"))),
        Part::new(PartKind::Image(id())),
        Part::new(PartKind::File(base64("application/pdf").with_name("a.pdf")))
            .with_provider_data(Some(cited)),
        Part::new(PartKind::File(base64("text/csv; charset=utf-8"))),
        Part::new(PartKind::File(url("https://a.test/x.pdf"))),
        Part::new(PartKind::File(id())),
        Part::new(PartKind::File(base64("image/png"))),
        opaque(json!({"type": "container_upload", "file_id": "file_2"})),
    ]);
    let body = sent(&plain(), request).await;
    // Consecutive user turns are merged.
    assert_eq!(
        body["messages"],
        json!([{"role": "user", "content": [
            {"type": "text", "text": "hi"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "QUJD"}},
            {"type": "image", "source": {"type": "url", "url": "https://a.test/x.png"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "QUJD"}},
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"},
                "title": "a.pdf", "citations": {"enabled": true}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "ABC"}},
            {"type": "document", "source": {"type": "url", "url": "https://a.test/x.pdf"}},
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
            {"type": "container_upload", "file_id": "file_2"},
        ]}])
    );
}

#[tokio::test]
async fn compatible_services_are_recognized() {
    let azure = "https://x.services.ai.azure.com/anthropic";
    let azure = AnthropicLayer::compatible(azure, "claude-opus-4-8", Some(ApiKey::new("k")));
    let (parts, _) = sent_by(&azure, ChatRequest::user("hi")).await;
    assert_eq!(
        parts.uri,
        "https://x.services.ai.azure.com/anthropic/v1/messages"
    );
    assert_eq!(parts.headers["x-api-key"], "k");
    let router = AnthropicLayer::compatible("https://openrouter.ai/api", "m", None)
        .header("authorization", "Bearer k")
        .max_tokens(100);
    // Reasoning that another service has signed is omitted.
    let mut request = ChatRequest::user("hi");
    let thought = own(
        PartKind::Reasoning("Hmm.".into()),
        Some(json!({"signature": "sig"})),
    );
    request
        .transcript
        .push(assistant(vec![thought, Part::text("a")]));
    request.transcript.push_user("ho");
    let (parts, body) = sent_by(&router, request).await;
    assert_eq!(parts.headers["authorization"], "Bearer k");
    assert!(!parts.headers.contains_key("x-api-key"));
    assert_eq!(body["max_tokens"], 100);
    assert_eq!(
        body["messages"][1]["content"],
        json!([{"type": "text", "text": "a"}])
    );
}
