//! The known chat completions services and their differences.

use crate::common::*;
use crate::openai::*;
use concentric_core::{
    CallId, ChatRequest, ErrorKind, Event, Media, MediaSource, Message, Part, PartKind, Role,
    Round, ToolCallPart, ToolChoice, ToolOutcome, ToolResult, ToolSpec, Turn, Usage,
};
use concentric_providers::{ApiKey, OpenAiLayer, openai::Profile};
use serde_json::json;
use std::{collections::HashSet, sync::Arc};

#[test]
fn a_profile_is_found_by_name_and_url() {
    let mut names = HashSet::new();
    for profile in Profile::ALL {
        assert!(
            names.insert(profile.name),
            "{} is there twice",
            profile.name
        );
        assert_eq!(Profile::by_name(profile.name), Some(*profile));
        if !profile.hosts.is_empty() && !profile.base_url.is_empty() {
            assert_eq!(Profile::by_url(profile.base_url), Some(*profile));
        }
        assert!(!profile.key_env.is_empty());
    }
    let cases = [
        ("https://api.deepseek.com/beta", Some("deepseek-beta")),
        ("https://api.deepseek.com/v1", Some("deepseek")),
        ("https://x.openai.azure.com/openai/v1", Some("azure")),
        ("https://api.moonshot.cn/v1", Some("moonshot")),
        ("https://notapi.groq.com.test/v1", None),
        ("https://xapi.groq.com/v1", None),
        ("http://localhost:11434/v1", Some("ollama")),
        ("http://localhost:8080/v1", None),
        ("no url", None),
    ];
    for (url, name) in cases {
        assert_eq!(Profile::by_url(url).map(|p| p.name), name, "{url}");
    }
    assert_eq!(Profile::by_name("nobody"), None);
}

#[tokio::test]
async fn every_profile_calls_its_own_url() {
    for profile in Profile::ALL {
        let layer = OpenAiLayer::profile(*profile, "m", Some(ApiKey::new("k")));
        let sent = try_sent_by(&layer, ChatRequest::user("hi")).await;
        if profile.base_url.is_empty() {
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::Configuration);
            continue;
        }
        let (parts, body) = sent.unwrap();
        let expected = format!("{}/chat/completions", profile.base_url);
        assert_eq!(parts.uri, expected.as_str());
        assert_eq!(parts.headers["authorization"], "Bearer k");
        assert_eq!(body["messages"], json!([{"role": "user", "content": "hi"}]));
        assert_eq!(body.get("stream_options").is_some(), profile.stream_options);
    }
}

#[tokio::test]
async fn a_generic_profile_can_be_customized() {
    let mut mine = Profile::generic("mine");
    mine.instructions = "developer";
    mine.max_tokens = "most";
    let layer = OpenAiLayer::profile(mine, "m", None).base_url("http://gpu.test:9000/v1");
    let mut request = ChatRequest::user("hi").with_system("Be brief.");
    request.options_mut().max_output_tokens = Some(5);
    let (parts, body) = try_sent_by(&layer, request).await.unwrap();
    assert_eq!(parts.uri, "http://gpu.test:9000/v1/chat/completions");
    assert_eq!(body["messages"][0]["role"], "developer");
    assert_eq!(body["most"], 5);
}

#[test]
fn the_key_is_read_from_the_environment() {
    let mut profile = Profile::generic("mine");
    profile.base_url = "http://a.test";
    profile.key_env = &["CONCENTRIC_NO_SUCH_VARIABLE", "CONCENTRIC_NOR_THIS"];
    OpenAiLayer::from_env(profile, "m").unwrap();
    profile.key_optional = false;
    let error = OpenAiLayer::from_env(profile, "m").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(
        error.message().contains("CONCENTRIC_NO_SUCH_VARIABLE"),
        "{error}"
    );
    // Set by cargo to a value that is not a secret.
    profile.key_env = &["CONCENTRIC_NO_SUCH_VARIABLE", "CARGO_PKG_NAME"];
    OpenAiLayer::from_env(profile, "m").unwrap();
}

#[tokio::test]
async fn mistral_gets_short_ids_and_an_assistant_message() {
    let messages = messages(Profile::MISTRAL, round()).await;
    let id = messages[1]["tool_calls"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()),
        "{id}"
    );
    let function = json!({"name": "t", "arguments": "{}"});
    let calls = json!([{"id": id, "type": "function", "function": function}]);
    let expected = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": calls},
        {"role": "tool", "tool_call_id": id, "content": "ok"},
        {"role": "assistant", "content": "OK"},
        {"role": "user", "content": "and?"},
    ]);
    assert_eq!(messages, expected);
}

#[tokio::test]
async fn mistral_uses_its_own_fields() {
    let file = |source| Part::new(PartKind::File(Media::new(source).with_name("a.pdf")));
    let parts = vec![
        file(MediaSource::Url("https://a.test/a.pdf".into())),
        file(MediaSource::Id("f1".into())),
    ];
    let mut request = ChatRequest::user("hi");
    let message = Message::new(Role::User, parts);
    request.transcript.push(Turn::message(message).unwrap());
    let spec = ToolSpec::new("t", "", json!({"type": "object"}));
    request.tools.push(Arc::new(spec));
    request.options_mut().tool_choice = Some(ToolChoice::Required);
    let (_, body) = try_sent_by(&of(Profile::MISTRAL), request).await.unwrap();
    assert_eq!(body["tool_choice"], "any");
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            {"type": "document_url", "document_url": "https://a.test/a.pdf", "document_name": "a.pdf"},
            {"type": "file", "file_id": "f1"},
        ])
    );
}

#[tokio::test]
async fn a_final_assistant_message_is_a_prefill() {
    let mut request = ChatRequest::user("hi");
    request.transcript.push(assistant("Well,"));
    let cases = [
        (
            Profile::MISTRAL,
            json!({"role": "assistant", "content": "Well,", "prefix": true}),
        ),
        (
            Profile::DEEPSEEK_BETA,
            json!({"role": "assistant", "content": "Well,", "prefix": true}),
        ),
        (
            Profile::MOONSHOT,
            json!({"role": "assistant", "content": "Well,", "partial": true}),
        ),
        (
            Profile::GROQ,
            json!({"role": "assistant", "content": "Well,"}),
        ),
    ];
    for (profile, last) in cases {
        assert_eq!(
            messages(profile, request.clone()).await[1],
            last,
            "{}",
            profile.name
        );
    }
    let (_, body) = try_sent_by(&of(Profile::VLLM), request.clone())
        .await
        .unwrap();
    assert_eq!(body["continue_final_message"], true);
    assert_eq!(body["add_generation_prompt"], false);
    let error = try_sent_by(&of(Profile::PERPLEXITY), request)
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some("unsupported"));

    // A message with results is not a prefill.
    let (_, body) = try_sent_by(&of(Profile::VLLM), round()).await.unwrap();
    assert!(body.get("continue_final_message").is_none());
}

#[tokio::test]
async fn roles_alternate_where_required() {
    let mut request = ChatRequest::user("one").with_system("Be brief.");
    request.transcript.push_user("two");
    request.transcript.push(assistant("three"));
    request.transcript.push(assistant("four"));
    let system = Message::new(Role::System, vec![Part::text("five")]);
    request.transcript.push(Turn::message(system).unwrap());
    request.transcript.push_user("six");
    let parts = |texts: [&str; 2]| texts.map(|text| json!({"type": "text", "text": text}));
    for profile in [Profile::PERPLEXITY, Profile::LLAMA_CPP, Profile::LM_STUDIO] {
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": parts(["one", "two"])},
            {"role": "assistant", "content": "three\n\nfour"},
            {"role": "user", "content": parts(["five", "six"])},
        ]);
        assert_eq!(messages(profile, request.clone()).await, expected);
    }
    assert_eq!(
        messages(Profile::OPENAI, request)
            .await
            .as_array()
            .unwrap()
            .len(),
        7
    );

    let mut request = ChatRequest::user("one");
    request.transcript = [assistant("zero")].into_iter().collect();
    request.transcript.push_user("one");
    let unsupported = of(Profile::PERPLEXITY).check(&request);
    assert_eq!(
        unsupported[0].to_string(),
        "a conversation that starts with an assistant message (turn 0)"
    );
}

#[tokio::test]
async fn an_unsupported_image_in_a_result_is_rejected() {
    let call = ToolCallPart::new(CallId::new("call_1"), "t", "{}");
    let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
    let image = Media::new(MediaSource::Url("https://a.test/x.png".into()));
    let outcome = ToolOutcome::done(vec![Part::new(PartKind::Image(image))]);
    let result = ToolResult::new(CallId::new("call_1"), "t", outcome);
    let mut request = ChatRequest::user("hi");
    request
        .transcript
        .push(Round::new(message, vec![result]).unwrap());
    for (profile, count) in [
        (Profile::OPENAI, 0),
        (Profile::MOONSHOT, 1),
        (Profile::DEEPSEEK, 1),
    ] {
        assert_eq!(of(profile).check(&request).len(), count, "{}", profile.name);
    }
}

#[tokio::test]
async fn a_service_without_tools_receives_the_results() {
    let expected = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "hi"},
            {"type": "text", "text": "The tool `t` returned:\nok"},
            {"type": "text", "text": "and?"},
        ]},
    ]);
    assert_eq!(messages(Profile::PERPLEXITY, round()).await, expected);
}

#[tokio::test]
async fn disabled_tools_are_omitted_without_tool_choice() {
    let mut request = ChatRequest::user("hi");
    let spec = ToolSpec::new("t", "", json!({"type": "object"}));
    request.tools.push(Arc::new(spec));
    request.options_mut().tool_choice = Some(ToolChoice::None);
    let (_, body) = try_sent_by(&of(Profile::ZAI), request.clone())
        .await
        .unwrap();
    assert!(body.get("tools").is_none() && body.get("tool_choice").is_none());
    let (_, body) = try_sent_by(&of(Profile::OPENAI), request).await.unwrap();
    assert_eq!(body["tool_choice"], "none");
}

#[tokio::test]
async fn a_thought_signature_is_sent_back_with_its_call() {
    let extra = json!({"google": {"thought_signature": "abc"}});
    let body = json!({"choices": [{"message": {"content": null, "tool_calls": [
        {"id": "a", "function": {"name": "t", "arguments": "{}"}, "extra_content": extra},
        {"id": "b", "function": {"name": "t", "arguments": "{}"}},
    ]}, "finish_reason": "tool_calls"}]});
    let calls = answer(Profile::GEMINI, &body).await.into_iter();
    let parts: Vec<Part> = calls
        .filter_map(|event| match event {
            Event::ToolCall(event) => Some(
                Part::new(PartKind::ToolCall(event.call)).with_provider_data(event.provider_data),
            ),
            _ => None,
        })
        .collect();
    let results: Vec<ToolResult> = parts
        .iter()
        .filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) => Some(ToolResult::new(
                call.id.clone(),
                "t",
                ToolOutcome::done("ok"),
            )),
            _ => None,
        })
        .collect();
    let mut request = ChatRequest::user("hi");
    let round = Round::new(Message::new(Role::Assistant, parts), results).unwrap();
    request.transcript.push(round);
    let messages_of = |profile| messages(profile, request.clone());
    let calls = messages_of(Profile::GEMINI).await[1]["tool_calls"].take();
    assert_eq!(calls[0]["extra_content"], extra);
    assert!(calls[1].get("extra_content").is_none());
    let calls = messages_of(Profile::OPENAI).await[1]["tool_calls"].take();
    assert!(calls[0].get("extra_content").is_none());
}

#[tokio::test]
async fn usage_has_the_same_meaning_for_every_service() {
    let counted = |input: u64, output: u64, total: u64, reasoning: Option<u64>| {
        let mut usage = Usage::new(input, output);
        usage.set_total_tokens(Some(total));
        usage.set_reasoning_tokens(reasoning);
        usage
    };
    let apart = json!({
        "prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 101,
        "completion_tokens_details": {"reasoning_tokens": 60},
    });
    let within = json!({
        "prompt_tokens": 32, "completion_tokens": 69, "total_tokens": 101,
        "completion_tokens_details": {"reasoning_tokens": 60},
    });
    let audio = json!({
        "prompt_tokens": 9, "completion_tokens": 20, "total_tokens": 404,
        "prompt_tokens_details": {"audio_tokens": 375},
    });
    let aloud = json!({
        "prompt_tokens": 384, "completion_tokens": 20, "total_tokens": 404,
        "prompt_tokens_details": {"audio_tokens": 375},
        "completion_tokens_details": {"audio_tokens": 15, "reasoning_tokens": 0},
    });
    let research = json!({
        "prompt_tokens": 33, "completion_tokens": 40, "total_tokens": 73, "reasoning_tokens": 900,
    });
    let cases = [
        (Profile::XAI, &apart, counted(32, 69, 101, Some(60))),
        (
            Profile::generic("gateway"),
            &apart,
            counted(32, 69, 101, Some(60)),
        ),
        (Profile::XAI, &within, counted(32, 69, 101, Some(60))),
        (Profile::MISTRAL, &audio, {
            let mut usage = counted(384, 20, 404, None);
            usage.set_input_audio_tokens(Some(375));
            usage
        }),
        (Profile::OPENAI, &aloud, {
            let mut usage = counted(384, 20, 404, Some(0));
            usage.set_input_audio_tokens(Some(375));
            usage.set_output_audio_tokens(Some(15));
            usage
        }),
        (
            Profile::PERPLEXITY,
            &research,
            counted(33, 940, 73, Some(900)),
        ),
        (Profile::OPENAI, &research, counted(33, 40, 73, Some(900))),
    ];
    for (mut profile, usage, expected) in cases {
        profile.base_url = "http://a.test";
        let body = json!({
            "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage,
        });
        match answer(profile, &body).await.last() {
            Some(Event::Finish(finish)) => assert_eq!(finish.usage, expected, "{usage}"),
            other => panic!("{other:?}"),
        }
    }
}
