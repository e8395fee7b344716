//! Streams of chat completions.

use crate::common::*;
use concentric_core::{ChatRequest, ErrorKind, Event, FinishReason, MediaSource, PartKind};
use concentric_providers::Limits;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use std::sync::{Arc, atomic::Ordering};

fn hello() -> String {
    [
        delta(r#"{"content":"Hel"}"#),
        delta(r#"{"content":"lo"}"#),
        finish("stop"),
    ]
    .concat()
}

#[tokio::test]
async fn an_end_before_the_finish_reason_is_truncated() {
    for end in ["", DONE] {
        let (events, error) = read(delta(r#"{"content":"Hel"}"#) + end).await;
        assert_eq!(text(&events), "Hel");
        assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
    }
    let (_, error) = read("").await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
    let (_, error) = read(r#"{"choices":[{"message":{"content":"Hel"#).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
}

#[tokio::test]
async fn a_broken_connection_emits_no_call() {
    let call =
        delta(r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"t","arguments":"{}"}}]}"#);
    let (events, error) = read_script(&layer(), Script::new([call], End::Broken)).await;
    assert!(calls(&events).is_empty());
    assert_eq!(error.unwrap().kind(), ErrorKind::Connection);
}

#[tokio::test]
async fn errors_after_the_finish_reason_are_ignored() {
    let (events, error) = read_script(&layer(), Script::new([hello()], End::Broken)).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "Hello");
}

#[tokio::test]
async fn a_character_split_across_chunks_is_decoded() {
    let body = delta(r#"{"content":"äöü€😀"}"#) + &finish("stop");
    for size in 1..body.len() {
        let script = Script::new(body.as_bytes().chunks(size), End::Clean);
        let (events, error) = read_script(&layer(), script).await;
        assert!(error.is_none());
        assert_eq!(text(&events), "äöü€😀");
    }
}

// Case F006.
#[tokio::test]
async fn the_framing_is_detected_from_the_content() {
    let stream = hello();
    let bodies = [
        stream.clone(),
        stream.clone() + DONE,
        stream.replace('\n', "\r\n"),
        stream.replace('\n', "\r"),
        stream.trim_end().to_owned(),
        format!("\u{feff}{stream}"),
        format!("\n\n: keep-alive\n\n{stream}"),
        stream.replace("data: ", "").replace("\n\n", "\n"),
        format!("[{}]", stream.replace("data: ", "").trim_end().replace("\n\n", ",")),
        r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#.to_owned(),
        "\n\n  {\"choices\":[{\"message\":{\"content\":\"Hello\"},\"finish_reason\":\"stop\"}]}\n".to_owned(),
        "data: {\"choices\":[{\"message\":{\"content\":\"Hello\"},\"finish_reason\":\"stop\"}]}\n\n".to_owned(),
    ];
    for body in bodies {
        assert_hello(&layer(), &body).await;
    }
}

#[tokio::test]
async fn an_error_within_a_response_is_typed() {
    let errors = [
        r#"{"error":{"message":"no room","code":502}}"#,
        r#"{"choices":[{"index":0,"delta":{"content":""},"error":{"message":"no room","code":502}}]}"#,
        r#"{"error":{"message":"no room","type":"x","status_code":502},"choices":[]}"#,
    ];
    for error in errors {
        for first in ["", &delta(r#"{"content":"Hel"}"#)] {
            let (events, found) = read(format!("{first}data: {error}\n\n{DONE}")).await;
            let found = found.unwrap();
            assert_eq!(found.kind(), ErrorKind::Server, "{error}");
            assert_eq!(found.message(), "no room");
            assert_eq!(found.status(), Some(502));
            assert_eq!(text(&events).is_empty(), first.is_empty());
        }
    }
    let (_, error) =
        read("event: error\ndata: {\"message\":\"no\",\"type\":\"overloaded_error\"}\n\n").await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Overloaded);
    let (_, error) = read("event: error\ndata: it broke\n\n").await;
    assert_eq!(error.unwrap().message(), "it broke");
    let (_, error) = read(hello() + "data: {\"error\":\"late\"}\n\n").await;
    assert_eq!(error.unwrap().message(), "late");
}

#[tokio::test]
async fn a_second_response_in_one_body_is_an_error() {
    let of = |id: &str, delta: &str| {
        format!("data: {{\"id\":\"{id}\",\"choices\":[{{\"delta\":{delta}}}]}}\n\n")
    };
    let opens = r#"{"role":"assistant","content":""}"#;
    let body = of("a", opens)
        + &of("a", r#"{"content":"Spa"}"#)
        + &of("b", opens)
        + &of("b", r#"{"content":"Spark"}"#)
        + &finish("stop");
    let (events, error) = read(body).await;
    assert_eq!(text(&events), "Spa");
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);

    // Some services use several ids within a response, and repeat the role in every chunk.
    let body = of("a", r#"{"role":"assistant","content":"Spa"}"#)
        + &of("b", r#"{"role":"assistant","content":"rk"}"#)
        + &finish("stop");
    let (events, error) = read(body).await;
    assert_eq!(text(&events), "Spark");
    assert!(error.is_none());
}

#[tokio::test]
async fn exceeding_a_limit_is_an_error() {
    let mut limits = Limits::default();
    (
        limits.line,
        limits.event,
        limits.response,
        limits.tool_arguments,
    ) = (200, 200, 1000, 10);
    let layer = layer().limits(limits);
    let long = "x".repeat(300);
    let call = |arguments: &str| {
        delta(&format!(
            r#"{{"tool_calls":[{{"index":0,"id":"a","function":{{"name":"t","arguments":"{arguments}"}}}}]}}"#
        ))
    };
    for body in [
        delta(&format!(r#"{{"content":"{long}"}}"#)),
        format!(": {long}"),
        ": x\n\n".repeat(300),
        format!("{{\"choices\":{}", "x".repeat(1000)),
        call("12345678901"),
        call("123456") + &call("123456"),
    ] {
        let script = Script::new(body.as_bytes().chunks(16), End::Silent);
        let (_, error) = read_script(&layer, script).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::TooLarge, "{body}");
    }
}

#[tokio::test]
async fn of_a_field_that_occurs_twice_the_last_value_is_used() {
    let chunks = [
        r#"{"id":"x","choices":[{"delta":{"content":"a"},"delta":{"content":"b"}}],"id":"r"}"#,
        r#"{"choices":[{"delta":{"content":"a"}}],"choices":[{"delta":{"content":"c"}}]}"#,
        r#"{"choices":[{"delta":{"content":"a","content":"d","tool_calls":7,"audio":[1]}}],"usage":"?"}"#,
    ];
    let chunks: String = chunks.iter().map(|it| format!("data: {it}\n\n")).collect();
    let (events, error) = read(chunks + &finish("stop")).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "bcd");
}

// Case F014.
#[tokio::test]
async fn unexpected_fields_are_ignored() {
    let chunks = [
        r#"{"choices":null,"usage":null,"error":null}"#,
        r#"{"choices":[null,7,{"delta":null},{"delta":7,"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"a","tool_calls":null,"refusal":false},"logprobs":-0}],"id":7}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"b","logprobs":NaN}}],"x":"\ud83d"}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"b","content":"c"}}],"usage":{"prompt_tokens":"9"}}"#,
        r#"{"choices":[{"index":"0","delta":{"content":[{"type":"text","text":"d"},"e",{"type":"what"}]}}]}"#,
        r#"{"choices":{"delta":{"content":1}}}"#,
        r#"{"choices":[{"index":1,"delta":{"content":"other"}}]}"#,
        "7",
        "null",
    ];
    let body: String = chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    let (events, error) = read(body + &finish("FAKE_NEW_FINISH_REASON")).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "abcde1");
    let Some(Event::Finish(finish)) = events.last() else {
        panic!()
    };
    assert_eq!(
        finish.reason,
        FinishReason::Other("FAKE_NEW_FINISH_REASON".into())
    );
    assert_eq!(finish.usage.input_tokens(), Some(9));
}

#[tokio::test]
async fn invalid_bytes_become_the_replacement_character() {
    let mut body = delta(r#"{"content":"a?b"}"#).into_bytes();
    let at = body.iter().position(|byte| *byte == b'?').unwrap();
    body[at] = 0xff;
    body.extend(finish("stop").bytes());
    assert_eq!(text(&read(body).await.0), "a\u{fffd}b");
}

#[tokio::test]
async fn an_invalid_body_is_a_protocol_error() {
    for body in [
        "<html><title>Sign in</title></html>",
        "Internal Server Error",
        "data: {oops}\n\n",
    ] {
        let (_, error) = read(body).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol, "{body}");
    }
}

#[tokio::test]
async fn every_reasoning_field_is_read() {
    for said in [
        r#"{"reasoning":"hm"}"#,
        r#"{"reasoning_content":"hm"}"#,
        r#"{"reasoning":"hm","reasoning_content":"hm"}"#,
        r#"{"reasoning_details":[{"type":"reasoning.text","text":"hm"}]}"#,
        r#"{"reasoning":"hm","reasoning_details":[{"type":"reasoning.text","text":"hm"}]}"#,
        r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}"#,
        r#"{"content":[{"type":"thinking","thinking":"hm"}]}"#,
    ] {
        let (events, _) = read(delta(said) + &delta(r#"{"content":"a"}"#) + &finish("stop")).await;
        assert_eq!(events[0], Event::ReasoningDelta("hm".into()), "{said}");
        assert_eq!(text(&events), "a");
        assert_eq!(
            events
                .iter()
                .filter(|e| matches!(e, Event::ReasoningDelta(_)))
                .count(),
            1
        );
    }
}

#[tokio::test]
async fn audio_is_one_part_of_the_requested_type() {
    let body = delta(r#"{"audio":{"id":"a","data":"QUI="}}"#)
        + &delta(r#"{"audio":{"data":"Qw==","transcript":"Hi"}}"#)
        + &finish("stop");
    let cases = [
        (None, None),
        (Some("wav"), Some("audio/wav")),
        (Some("mp3"), Some("audio/mpeg")),
        (Some("pcm16"), Some("audio/pcm")),
    ];
    for (format, media_type) in cases {
        let mut request = ChatRequest::user("hi");
        if let Some(format) = format {
            let options = &mut request.options_mut().provider;
            options.insert("audio".to_owned(), json!({"format": format}));
        }
        let response = http::Response::new(Script::new([&body], End::Clean));
        let (events, error) = drain(ask(&layer(), request, response).await).await;
        assert!(error.is_none());
        let Event::Part(part) = &events[0] else {
            panic!("{events:?}")
        };
        let PartKind::Audio(sound) = &part.kind else {
            panic!("{part:?}")
        };
        assert_eq!(sound.source, MediaSource::Base64("QUJD".into()));
        assert_eq!(sound.media_type.as_deref(), media_type);
    }
}

// Case F004.
#[tokio::test]
async fn the_native_reason_reveals_truncation() {
    let body = delta(
        "{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"t\",\"arguments\":\"{\\\"a\"}}]}",
    ) + "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\",\"native_finish_reason\":\"max_output_tokens\"}]}\n\n";
    let (events, _) = read(body).await;
    let Some(Event::Finish(finish)) = events.last() else {
        panic!()
    };
    assert_eq!(finish.reason, FinishReason::Length);
    assert_eq!(finish.provider_reason.as_deref(), Some("tool_calls"));
    assert_eq!(calls(&events)[0].2, "{\"a");
}

#[tokio::test]
async fn the_future_resolves_at_the_first_content() {
    let role = delta(r#"{"role":"assistant","content":""}"#);
    let script = Script::new([role.clone()], End::Silent);
    assert!(
        call(&layer(), http::Response::new(script))
            .now_or_never()
            .is_none()
    );

    let script = Script::new([role, delta(r#"{"content":"a"}"#)], End::Silent);
    let response = call(&layer(), http::Response::new(script))
        .now_or_never()
        .unwrap();
    let mut body = response.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), Event::text("a"));
    assert!(body.next().now_or_never().is_none());
}

#[tokio::test]
async fn dropping_the_future_or_body_drops_the_http_body() {
    for pieces in [vec![], vec![delta(r#"{"content":"a"}"#)]] {
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

#[tokio::test]
async fn a_completed_body_holds_no_resources() {
    let script = Script::new([hello(), DONE.to_owned()], End::Silent);
    let dropped = Arc::clone(&script.dropped);
    let mut body = call(&layer(), http::Response::new(script))
        .await
        .unwrap()
        .body;
    while let Some(item) = body.next().await {
        item.unwrap();
    }
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn leading_white_space_is_skipped() {
    // A large amount of white space, in many chunks.
    const BLANK: usize = 20_000;
    let body = delta(r#"{"content":"a"}"#) + &finish("stop");
    let blank = "\n".repeat(256);
    let pieces = std::iter::repeat_n(blank.as_str(), BLANK).chain([body.as_str()]);
    let (events, error) = read_script(&layer(), Script::new(pieces, End::Clean)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "a");
}
