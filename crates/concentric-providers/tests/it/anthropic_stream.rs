//! Streams of Anthropic's Messages API.

use crate::anthropic::stream::*;
use crate::common::{End, Once, Script, call, calls, read_script, text};
use concentric_core::{ChatRequest, ErrorKind, Event, Executor, FinishReason, PartKind};
use futures_util::{FutureExt, StreamExt};
use proptest::prelude::*;
use serde_json::json;
use std::sync::{Arc, atomic::Ordering};
use tower::{Layer, ServiceExt};

#[tokio::test]
async fn a_response_is_decoded_incrementally() {
    let ping = event(&json!({"type": "ping"}));
    let body = start() + &ping + &text_block(0, &["Hel", "", "lo"]) + &stop("end_turn");
    let script = Script::new([&body], End::Clean);
    let response = call(&layer(), http::Response::new(script)).await.unwrap();
    assert_eq!(response.head.id.as_deref(), Some("msg_1"));
    assert_eq!(
        response.head.model.as_deref(),
        Some("claude-opus-4-8-20260528")
    );
    assert_eq!(response.head.provider.as_deref(), Some("anthropic"));

    let (events, error) = read(&body).await;
    assert!(error.is_none());
    assert_eq!(events[..2], [Event::text("Hel"), Event::text("lo")]);
    let finish = finish_of(&events);
    assert_eq!(finish.reason, FinishReason::Stop);
    assert_eq!(finish.provider_reason.as_deref(), Some("end_turn"));
    let usage = finish.usage;
    assert_eq!(usage.input_tokens(), Some(60));
    assert_eq!(usage.cached_input_tokens(), Some(30));
    assert_eq!(usage.cache_write_tokens(), Some(20));
    assert_eq!(usage.cache_write_1h_tokens(), Some(15));
    assert_eq!(usage.output_tokens(), Some(7));
    assert_eq!(usage.reasoning_tokens(), Some(3));
    assert_eq!(usage.total_tokens(), None);
}

#[tokio::test]
async fn the_usage_of_a_failed_response_is_recorded() {
    let whole = start() + &text_block(0, &["Hel", "lo"]) + &stop("end_turn");
    let recorded = async |body: &str| {
        let script = Script::new([body], End::Broken);
        let model = layer().layer(Once(Some(http::Response::new(script))));
        let request = ChatRequest::user("hi");
        let context = request.context.clone();
        if let Ok(response) = model.oneshot(request).await {
            let _: Vec<_> = response.body.collect().await;
        }
        context.run_usage()
    };
    let usage = recorded(&whole).await;
    assert_eq!(
        (usage.total().output_tokens(), usage.models()[0].calls),
        (Some(7), 1)
    );
    // The connection breaks after the service has counted the input.
    let usage = recorded(&start()).await;
    assert_eq!(
        (usage.total().input_tokens(), usage.models()[0].calls),
        (Some(60), 1)
    );
    assert!(recorded("").await.models().is_empty());
}

#[tokio::test]
async fn an_end_before_message_stop_is_truncated() {
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search"});
    let body = start()
        + &call_block(0, &search, &["{}"])
        + &text_block(1, &["Hel", "lo"])
        + &tool_use(2, "toolu_1", &["{}"])
        + &stop("tool_use");
    let ends: Vec<usize> = body.match_indices("\n\n").map(|(at, _)| at + 2).collect();
    for end in ends.iter().take(ends.len() - 1).chain(&[0]) {
        let (events, error) = read(&body[..*end]).await;
        assert_eq!(
            error.unwrap().kind(),
            ErrorKind::Truncated,
            "{}",
            &body[..*end]
        );
        assert!(!events.iter().any(|event| match event {
            Event::ToolCall(event) => event.call.executor == Executor::Loop,
            _ => false,
        }));
    }
    // The trailing blank line is optional.
    let (events, error) = read(body.trim_end()).await;
    assert!(error.is_none());
    assert_eq!(calls(&events).len(), 2);
    let (_, error) = read(r#"{"type":"message","content":[{"type":"text","te"#).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
}

#[tokio::test]
async fn every_split_of_the_bytes_yields_the_same() {
    let body = start()
        + &text_block(0, &["äöü€😀"])
        + &tool_use(1, "toolu_1", &["{\"q\":", "\"€\"}"])
        + &stop("tool_use");
    for size in [1, 2, 3, 7, 64, body.len()] {
        let script = Script::new(body.as_bytes().chunks(size), End::Clean);
        let (events, error) = read_script(&layer(), script).await;
        assert!(error.is_none());
        assert_eq!(text(&events), "äöü€😀");
        assert_eq!(calls(&events)[0].2, "{\"q\":\"€\"}");
    }
}

#[tokio::test]
async fn a_second_message_in_one_body_is_an_error() {
    let half = json!({"type": "content_block_start", "index": 0, "content_block":
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}});
    let body =
        start() + &event(&half) + &start() + &tool_use(0, "toolu_2", &["{}"]) + &stop("tool_use");
    let (events, error) = read(body).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
    assert!(calls(&events).is_empty());
    let whole = json!({"type": "message", "content": [{"type": "text", "text": "a"}]});
    let (_, error) = read(format!("{whole}\n{whole}")).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn contradictory_events_are_a_protocol_error() {
    let text = json!({"type": "text", "text": ""});
    let begun = event(&json!({"type": "content_block_start", "index": 0, "content_block": text}));
    let piece = |index: u64| {
        event(&json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "text_delta", "text": "a"}}))
    };
    let nameless = json!({"type": "tool_use", "id": "toolu_1", "input": {}});
    for body in [
        begun.clone(),
        start() + &piece(0),
        start() + &begun + &piece(1),
        start() + &text_block(0, &["a"]) + &piece(0),
        event(&json!({"type": "message_stop"})),
        start() + &block(0, &nameless, &[]) + &stop("tool_use"),
    ] {
        let (_, error) = read(&body).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol, "{body}");
    }
}

// Case F014.
#[tokio::test]
async fn unknown_events_and_fields_are_ignored() {
    let body = start()
        + &event(&json!({"type": "new_event", "index": {}, "delta": 7, "usage": []}))
        + &block(
            0,
            &json!({"type": "new_block", "a": [1], "id": 7}),
            &[json!({"type": "new_delta", "b": {}})],
        )
        + &block(1, &json!(null), &[])
        + &block(
            2,
            &json!({"type": "text", "text": "", "new": null}),
            &[
                json!({"type": "new_delta"}),
                json!({"type": "text_delta", "text": "a", "new": {"text": []}}),
            ],
        )
        + &event(&json!({"type": "message_delta", "delta": null, "usage": null}))
        + &stop("new_reason");
    let (events, error) = read(body).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "a");
    let finish = finish_of(&events);
    assert_eq!(finish.reason, FinishReason::Other("new_reason".into()));
    let message = message(&events);
    let PartKind::Provider(data) = &message.parts[0].kind else {
        panic!("{message:?}")
    };
    assert_eq!(data.data, json!({"type": "new_block", "a": [1], "id": 7}));
    assert_eq!(message.parts.len(), 2);
}

#[tokio::test]
async fn the_future_resolves_at_the_first_content() {
    let begun = start()
        + &event(&json!({"type": "content_block_start", "index": 0,
        "content_block": {"type": "text", "text": ""}}));
    let silent = Script::new([&begun], End::Silent);
    assert!(
        call(&layer(), http::Response::new(silent))
            .now_or_never()
            .is_none()
    );

    let said = begun
        + &event(&json!({"type": "content_block_delta", "index": 0,
        "delta": {"type": "text_delta", "text": "a"}}));
    let script = Script::new([said], End::Silent);
    let dropped = Arc::clone(&script.dropped);
    let response = call(&layer(), http::Response::new(script))
        .now_or_never()
        .unwrap();
    let mut body = response.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), Event::text("a"));
    assert!(body.next().now_or_never().is_none());
    assert!(!dropped.load(Ordering::SeqCst));
    drop(body);
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn the_body_ends_at_message_stop() {
    let body = start() + &text_block(0, &["a"]) + &stop("end_turn");
    let script = Script::new([body], End::Silent);
    let dropped = Arc::clone(&script.dropped);
    let response = call(&layer(), http::Response::new(script)).await.unwrap();
    assert_eq!(response.text().now_or_never().unwrap().unwrap(), "a");
    assert!(dropped.load(Ordering::SeqCst));
}

/// A valid or invalid event.
fn some_event() -> impl Strategy<Value = String> {
    let odd = prop_oneof![
        Just(json!(null)),
        Just(json!(-1)),
        Just(json!("x")),
        Just(json!([1, {"type": "text"}])),
        Just(json!({"type": "tool_use", "id": "toolu_1", "name": "t", "input": [1]})),
        Just(json!({"type": "thinking", "thinking": 7, "signature": {}})),
        Just(json!({"type": "text_delta", "text": "a", "citation": 3})),
        Just(json!({"type": "input_json_delta", "partial_json": "{\"a"})),
        Just(json!({"stop_reason": "end_turn", "usage": {"output_tokens": 1e300}})),
    ];
    let name = prop::sample::select(vec![
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "message",
        "ping",
    ]);
    (name, 0..3_u64, odd.clone(), odd).prop_map(|(name, index, one, other)| {
        event(
            &json!({"type": name, "index": index, "content_block": one, "delta": other,
            "message": other, "usage": one, "content": one, "container": other}),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_events_end_once(
        events in prop::collection::vec(some_event(), 0..12),
        sane in any::<bool>(),
    ) {
        let begun = if sane { start() } else { String::new() };
        let body = begun + &events.concat();
        // `read` asserts that there is a single terminal item.
        let (events, error) = read(body).now_or_never().unwrap();
        let executes = |event: &Event| match event {
            Event::ToolCall(event) => event.call.executor == Executor::Loop,
            _ => false,
        };
        prop_assert!(error.is_none() || !events.iter().any(executes));
    }
}
