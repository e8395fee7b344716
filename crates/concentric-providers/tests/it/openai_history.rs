//! Histories that are sent to chat completions services.

use crate::openai::*;
use concentric_core::{
    CallId, ChatRequest, Event, Message, Part, PartKind, Role, Round, ToolCallPart, ToolOutcome,
    ToolResult, ToolSpec, Turn,
};
use concentric_providers::openai::Profile;
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn reasoning_is_sent_back_to_its_own_provider() {
    let wanted = [
        (Profile::DEEPSEEK, Some("reasoning_content"), json!("")),
        (Profile::VLLM, Some("reasoning"), Value::Null),
        (Profile::GROQ, None, Value::Null),
    ];
    for (profile, field, content) in wanted {
        let parts = vec![
            thought("mine", profile.provider),
            thought("theirs", "anthropic"),
            Part::new(PartKind::Reasoning("somebody's".into())),
        ];
        let said = messages(profile, round_of(parts)).await[1].take();
        assert_eq!(said["content"], content);
        let expected = field.map(|field| (field, json!("mine")));
        let found = ["reasoning", "reasoning_content"]
            .into_iter()
            .find_map(|field| Some((field, said.get(field)?.clone())));
        assert_eq!(found, expected, "{}", profile.name);
    }
}

#[tokio::test]
async fn required_reasoning_is_never_missing() {
    let reasoning = async |profile: Profile, request: ChatRequest| -> Vec<Value> {
        let messages = messages(profile, request).await;
        let said = messages.as_array().unwrap().iter();
        said.filter(|message| message["role"] == "assistant")
            .map(|message| message["reasoning_content"].clone())
            .collect()
    };
    for profile in [Profile::DEEPSEEK, Profile::MOONSHOT] {
        let mut request = round_of(vec![thought("theirs", "anthropic")]);
        request.transcript.push(assistant("So."));
        request.transcript.push_user("and?");
        // A call requires reasoning, and with tools every message does.
        let found = reasoning(profile, request.clone()).await;
        assert_eq!(found, [json!(" "), Value::Null], "{}", profile.name);
        let spec = ToolSpec::new("t", "", json!({"type": "object"}));
        request.tools.push(Arc::new(spec));
        let found = reasoning(profile, request).await;
        assert_eq!(found, [json!(" "), json!(" ")], "{}", profile.name);
        let mut request = ChatRequest::user("hi");
        request.transcript.push(assistant("So."));
        request.transcript.push_user("and?");
        assert_eq!(reasoning(profile, request).await, [Value::Null]);
    }
    let found = reasoning(Profile::ZAI, round()).await;
    assert_eq!(found, [Value::Null]);
}

#[tokio::test]
async fn mistral_receives_only_its_own_reasoning() {
    let parts = vec![
        thought("mine", "mistral_ai"),
        thought("theirs", "anthropic"),
        Part::text("So."),
    ];
    let mut request = ChatRequest::user("hi");
    let message = Message::new(Role::Assistant, parts);
    request.transcript.push(Turn::message(message).unwrap());
    request.transcript.push_user("and?");
    let expected = json!([
        {"type": "thinking", "thinking": [{"type": "text", "text": "mine"}]},
        {"type": "text", "text": "So."},
    ]);
    assert_eq!(
        messages(Profile::MISTRAL, request).await[1]["content"],
        expected
    );
}

#[tokio::test]
async fn empty_messages_are_omitted() {
    let mut request = ChatRequest::user("one");
    let opaque = concentric_core::ProviderData::new("elsewhere", json!({}));
    let parts = vec![Part::new(PartKind::Provider(opaque))];
    let message = Message::new(Role::User, parts);
    request.transcript.push(Turn::message(message).unwrap());
    let message = Message::new(Role::User, vec![Part::text(""), Part::text("two")]);
    request.transcript.push(Turn::message(message).unwrap());
    let expected = json!([
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
    ]);
    assert_eq!(messages(Profile::OPENAI, request).await, expected);
}

#[tokio::test]
async fn a_refusal_is_sent_back() {
    let refusal = Part::new(PartKind::Refusal("I can't.".into()));
    let text = json!({"role": "assistant", "content": "I can't."});
    let field = json!({"role": "assistant", "content": null, "refusal": "I can't."});
    for (profile, expected) in [
        (Profile::OPENAI, &field),
        (Profile::AZURE, &field),
        (Profile::GROQ, &text),
        (Profile::PERPLEXITY, &text),
    ] {
        let mut request = ChatRequest::user("one");
        let message = Message::new(Role::Assistant, vec![refusal.clone()]);
        request.transcript.push(Turn::message(message).unwrap());
        request.transcript.push_user("two");
        let said = messages(profile, request).await[1].take();
        assert_eq!(said, *expected, "{}", profile.name);
    }
    // Other content is unchanged.
    let mut request = ChatRequest::user("one");
    let parts = vec![Part::text("No."), refusal];
    let message = Message::new(Role::Assistant, parts);
    request.transcript.push(Turn::message(message).unwrap());
    request.transcript.push_user("two");
    assert_eq!(
        messages(Profile::OPENAI, request).await[1],
        json!({"role": "assistant", "content": "No.", "refusal": "I can't."})
    );
}

#[tokio::test]
async fn generated_audio_is_sent_as_its_transcript() {
    let body = json!({"choices": [{
        "message": {"audio": {"id": "a", "data": "QUJD", "transcript": "Hello."}},
        "finish_reason": "stop",
    }]});
    let events = answer(Profile::OPENAI, &body).await.into_iter();
    let parts: Vec<Part> = events
        .filter_map(|event| match event {
            Event::Part(part) => Some(*part),
            _ => None,
        })
        .collect();
    let mut request = ChatRequest::user("one");
    let message = Message::new(Role::Assistant, parts);
    request.transcript.push(Turn::message(message).unwrap());
    request.transcript.push_user("two");
    let said = messages(Profile::OPENAI, request.clone()).await[1].take();
    assert_eq!(said, json!({"role": "assistant", "content": "Hello."}));
    // Other services receive a placeholder for the audio.
    let said = messages(Profile::GROQ, request).await[1].take();
    assert_eq!(said, json!({"role": "assistant", "content": "[sound]"}));
}

#[tokio::test]
async fn a_long_id_is_shortened() {
    let long = "x".repeat(60);
    let call = ToolCallPart::new(CallId::new(&*long), "t", "{}");
    let message = Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))]);
    let result = ToolResult::new(CallId::new(&*long), "t", ToolOutcome::done("ok"));
    let mut request = ChatRequest::user("hi");
    request
        .transcript
        .push(Round::new(message, vec![result]).unwrap());
    let messages = messages(Profile::OPENAI, request).await;
    let id = messages[1]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.len() <= 40);
    assert_eq!(messages[2]["tool_call_id"], id);
}

#[tokio::test]
async fn mistral_receives_later_system_messages_as_user_messages() {
    let system = |text: &str| {
        let message = Message::new(Role::System, vec![Part::text(text)]);
        Turn::message(message).unwrap()
    };
    let mut request = ChatRequest::user("one");
    request.transcript.push(system("two"));
    request.transcript.push(assistant("three"));
    request.transcript.push(system("four"));
    request.transcript.push_user("five");
    let round = round().transcript.iter().nth(1).cloned().unwrap();
    request.transcript.push(round);
    request.transcript.push(system("six"));
    let roles = async |profile: Profile| -> Vec<String> {
        let messages = messages(profile, request.clone()).await;
        let messages = messages.as_array().unwrap().iter();
        let line = |message: &Value| format!("{} {}", message["role"], message["content"]);
        messages.map(|m| line(m).replace('"', "")).collect()
    };
    assert_eq!(
        roles(Profile::MISTRAL).await,
        [
            "user one",
            "system two",
            "assistant three",
            "user four",
            "user five",
            "assistant null",
            "tool ok",
            "assistant OK",
            "user six",
        ]
    );
    assert_eq!(
        roles(Profile::GROQ).await,
        [
            "user one",
            "system two",
            "assistant three",
            "system four",
            "user five",
            "assistant null",
            "tool ok",
            "system six",
        ]
    );
}
