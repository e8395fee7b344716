//! Streams of Responses.

use crate::common::*;
use concentric_core::{
    ErrorKind, Event, Executor, FinishReason, MediaSource, Message, MessageBuilder, PartKind,
};
use concentric_providers::{ApiKey, Limits, OpenAiResponsesLayer};
use futures_util::{FutureExt, StreamExt};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::{Arc, atomic::Ordering};

fn layer() -> OpenAiResponsesLayer {
    OpenAiResponsesLayer::new("gpt-test", ApiKey::new(CANARY))
}

async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<concentric_core::Error>) {
    read_script(&layer(), Script::new([body], End::Clean)).await
}

fn event(value: &Value) -> String {
    format!(
        "event: {}\ndata: {value}\n\n",
        value["type"].as_str().unwrap()
    )
}

fn stream(events: &[Value]) -> String {
    events.iter().map(event).collect()
}

fn created() -> Value {
    json!({"type": "response.created", "sequence_number": 0, "response": {
        "id": "resp_1", "object": "response", "status": "in_progress", "model": "gpt-test-1", "output": [],
        "error": null, "incomplete_details": null, "usage": null,
    }})
}

fn added(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

fn done(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": index, "item": item})
}

fn text_delta(index: u64, delta: &str) -> Value {
    json!({"type": "response.output_text.delta", "output_index": index, "content_index": 0, "item_id": "msg_1",
        "delta": delta, "logprobs": [], "obfuscation": "xY7", "sequence_number": 4})
}

fn arguments(index: u64, delta: &str) -> Value {
    json!({"type": "response.function_call_arguments.delta", "output_index": index, "item_id": "fc_1", "delta": delta})
}

fn message(text: &str) -> Value {
    json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

fn function(id: &str, name: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name,
        "arguments": arguments, "status": "completed"})
}

fn ended(output: Value) -> Value {
    json!({"type": "response.completed", "response": {
        "id": "resp_1", "object": "response", "status": "completed", "model": "gpt-test-1", "output": output,
        "error": null, "incomplete_details": null,
        "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 14},
    }})
}

fn hello() -> Vec<Value> {
    vec![
        created(),
        added(
            0,
            json!({"type": "message", "id": "msg_1", "role": "assistant", "content": []}),
        ),
        text_delta(0, "Hel"),
        text_delta(0, "lo"),
        done(0, message("Hello")),
        ended(json!([message("Hello")])),
    ]
}

fn built(events: &[Event]) -> Message {
    let mut builder = MessageBuilder::new(&concentric_core::Head::new("openai", "gpt-test-1"));
    events.iter().for_each(|event| builder.push(event));
    builder.build()
}

fn finish_of(events: &[Event]) -> concentric_core::Finish {
    match events.last() {
        Some(Event::Finish(finish)) => (**finish).clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_text_stream_is_decoded() {
    let script = Script::new([stream(&hello())], End::Clean);
    let response = call(&layer(), http::Response::new(script)).await.unwrap();
    assert_eq!(response.head.id.as_deref(), Some("resp_1"));
    assert_eq!(response.head.model.as_deref(), Some("gpt-test-1"));
    assert_eq!(response.head.provider.as_deref(), Some("openai"));
    let answer = response.collect().await.unwrap();
    assert_eq!(answer.text(), "Hello");
    assert_eq!(answer.finish.reason, FinishReason::Stop);
    assert_eq!(answer.finish.provider_reason.as_deref(), Some("completed"));
    let usage = answer.finish.usage;
    assert_eq!(
        (usage.input_tokens(), usage.output_tokens()),
        (Some(9), Some(5))
    );
    assert_eq!(usage.total_tokens(), Some(14));
    assert_eq!(
        (usage.cached_input_tokens(), usage.cache_write_tokens()),
        (Some(4), Some(2))
    );
    assert_eq!(usage.reasoning_tokens(), Some(3));
}

#[tokio::test]
async fn an_end_before_the_terminal_event_is_truncated() {
    let events = hello();
    for count in 0..events.len() {
        for end in ["", DONE] {
            let (_, error) = read(stream(&events[..count]) + end).await;
            assert_eq!(error.unwrap().kind(), ErrorKind::Truncated, "{count}");
        }
    }
    let calls_made = stream(&[created(), done(0, function("a", "t", "{}"))]);
    let (events, error) = read(calls_made).await;
    assert!(calls(&events).is_empty());
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
    for body in [
        r#"{"object":"response","status":"completed","output":[{"ty"#,
        r#"{"object":"response","status":"queued","output":[]}"#,
        "{}",
    ] {
        let (_, error) = read(body).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Truncated, "{body}");
    }
}

#[tokio::test]
async fn a_broken_connection_emits_no_call() {
    let body = stream(&[created(), done(0, function("a", "t", "{}"))]);
    let (events, error) = read_script(&layer(), Script::new([body], End::Broken)).await;
    assert!(calls(&events).is_empty());
    assert_eq!(error.unwrap().kind(), ErrorKind::Connection);
}

#[tokio::test]
async fn the_body_ends_at_the_terminal_event() {
    for end in [End::Broken, End::Silent] {
        let (events, error) = read_script(&layer(), Script::new([stream(&hello())], end)).await;
        assert!(error.is_none());
        assert_eq!(text(&events), "Hello");
    }
}

#[tokio::test]
async fn the_framing_is_detected_from_the_content() {
    let stream = stream(&hello());
    let unary = ended(json!([message("Hello")]))["response"].to_string();
    for body in [
        stream.clone(),
        stream.replace('\n', "\r\n"),
        unary.clone(),
        format!("data: {unary}\n\n"),
    ] {
        assert_hello(&layer(), &body).await;
    }
}

#[tokio::test]
async fn other_events_only_fill_gaps_between_deltas() {
    let begin = || {
        vec![
            created(),
            added(0, json!({"type": "message", "id": "msg_1"})),
        ]
    };
    let text_done = json!({"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hello"});
    let said: [Vec<Value>; 7] = [
        // The last event omits the text, or contains a different one.
        vec![text_delta(0, "Hello"), ended(json!([]))],
        vec![text_delta(0, "Hello"), ended(json!([message("Bye")]))],
        vec![
            text_delta(0, "Hello"),
            done(0, message("Bye")),
            ended(json!(null)),
        ],
        // Without deltas.
        vec![text_done, ended(json!([]))],
        vec![done(0, message("Hello")), ended(json!([]))],
        vec![ended(json!([message("Hello")]))],
        // A different id at the same index.
        vec![
            done(0, message("Hello")),
            ended(json!([{"type": "message", "id": "other",
            "content": [{"type": "output_text", "text": "Hello"}]}])),
        ],
    ];
    for rest in said {
        let body = stream(&[begin(), rest].concat());
        let (events, error) = read(&body).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(text(&events), "Hello", "{body}");
    }

    let call = function("a", "t", "{\"x\":1}");
    let begin = || vec![created(), added(0, function("a", "t", ""))];
    let all_done = json!({"type": "response.function_call_arguments.done", "output_index": 0, "arguments": "{\"x\":1}"});
    let whole: [Vec<Value>; 6] = [
        vec![
            arguments(0, "{\"x\""),
            arguments(0, ":1}"),
            ended(json!([])),
        ],
        vec![
            arguments(0, "{\"x\":1}"),
            done(0, function("a", "t", "{}")),
            ended(json!([])),
        ],
        vec![all_done, ended(json!([]))],
        vec![done(0, call.clone()), ended(json!([call.clone()]))],
        vec![ended(json!([call.clone()]))],
        // The list omits an item that was streamed.
        vec![
            arguments(0, "{\"x\":1}"),
            done(0, call.clone()),
            text_delta(1, "Hi"),
            ended(json!([message("Hi")])),
        ],
    ];
    for rest in whole {
        let body = stream(&[begin(), rest].concat());
        let (events, error) = read(&body).await;
        assert!(error.is_none(), "{error:?}");
        let expected = (Some("a".to_owned()), "t".to_owned(), "{\"x\":1}".to_owned());
        assert_eq!(calls(&events), [expected], "{body}");
    }
}

#[tokio::test]
async fn parallel_calls_are_matched_by_index() {
    let pieces = |index| {
        [
            arguments(index, "{\"n\":"),
            arguments(index, &format!("{index}}}")),
        ]
    };
    let (one, two) = (pieces(0), pieces(1));
    // Every interleaving of the two.
    for mask in 0_u32..16 {
        if mask.count_ones() != 2 {
            continue;
        }
        let (mut one, mut two) = (one.iter(), two.iter());
        let mut all = vec![
            added(0, function("a", "f", "")),
            added(1, function("b", "g", "")),
        ];
        for bit in 0..4 {
            let next = if mask >> bit & 1 == 0 {
                one.next()
            } else {
                two.next()
            };
            all.push(next.unwrap().clone());
        }
        all.push(ended(json!([])));
        let (events, error) = read(stream(&all)).await;
        assert!(error.is_none());
        let made = calls(&events);
        assert_eq!(
            (made[0].1.as_str(), made[0].2.as_str()),
            ("f", "{\"n\":0}"),
            "{mask:b}"
        );
        assert_eq!(
            (made[1].1.as_str(), made[1].2.as_str()),
            ("g", "{\"n\":1}"),
            "{mask:b}"
        );
        assert_eq!(finish_of(&events).reason, FinishReason::ToolCalls);
    }
    // Without indexes, the ids identify the items.
    let by_id = |id: &str, delta: &str| json!({"type": "response.function_call_arguments.delta", "item_id": id, "delta": delta});
    let begin = |id: &str, name: &str| json!({"type": "response.output_item.added", "item": function(id, name, "")});
    let body = stream(&[
        begin("a", "f"),
        begin("b", "g"),
        by_id("fc_a", "{\"n\":"),
        by_id("fc_b", "{}"),
        by_id("fc_a", "0}"),
        ended(json!([])),
    ]);
    let made = calls(&read(body).await.0);
    assert_eq!(
        (made[0].2.as_str(), made[1].2.as_str()),
        ("{\"n\":0}", "{}")
    );

    // The id of an item may change, the id of a call may not.
    let mut renamed = function("a", "f", "{}");
    renamed["id"] = json!("another");
    let (events, error) = read(stream(&[
        added(0, function("a", "f", "")),
        done(0, renamed),
        ended(json!([])),
    ]))
    .await;
    assert!(error.is_none());
    assert_eq!(calls(&events).len(), 1);
    for twice in [
        done(0, function("b", "f", "{}")),
        done(0, function("a", "g", "{}")),
        added(0, function("b", "f", "")),
    ] {
        let (events, error) = read(stream(&[
            added(0, function("a", "f", "")),
            twice,
            ended(json!([])),
        ]))
        .await;
        assert!(calls(&events).is_empty());
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
    }
}

#[tokio::test]
async fn items_with_missing_or_equal_indexes_are_distinct() {
    let whole = [
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "g",
            "content": [{"type": "reasoning_text", "text": "hm"}]}),
        message("Hello"),
        json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"n\":0}"}),
        json!({"type": "function_call", "call_id": "b", "name": "g", "arguments": "{\"n\":1}"}),
    ];
    let events = |of: &Value| {
        let (mut begun, mut events) = (of.clone(), Vec::new());
        let (type_, delta) = match of["type"].as_str().unwrap() {
            "reasoning" => ("response.reasoning_text.delta", "hm"),
            "message" => ("response.output_text.delta", "Hello"),
            _ => {
                begun["arguments"] = json!("");
                let delta = of["arguments"].as_str().unwrap();
                ("response.function_call_arguments.delta", delta)
            }
        };
        if of["type"] != "function_call" {
            begun["content"] = json!([]);
        }
        events.push(json!({"type": "response.output_item.added", "item": begun}));
        events.push(json!({"type": type_, "item_id": "unknown", "delta": delta}));
        events
    };
    let done = |of: &Value| json!({"type": "response.output_item.done", "item": of});
    // Each completed before the next starts, all at the end, or never.
    let apart: Vec<Value> = whole
        .iter()
        .flat_map(|of| [events(of), vec![done(of)]].concat())
        .collect();
    let begun: Vec<Value> = whole.iter().flat_map(events).collect();
    let together = [begun.clone(), whole.iter().map(done).collect()].concat();
    for (way, events) in [apart, together, begun].into_iter().enumerate() {
        for place in [None, Some(0)] {
            // Two incomplete calls with the same index cannot be distinguished.
            if place.is_some() && way > 0 {
                continue;
            }
            let mut events = events.clone();
            if let Some(place) = place {
                events
                    .iter_mut()
                    .for_each(|event| event["output_index"] = json!(place));
            }
            for output in [json!(null), json!(whole)] {
                let body = stream(&[events.clone(), vec![ended(output)]].concat());
                let (events, error) = read(&body).await;
                assert!(error.is_none(), "{way} {error:?}");
                assert_eq!(text(&events), "Hello", "{body}");
                let made: Vec<_> = calls(&events)
                    .into_iter()
                    .map(|call| (call.0.unwrap(), call.1, call.2))
                    .collect();
                let expected = [("a", "f", "{\"n\":0}"), ("b", "g", "{\"n\":1}")];
                assert_eq!(
                    made,
                    expected.map(|(id, name, text)| (
                        id.to_owned(),
                        name.to_owned(),
                        text.to_owned()
                    )),
                    "{body}"
                );
                let thought = events
                    .iter()
                    .filter(|event| matches!(event, Event::ReasoningDelta(_)));
                assert_eq!(thought.count(), 1);
            }
        }
    }
}

#[tokio::test]
async fn a_second_response_in_one_body_is_an_error() {
    let body = stream(&[
        created(),
        text_delta(0, "Spa"),
        created(),
        text_delta(0, "Spark"),
        ended(json!([])),
    ]);
    let (events, error) = read(body).await;
    assert_eq!(text(&events), "Spa");
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn an_error_within_a_response_is_typed() {
    let failed = |code: &str| {
        json!({"type": "response.failed", "response": {"id": "resp_1", "status": "failed",
        "output": [], "error": {"code": code, "message": "no room"}}})
    };
    let cases = [
        (
            failed("server_error"),
            ErrorKind::Server,
            Some("server_error"),
        ),
        (
            failed("rate_limit_exceeded"),
            ErrorKind::RateLimited,
            Some("rate_limit_exceeded"),
        ),
        (
            failed("invalid_prompt"),
            ErrorKind::InvalidRequest,
            Some("invalid_prompt"),
        ),
        (
            failed("image_too_large"),
            ErrorKind::InvalidRequest,
            Some("image_too_large"),
        ),
        (
            failed("bio_policy"),
            ErrorKind::ContentFilter,
            Some("bio_policy"),
        ),
        (
            failed("context_length_exceeded"),
            ErrorKind::ContextWindow,
            Some("context_length_exceeded"),
        ),
        (
            json!({"type": "error", "code": "server_error", "message": "no room", "param": null, "sequence_number": 3}),
            ErrorKind::Server,
            Some("server_error"),
        ),
        (
            json!({"type": "error", "error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "no room"}}),
            ErrorKind::RateLimited,
            Some("rate_limit_exceeded"),
        ),
    ];
    for (failure, kind, code) in cases {
        for first in [
            vec![],
            vec![
                created(),
                text_delta(0, "Hel"),
                done(1, function("a", "t", "{}")),
            ],
        ] {
            let (events, error) = read(stream(&first) + &event(&failure) + DONE).await;
            let error = error.unwrap();
            assert_eq!(error.kind(), kind, "{failure}");
            assert_eq!(error.code(), code);
            assert_eq!(error.message(), "no room");
            assert_eq!(text(&events).is_empty(), first.is_empty());
            assert!(calls(&events).is_empty());
        }
    }
    let bare = [
        r#"data: {"error":{"message":"no room","code":502}}"#,
        r#"data: {"detail":"no room"}"#,
        "event: error\ndata: {\"message\":\"no room\"}",
        r#"{"object":"response","status":"failed","output":[],"error":{"message":"no room"}}"#,
        r#"{"error":{"message":"no room"}}"#,
    ];
    for body in bare {
        let (_, error) = read(format!("{body}\n\n")).await;
        assert_eq!(error.unwrap().message(), "no room", "{body}");
    }
    let (_, error) = read(r#"{"object":"response","status":"cancelled","output":[]}"#).await;
    assert!(!error.unwrap().is_retryable());
}

#[tokio::test]
async fn a_truncated_response_has_a_reason() {
    let cases = [
        (
            json!({"reason": "max_output_tokens"}),
            FinishReason::Length,
            "max_output_tokens",
        ),
        (
            json!({"reason": "content_filter"}),
            FinishReason::ContentFilter,
            "content_filter",
        ),
        (
            json!({"reason": "new"}),
            FinishReason::Other("new".into()),
            "new",
        ),
        (
            json!(null),
            FinishReason::Other("incomplete".into()),
            "incomplete",
        ),
    ];
    for (details, reason, word) in cases {
        let end = json!({"type": "response.incomplete", "response": {"status": "incomplete",
            "incomplete_details": details, "output": []}});
        let body = stream(&[
            created(),
            added(0, function("a", "t", "")),
            arguments(0, "{\"x"),
            end,
        ]);
        let (events, error) = read(body).await;
        assert!(error.is_none());
        let finish = finish_of(&events);
        assert_eq!(finish.reason, reason);
        assert_eq!(finish.provider_reason.as_deref(), Some(word));
        assert_eq!(calls(&events)[0].2, "{\"x");
    }
}

#[tokio::test]
async fn exceeding_a_limit_is_an_error() {
    let mut limits = Limits::default();
    (limits.tool_arguments, limits.tool_calls) = (10, 2);
    let layer = layer().limits(limits);
    let call = |id: &str| added(id.parse().unwrap(), function(id, "t", ""));
    for events in [
        vec![call("0"), arguments(0, "12345678901")],
        vec![call("0"), arguments(0, "123456"), arguments(0, "123456")],
        vec![call("0"), call("1"), call("2")],
        vec![ended(json!([function("a", "t", "12345678901")]))],
        (0..5000).map(|at| text_delta(at, "")).collect(),
        vec![ended(json!(vec![json!({}); 5000]))],
        (0..5000)
            .map(|place| {
                let mut delta = text_delta(0, "a");
                delta["content_index"] = place.into();
                delta
            })
            .collect(),
        vec![done(
            0,
            json!({"type": "message", "content": vec![json!({}); 5000]}),
        )],
        vec![done(
            0,
            json!({"type": "reasoning", "summary": vec![json!({}); 5000]}),
        )],
    ] {
        let script = Script::new([stream(&events)], End::Silent);
        let (_, error) = read_script(&layer, script).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::TooLarge);
    }
}

#[tokio::test]
async fn unexpected_events_and_fields_are_ignored() {
    let odd = [
        r#"{"type":"response.new_thing.delta","delta":"x","output_index":9}"#,
        r#"{"type":"codex.rate_limits","message":{"plan":"x"}}"#,
        r#"{"type":"response.shell_call_output_content.done","output_index":7,"item_id":"sho_1","command_index":0,"output":[{"stdout":"hi","stderr":"","outcome":{"type":"exit","exit_code":0}}]}"#,
        r#"{"type":"response.in_progress","error":{},"message":"","code":false}"#,
        r#"{"type":"response.output_text.delta","output_index":"0","content_index":null,"delta":"a","logprobs":-0}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"delta":null}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"delta":["x"],"item_id":7}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"delta":"b","extra":NaN}"#,
        r#"{"type":"response.output_text.annotation.added","output_index":0,"annotation":7}"#,
        r#"{"type":"response.output_item.added","output_index":5,"item":null}"#,
        r#"{"type":"response.output_item.added","output_index":6,"item":7}"#,
        r#"{"type":"response.output_item.done","output_index":6,"item":[]}"#,
        r#"{"type":"response.in_progress","response":7}"#,
        r#"{"type":7}"#,
        "7",
        "null",
    ];
    let body: String = odd
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    let end = json!({"type": "response.completed", "response": {"status": "FAKE_STATUS", "usage": {"input_tokens": "9", "output_tokens": null},
        "output": [7, null, {"type": "message", "content": 7}, {"type": "reasoning", "summary": "x", "content": [null]}]}});
    let (events, error) = read(body + &event(&end)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "ab");
    let finish = finish_of(&events);
    assert_eq!(finish.provider_reason.as_deref(), Some("FAKE_STATUS"));
    assert_eq!(finish.usage.input_tokens(), Some(9));
    let (_, error) = read("data: {\"type\":\"response.completed\"}\n\n").await;
    assert!(error.is_none());
}

#[tokio::test]
async fn reasoning_is_emitted_and_stored_unchanged() {
    let item = |id: &str| {
        json!({"type": "reasoning", "id": id, "encrypted_content": "gAAA", "status": null,
            "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}]})
    };
    let summary = |at: u64, delta: &str| json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": at, "delta": delta});
    let raw = |delta: &str| json!({"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": delta});
    let end = || {
        vec![
            text_delta(1, "Hi"),
            ended(json!([item("rs_1"), message("Hi")])),
        ]
    };
    let ways: [(Vec<Value>, &[&str]); 4] = [
        (
            vec![
                summary(0, "o"),
                summary(0, "ne"),
                summary(1, "two"),
                done(0, item("rs_1")),
            ],
            &["one", "two"],
        ),
        (vec![done(0, item("rs_1"))], &["one", "two"]),
        (
            vec![
                raw("one"),
                done(
                    0,
                    json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", "content": [{"type": "reasoning_text", "text": "one"}]}),
                ),
            ],
            &["one"],
        ),
        // Hidden reasoning is sent back as well.
        (
            vec![
                added(
                    0,
                    json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "half"}),
                ),
                done(
                    0,
                    json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}),
                ),
            ],
            &[""],
        ),
    ];
    for (events, shown) in ways {
        let (events, error) = read(stream(&[events, end()].concat())).await;
        assert!(error.is_none());
        let message = built(&events);
        let reasoning: Vec<&str> = message
            .parts
            .iter()
            .filter_map(|part| match &part.kind {
                PartKind::Reasoning(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(reasoning, shown);
        let kept: Vec<&Value> = message
            .parts
            .iter()
            .filter(|p| matches!(p.kind, PartKind::Reasoning(_)))
            .filter_map(|part| {
                part.provider_data
                    .as_deref()?
                    .data
                    .pointer("/item/encrypted_content")
            })
            .collect();
        assert_eq!(kept, ["gAAA"]);
    }
}

#[tokio::test]
async fn refusals_citations_and_phases_are_stored() {
    let refusal = json!({"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "delta": "No."});
    let (events, _) = read(stream(&[refusal, ended(json!([]))])).await;
    assert_eq!(
        built(&events).parts[0].kind,
        PartKind::Refusal("No.".into())
    );

    let cited = json!({"type": "url_citation", "url": "https://a.test", "title": "A", "start_index": 0, "end_index": 2});
    let annotation = json!({"type": "response.output_text.annotation.added", "output_index": 0, "content_index": 0, "annotation_index": 0, "annotation": cited});
    let whole = json!({"type": "message", "id": "msg_1", "role": "assistant", "phase": "final_answer", "content": [
        {"type": "output_text", "text": "Hi", "annotations": [cited]},
        {"type": "output_text", "text": "there"},
        {"type": "refusal", "refusal": "No."},
    ]});
    let begun = json!({"type": "message", "id": "msg_1", "phase": "final_answer", "content": []});
    let ways = [
        vec![
            added(0, begun.clone()),
            text_delta(0, "Hi"),
            annotation.clone(),
            done(0, whole.clone()),
        ],
        vec![done(0, whole.clone())],
        vec![added(0, begun), text_delta(0, "Hi"), annotation],
    ];
    for (way, mut events) in ways.into_iter().enumerate() {
        events.push(ended(json!([whole])));
        let (events, error) = read(stream(&events)).await;
        assert!(error.is_none());
        let parts = built(&events).parts;
        let kinds: Vec<&PartKind> = parts.iter().map(|part| &part.kind).collect();
        assert_eq!(
            kinds,
            [
                &PartKind::Text("Hi".into()),
                &PartKind::Text("there".into()),
                &PartKind::Refusal("No.".into())
            ],
            "{way}"
        );
        let data = |at: usize| &parts[at].provider_data.as_deref().unwrap().data;
        assert_eq!(
            data(0)["item"],
            json!({"type": "message", "id": "msg_1", "phase": "final_answer"})
        );
        assert_eq!(data(0)["annotations"], json!([cited]));
        assert!(data(1).get("annotations").is_none());
    }
}

#[tokio::test]
async fn a_citation_is_emitted_once() {
    let text = |delta: &str| text_delta(0, delta);
    let other = json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 1, "delta": "-"});
    let annotation = |of: &str| json!({"type": "response.output_text.annotation.added", "output_index": 0, "content_index": 0, "annotation": of});
    let whole = json!({"type": "message", "id": "msg_1", "content": [
        {"type": "output_text", "text": "abc", "annotations": ["x", "y", "z"]},
        {"type": "output_text", "text": "--"},
    ]});
    let (events, error) = read(stream(&[
        text("a"),
        annotation("x"),
        other.clone(),
        text("b"),
        annotation("y"),
        other,
        text("c"),
        done(0, whole.clone()),
        ended(json!([whole])),
    ]))
    .await;
    assert!(error.is_none());
    let parts = built(&events).parts;
    let cited: Vec<Value> = parts
        .iter()
        .map(|part| part.provider_data.as_deref().unwrap().data["annotations"].clone())
        .collect();
    let none = Value::Null;
    assert_eq!(
        cited,
        [json!(["x"]), none.clone(), json!(["y"]), none, json!(["z"])]
    );
}

#[tokio::test]
async fn every_item_is_converted() {
    let items = [
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}),
        json!({"type": "file_search_call", "id": "fs_1", "queries": ["x"], "results": null}),
        json!({"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "container_id": "c", "outputs": []}),
        json!({"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "roll", "arguments": "{\"d\":6}", "output": "4"}),
        json!({"type": "shell_call", "id": "sh_1", "call_id": "c1", "action": {"commands": ["ls"]}, "environment": {"type": "container_reference", "container_id": "c"}}),
        json!({"type": "shell_call", "id": "sh_2", "call_id": "c2", "action": {"commands": ["ls"]}, "environment": {"type": "local"}}),
        json!({"type": "local_shell_call", "id": "lsh_1", "call_id": "c3", "action": {"type": "exec", "command": ["ls"], "env": {}}}),
        json!({"type": "apply_patch_call", "id": "apc_1", "call_id": "c4", "operation": {"type": "delete_file", "path": "a"}}),
        json!({"type": "custom_tool_call", "id": "ctc_1", "call_id": "c5", "name": "math", "input": "4 + 4"}),
    ];
    let opaque = [
        "shell_call_output",
        "mcp_list_tools",
        "mcp_approval_request",
        "tool_search_call",
        "tool_search_output",
        "compaction",
        "program",
        "program_output",
        "computer_call",
        "brand_new_item",
    ];
    let mut events = vec![created()];
    for (index, item) in (0..).zip(&items) {
        let mut begun = item.clone();
        begun["status"] = json!("in_progress");
        events.extend([added(index, begun), done(index, item.clone())]);
    }
    for (index, type_) in (20..).zip(opaque) {
        events.push(done(
            index,
            json!({"type": type_, "id": "x", "field": {"a": 1}}),
        ));
    }
    let image = json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QUJD", "output_format": "webp"});
    events.extend([done(40, image), ended(json!([]))]);
    let (events, error) = read(stream(&events)).await;
    assert!(error.is_none());
    let parts = built(&events).parts;
    // The result must not depend on the order of fields in maps.
    let json_of = |text: &str| text.parse().unwrap_or_else(|_| Value::from(text));
    let made: Vec<(&str, Value, Executor)> = parts
        .iter()
        .filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) => Some((
                call.name.as_str(),
                json_of(call.arguments.as_str()),
                call.executor,
            )),
            _ => None,
        })
        .collect();
    let shell = json!({"commands": ["ls"]});
    assert_eq!(
        made,
        [
            (
                "web_search",
                json!({"type": "search", "query": "x"}),
                Executor::Provider
            ),
            ("file_search", json!({"queries": ["x"]}), Executor::Provider),
            (
                "code_interpreter",
                json!({"code": "1+1"}),
                Executor::Provider
            ),
            ("roll", json!({"d": 6}), Executor::Provider),
            ("shell", shell.clone(), Executor::Provider),
            ("shell", shell, Executor::Loop),
            (
                "local_shell",
                json!({"type": "exec", "command": ["ls"], "env": {}}),
                Executor::Loop
            ),
            (
                "apply_patch",
                json!({"type": "delete_file", "path": "a"}),
                Executor::Loop
            ),
            ("math", json!("4 + 4"), Executor::Loop),
        ]
    );
    let kept: Vec<&str> = parts
        .iter()
        .filter_map(|part| match &part.kind {
            PartKind::Provider(data) => data.data["item"]["type"].as_str(),
            _ => None,
        })
        .collect();
    assert_eq!(kept, opaque);
    let image = parts.iter().find_map(|part| match &part.kind {
        PartKind::Image(image) => Some((image, part.provider_data.as_deref().unwrap())),
        _ => None,
    });
    let (image, data) = image.unwrap();
    assert_eq!(image.source, MediaSource::Base64("QUJD".into()));
    assert_eq!(image.media_type.as_deref(), Some("image/webp"));
    assert!(data.data["item"].get("result").is_none());
    // The loop does not wait for the provider's own calls.
    let (events, _) = read(stream(&[done(0, items[0].clone()), ended(json!([]))])).await;
    assert_eq!(finish_of(&events).reason, FinishReason::Stop);
    let grok = OpenAiResponsesLayer::compatible("https://api.x.ai/v1", "grok", None);
    let body = stream(&[done(0, items[8].clone()), ended(json!([]))]);
    let (events, _) = read_script(&grok, Script::new([body], End::Clean)).await;
    assert_eq!(finish_of(&events).reason, FinishReason::Stop);
}

#[tokio::test]
async fn calls_are_emitted_incrementally() {
    let (events, _) = read(stream(&[
        added(0, function("a", "t", "")),
        arguments(0, "{\"x\""),
        arguments(0, ":1}"),
        ended(json!([])),
    ]))
    .await;
    let shown: Vec<&str> = events
        .iter()
        .map(|event| match event {
            Event::ToolCallStart(start) => start.name.as_str(),
            Event::ToolCallDelta(delta) => delta.arguments.as_str(),
            Event::ToolCall(_) => "call",
            Event::Finish(_) => "finish",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shown, ["t", "{\"x\"", ":1}", "call", "finish"]);
}

#[tokio::test]
async fn audio_is_one_part() {
    let sound = |type_: &str, delta: &str| json!({"type": type_, "delta": delta});
    let (events, _) = read(stream(&[
        sound("response.audio.delta", "QU"),
        sound("response.audio.transcript.delta", "Hi"),
        sound("response.audio.delta", "JD"),
        ended(json!([])),
    ]))
    .await;
    let parts = built(&events).parts;
    let PartKind::Audio(sound) = &parts[0].kind else {
        panic!()
    };
    assert_eq!(sound.source, MediaSource::Base64("QUJD".into()));
    assert_eq!(
        parts[0].provider_data.as_deref().unwrap().data["transcript"],
        "Hi"
    );
}

#[tokio::test]
async fn audio_chunks_are_joined_as_bytes() {
    let sound = |delta: &str| json!({"type": "response.audio.delta", "delta": delta});
    let body = stream(&[sound("QUI="), sound("Qw=="), ended(json!([]))]);
    let (events, _) = read(body).await;
    let PartKind::Audio(sound) = &built(&events).parts[0].kind else {
        panic!()
    };
    assert_eq!(sound.source, MediaSource::Base64("QUJD".into()));
    assert_eq!(sound.media_type, None);
}

#[tokio::test]
async fn the_future_resolves_at_the_first_content() {
    let begin = stream(&hello()[..2]);
    let script = Script::new([begin.clone()], End::Silent);
    assert!(
        call(&layer(), http::Response::new(script))
            .now_or_never()
            .is_none()
    );
    let script = Script::new([begin, event(&text_delta(0, "a"))], End::Silent);
    let response = call(&layer(), http::Response::new(script))
        .now_or_never()
        .unwrap();
    let mut body = response.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), Event::text("a"));
    assert!(body.next().now_or_never().is_none());
}

#[tokio::test]
async fn dropping_the_future_or_body_drops_the_http_body() {
    for pieces in [vec![], vec![event(&text_delta(0, "a"))]] {
        let script = Script::new(&pieces, End::Silent);
        let dropped = Arc::clone(&script.dropped);
        let layer = layer();
        let mut future = Box::pin(call(&layer, http::Response::new(script)));
        let mut response = (&mut future).now_or_never();
        if let Some(Ok(response)) = &mut response {
            response.body.next().await.unwrap().unwrap();
            assert!(response.body.next().now_or_never().is_none());
        }
        assert!(!dropped.load(Ordering::SeqCst));
        drop((future, response));
        assert!(dropped.load(Ordering::SeqCst));
    }
}

/// An event of a stream, possibly invalid.
fn any_event() -> impl Strategy<Value = Value> {
    let item = (0_u64..3, 0_usize..5).prop_map(|(id, kind)| match kind {
        0 => json!({"type": "message", "id": format!("m{id}"), "content": [{"type": "output_text", "text": "x"}]}),
        1 => json!({"type": "reasoning", "id": format!("r{id}"), "summary": [{"text": "x"}]}),
        2 => function(&format!("c{id}"), "f", "{}"),
        3 => json!({"type": "web_search_call", "id": format!("w{id}"), "action": {}}),
        _ => json!({"type": "compaction", "id": format!("x{id}")}),
    });
    let index = prop_oneof![Just(Value::Null), (0_u64..3).prop_map(Value::from)];
    (0_usize..12, index, item).prop_map(|(kind, index, item)| {
        let deltas = [
            "response.output_text.delta",
            "response.refusal.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_text.delta",
            "response.function_call_arguments.delta",
            "response.custom_tool_call_input.delta",
        ];
        match kind {
            0 => created(),
            1 | 2 => json!({"type": "response.output_item.added", "output_index": index, "item": item}),
            3 | 4 => json!({"type": "response.output_item.done", "output_index": index, "item": item}),
            5 => json!({"type": "response.output_text.annotation.added", "output_index": index, "annotation": {}}),
            kind => json!({"type": deltas[kind - 6], "output_index": index, "item_id": item["id"], "delta": "y"}),
        }
    })
}

proptest! {
    /// Any events in any order have a single end, and an incomplete response emits no call.
    /// (`read_script` asserts the single end.)
    #[test]
    fn any_events_end_once(events in prop::collection::vec(any_event(), 0..12), whole: bool) {
        let mut events = events;
        if whole {
            let output: Vec<Value> = events.iter().filter_map(|event| event.get("item").cloned()).collect();
            events.push(ended(json!(output)));
        }
        let (events, error) = read(stream(&events)).now_or_never().unwrap();
        if let Some(error) = error {
            prop_assert!(calls(&events).is_empty());
            let kind = error.kind();
            prop_assert!(matches!(kind, ErrorKind::Truncated | ErrorKind::Protocol), "{error}");
            prop_assert!(!whole || kind == ErrorKind::Protocol);
        } else {
            prop_assert!(whole);
            // Provider data belong to a part with content.
            let message = built(&events);
            let empty = message.parts.iter().filter(|part| part.kind == PartKind::Text("".into()));
            prop_assert_eq!(empty.count(), 0);
        }
    }
}
