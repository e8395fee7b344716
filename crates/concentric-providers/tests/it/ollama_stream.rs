//! Streams of Ollama.

use crate::common::*;
use concentric_core::{ChatRequest, Error, ErrorKind, Event, Finish, FinishReason};
use concentric_providers::{Limits, OllamaLayer};
use futures_util::StreamExt;
use std::sync::{Arc, atomic::Ordering};

async fn read_by(layer: &OllamaLayer, script: Script) -> (Vec<Event>, Option<Error>) {
    let response = http::Response::new(script);
    drain(ask(layer, ChatRequest::user("hi"), response).await).await
}

async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<Error>) {
    read_by(&OllamaLayer::new("m"), Script::new([body], End::Clean)).await
}

fn line(message: &str) -> String {
    format!("{{\"model\":\"m:1\",\"message\":{message},\"done\":false}}\n")
}

fn content(text: &str) -> String {
    line(&format!(r#"{{"role":"assistant","content":"{text}"}}"#))
}

const DONE: &str = "{\"model\":\"m:1\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\
                    \"done\":true,\"done_reason\":\"stop\",\"total_duration\":9,\
                    \"prompt_eval_count\":11,\"prompt_eval_cached_count\":8,\"eval_count\":3}\n";

fn finish(events: &[Event]) -> &Finish {
    match events.last() {
        Some(Event::Finish(finish)) => finish,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn text_thinking_and_usage_are_decoded() {
    let body = line(r#"{"content":"","thinking":"hm"}"#) + &content("Hel") + &content("lo") + DONE;
    let response = http::Response::new(Script::new([body], End::Clean));
    let answer = ask(&OllamaLayer::new("m"), ChatRequest::user("hi"), response).await;
    let head = answer.as_ref().unwrap().head.clone();
    assert_eq!(head.model.as_deref(), Some("m:1"));
    assert_eq!(head.provider.as_deref(), Some("ollama"));
    let (events, error) = drain(answer).await;
    assert!(error.is_none());
    assert_eq!(events[0], Event::ReasoningDelta("hm".into()));
    assert_eq!(text(&events), "Hello");
    let finish = finish(&events);
    assert_eq!(finish.reason, FinishReason::Stop);
    assert_eq!(finish.provider_reason.as_deref(), Some("stop"));
    let usage = finish.usage;
    assert_eq!(
        (usage.input_tokens(), usage.output_tokens()),
        (Some(11), Some(3))
    );
    assert_eq!(
        (usage.cached_input_tokens(), usage.total_tokens()),
        (Some(8), None)
    );
}

// Cases F005 and F006.
#[tokio::test]
async fn every_split_of_the_bytes_yields_the_same() {
    let body = content("äöü") + "\n\r\n" + &content("€😀") + DONE.trim_end();
    for size in 1..body.len() {
        let script = Script::new(body.as_bytes().chunks(size), End::Clean);
        let (events, error) = read_by(&OllamaLayer::new("m"), script).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(text(&events), "äöü€😀");
    }
}

#[tokio::test]
async fn a_complete_response_is_a_single_line() {
    let (events, error) = read(
        r#"{"model":"m","message":{"content":"Hello","thinking":"hm"},"done":true,"done_reason":"length"}"#,
    )
    .await;
    assert!(error.is_none());
    assert_eq!(text(&events), "Hello");
    assert_eq!(finish(&events).reason, FinishReason::Length);
}

#[tokio::test]
async fn a_generate_response_is_decoded() {
    let body = "{\"response\":\"a\",\"thinking\":\"hm\",\"done\":false}\n\
                {\"response\":\"b\",\"done\":false}\n{\"response\":\"\",\"done\":true}\n";
    let (events, error) = read(body).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "ab");
    assert_eq!(events[0], Event::ReasoningDelta("hm".into()));
    assert_eq!(finish(&events).provider_reason, None);
}

#[tokio::test]
async fn every_done_reason_is_mapped() {
    let reasons = [
        ("stop", FinishReason::Stop),
        ("length", FinishReason::Length),
        ("load", FinishReason::Other("load".into())),
        ("unload", FinishReason::Other("unload".into())),
    ];
    for (said, expected) in reasons {
        let (events, _) = read(DONE.replace("stop", said)).await;
        assert_eq!(finish(&events).reason, expected);
        assert_eq!(finish(&events).provider_reason.as_deref(), Some(said));
    }
}

#[tokio::test]
async fn complete_calls_need_no_id() {
    let body = [
        // Formats of different versions: all with index 0, without ids, in one line or several.
        line(r#"{"content":"","tool_calls":[
            {"function":{"index":0,"name":"t","arguments":{"a":{"b":[1]}}}},
            {"function":{"index":0,"name":"t","arguments":{}}}]}"#),
        line(r#"{"tool_calls":[{"id":"call_x","function":{"index":2,"name":"u","arguments":{"z":1}}}]}"#),
        line(r#"{"tool_calls":[{"id":"call_x","function":{"name":"u","arguments":"{\"z\":2}"}}]}"#),
        DONE.to_owned(),
    ]
    .concat();
    let (events, error) = read(&body).await;
    assert!(error.is_none(), "{error:?}");
    let call = |id: Option<&str>, name: &str, arguments: &str| {
        (id.map(str::to_owned), name.to_owned(), arguments.to_owned())
    };
    assert_eq!(
        calls(&events),
        [
            call(None, "t", r#"{"a":{"b":[1]}}"#),
            call(None, "t", "{}"),
            call(Some("call_x"), "u", r#"{"z":1}"#),
            call(Some("call_x"), "u", r#"{"z":2}"#),
        ]
    );
    let finish = finish(&events);
    assert_eq!(finish.reason, FinishReason::ToolCalls);
    assert_eq!(finish.provider_reason.as_deref(), Some("stop"));
    let ids: std::collections::HashSet<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall(event) => Some(event.call.id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 4);

    let (events, error) = read(body.replace(DONE, "")).await;
    assert!(calls(&events).is_empty());
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
    let nameless = line(r#"{"tool_calls":[{"function":{"arguments":{}}}]}"#) + DONE;
    assert_eq!(read(nameless).await.1.unwrap().kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn too_many_calls_are_an_error() {
    let mut limits = Limits::default();
    limits.tool_calls = 1;
    let call = line(r#"{"tool_calls":[{"function":{"name":"t","arguments":{}}}]}"#);
    let script = Script::new([call.repeat(2) + DONE], End::Clean);
    let (events, error) = read_by(&OllamaLayer::new("m").limits(limits), script).await;
    assert!(calls(&events).is_empty());
    assert_eq!(error.unwrap().kind(), ErrorKind::TooLarge);
}

#[tokio::test]
async fn an_end_before_the_done_line_is_truncated() {
    let half = r#"{"message":{"content":"Hel"},"done":tr"#.to_owned();
    for body in [
        String::new(),
        content("Hel"),
        half,
        content("Hel") + &DONE[..40],
    ] {
        let (_, error) = read(&body).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Truncated, "{body}");
    }
    let (_, error) = read_by(
        &OllamaLayer::new("m"),
        Script::new([content("a")], End::Broken),
    )
    .await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Connection);
}

#[tokio::test]
async fn the_body_ends_at_the_done_line() {
    for end in [End::Broken, End::Silent] {
        let script = Script::new([content("a") + DONE], end);
        let (events, error) = read_by(&OllamaLayer::new("m"), script).await;
        assert!(error.is_none());
        assert_eq!(text(&events), "a");
    }
    let (events, error) = read(content("a") + DONE + &content("b")).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "a");
}

#[tokio::test]
async fn unexpected_fields_are_ignored() {
    let body = "{\"model\":1,\"message\":{\"content\":\"a\",\"thinking\":[],\"tool_calls\":null,\
                \"images\":{}},\"done\":\"no\",\"logprobs\":[{}],\"new\":{}}\n\
                {\"error\":\"\",\"done\":false}\n{\"error\":false}\n{\"error\":{}}\n\
                {\"message\":null,\"done\":true,\"done_reason\":null,\"eval_count\":\"x\"}\n";
    let (events, error) = read(body).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "a");
}

#[tokio::test]
async fn a_line_and_a_complete_response_have_separate_limits() {
    let mut limits = Limits::default();
    (limits.event, limits.response) = (200, 1000);
    let long = content(&"x".repeat(300));
    let endless = format!("{{\"message\":{{\"content\":\"{}", "x".repeat(300));
    for (body, streaming, is_too_large) in [
        (long.clone(), true, true),
        (endless, true, true),
        (content("x").repeat(20), true, true),
        (long.clone() + DONE, false, false),
        (long.repeat(4), false, true),
    ] {
        let layer = OllamaLayer::new("m").limits(limits).streaming(streaming);
        for size in [1, 7, body.len()] {
            let script = Script::new(body.as_bytes().chunks(size), End::Clean);
            let (_, error) = read_by(&layer, script).await;
            let kind = error.map(|error| error.kind());
            let expected = is_too_large.then_some(ErrorKind::TooLarge);
            assert_eq!(kind, expected, "{body} in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn dropping_the_body_drops_the_http_body() {
    let script = Script::new([content("a")], End::Silent);
    let dropped = Arc::clone(&script.dropped);
    let response = http::Response::new(script);
    let answer = ask(&OllamaLayer::new("m"), ChatRequest::user("hi"), response).await;
    let mut body = answer.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), Event::text("a"));
    assert!(!dropped.load(Ordering::SeqCst));
    drop(body);
    assert!(dropped.load(Ordering::SeqCst));
}
