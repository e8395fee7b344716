//! Streams of Gemini.

use crate::common::{
    End, Script, call, calls,
    gemini::{self, finish, layer, parts, read},
    read_script, text,
};
use concentric_core::{
    ErrorKind, Event, Executor, FinishReason, MediaSource, Message, Part, PartKind, Usage,
};
use concentric_providers::Limits;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use std::sync::{Arc, atomic::Ordering};

fn hello() -> String {
    [gemini::text("Hel"), gemini::text("lo"), finish("STOP")].concat()
}

fn usage(events: &[Event]) -> Usage {
    match events.last() {
        Some(Event::Finish(finish)) => finish.usage,
        other => panic!("{other:?}"),
    }
}

fn reason(events: &[Event]) -> (FinishReason, Option<String>) {
    match events.last() {
        Some(Event::Finish(finish)) => (
            finish.reason.clone(),
            finish.provider_reason.as_ref().map(ToString::to_string),
        ),
        other => panic!("{other:?}"),
    }
}

/// The message built from a stream.
async fn message(body: String) -> Message {
    let response = http::Response::new(Script::new([body], End::Clean));
    let answer = call(&layer(), response).await.unwrap().collect().await;
    answer.unwrap().message
}

fn data(part: &Part) -> Value {
    match (&part.kind, &part.provider_data) {
        (PartKind::Provider(data), _) => data.data.clone(),
        (_, Some(data)) => data.data.clone(),
        _ => Value::Null,
    }
}

#[tokio::test]
async fn an_end_before_the_finish_reason_is_truncated() {
    let call = parts(r#"{"functionCall":{"name":"t","args":{}}}"#);
    for body in [
        gemini::text("Hel"),
        gemini::text("Hel") + &call,
        gemini::text("Hel")
            + "data: {\"usageMetadata\":{\"promptTokenCount\":3,\"totalTokenCount\":3}}\n\n",
        gemini::text("Hel") + &finish("FINISH_REASON_UNSPECIFIED"),
    ] {
        let (events, error) = read(body).await;
        assert_eq!(text(&events), "Hel");
        assert!(calls(&events).is_empty());
        assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
    }
    for body in [
        "",
        "[",
        "[{}]",
        r#"{"candidates":[{"content":{"parts":[{"te"#,
    ] {
        let (_, error) = read(body).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Truncated, "{body}");
    }
}

#[tokio::test]
async fn a_broken_connection_emits_no_call() {
    let body = parts(r#"{"functionCall":{"name":"t","args":{}}}"#);
    let (events, error) = read_script(&layer(), Script::new([body], End::Broken)).await;
    assert!(calls(&events).is_empty());
    assert_eq!(error.unwrap().kind(), ErrorKind::Connection);
}

// Case F006.
#[tokio::test]
async fn the_framing_is_detected_from_the_content() {
    let stream = hello();
    let json = stream.replace("data: ", "").replace("\r\n\r\n", "\n");
    let array = format!("[{}]", json.trim_end().replace('\n', "\n,\r\n"));
    let unary = r#"{
        "candidates": [{"content": {"parts": [{"text": "Hello"}], "role": "model"}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
    }"#;
    let bodies = [
        stream.clone(),
        stream.replace("\r\n", "\n"),
        json,
        array,
        unary.to_owned(),
    ];
    for body in bodies {
        for size in [1, 7, body.len()] {
            let script = Script::new(body.as_bytes().chunks(size), End::Clean);
            let (events, error) = read_script(&layer(), script).await;
            assert!(error.is_none(), "{error:?} {body}");
            assert_eq!(text(&events), "Hello");
            assert_eq!(usage(&events).total_tokens(), Some(5));
        }
    }
}

#[tokio::test]
async fn a_response_without_streaming_is_complete_with_its_json() {
    let body = r#"{"candidates":[{"content":{"parts":[{"inlineData":{"mimeType":"image/png","data":"QUJD"}}]}}]}"#;
    let script = || Script::new([body], End::Clean);
    let (events, error) = read_script(&layer().streaming(false), script()).await;
    assert!(error.is_none());
    let [Event::Part(part), Event::Finish(finish)] = &*events else {
        panic!("{events:?}")
    };
    let PartKind::Image(image) = &part.kind else {
        panic!("{part:?}")
    };
    assert_eq!(image.source, MediaSource::Base64("QUJD".into()));
    assert_eq!(image.media_type.as_deref(), Some("image/png"));
    assert_eq!(finish.reason, FinishReason::Stop);
    let (_, error) = read_script(&layer(), script()).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
    let (_, error) = read_script(&layer().streaming(false), Script::new(["{}"], End::Clean)).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
}

#[tokio::test]
async fn an_error_within_a_response_is_typed() {
    let error =
        r#"{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}"#;
    for first in ["", &gemini::text("Hel")] {
        let frames = [
            format!("data: {error}\n\n"),
            format!("data: [{error}]\n\n"),
            // Spread over several lines, not as an event.
            error.replace(',', ",\n  ").replace('}', "\n}") + "\n",
        ];
        for frame in frames {
            let (events, found) = read(format!("{first}{frame}")).await;
            let found = found.unwrap();
            assert_eq!(found.kind(), ErrorKind::Overloaded);
            assert_eq!(found.message(), "The model is overloaded.");
            assert_eq!(
                (found.status(), found.error_type()),
                (Some(503), Some("UNAVAILABLE"))
            );
            assert_eq!(text(&events).is_empty(), first.is_empty());
        }
    }
    let (_, found) = read(format!("[{error}]")).await;
    assert_eq!(found.unwrap().kind(), ErrorKind::Overloaded);
    let (_, found) = read("event: error\ndata: {}\n\n").await;
    assert_eq!(found.unwrap().kind(), ErrorKind::Server);
}

#[tokio::test]
async fn a_second_response_in_one_body_is_an_error() {
    let answer = |id: &str, text: &str| {
        format!(
            "data: {{\"responseId\":\"{id}\",\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{text}\"}}]}}}}]}}\n\n"
        )
    };
    let (events, error) = read(answer("a", "Hel") + &answer("a", "lo") + &finish("STOP")).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "Hello");
    let (_, error) = read(answer("a", "Hel") + &answer("b", "Hello") + &finish("STOP")).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn a_blocked_prompt_is_an_error() {
    let bodies = [
        (
            r#"{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"},"usageMetadata":{"promptTokenCount":3}}"#,
            "PROHIBITED_CONTENT",
        ),
        (
            r#"{"promptFeedback":{"blockReason":"OTHER","blockReasonMessage":"No."}}"#,
            "OTHER",
        ),
    ];
    for (body, code) in bodies {
        for body in [
            body.to_owned(),
            format!("data: {body}\n\n"),
            format!("[{body}]"),
        ] {
            let (events, error) = read(body).await;
            let error = error.unwrap();
            assert!(events.is_empty());
            assert_eq!(error.kind(), ErrorKind::ContentFilter);
            assert_eq!(error.code(), Some(code));
            assert!(!error.is_retryable());
        }
    }
    // Feedback without a block reason.
    let feedback = "data: {\"promptFeedback\":{\"safetyRatings\":[]}}\n\n";
    let (events, error) = read(feedback.to_owned() + &hello()).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "Hello");
}

#[tokio::test]
async fn every_finish_reason_is_mapped() {
    use FinishReason::{ContentFilter, Length, Stop};
    let other = |reason: &str| FinishReason::Other(reason.into());
    let cases = [
        ("STOP", Stop),
        ("MAX_TOKENS", Length),
        ("SAFETY", ContentFilter),
        ("RECITATION", ContentFilter),
        ("BLOCKLIST", ContentFilter),
        ("PROHIBITED_CONTENT", ContentFilter),
        ("SPII", ContentFilter),
        ("MODEL_ARMOR", ContentFilter),
        ("IMAGE_SAFETY", ContentFilter),
        ("LANGUAGE", other("LANGUAGE")),
        ("MALFORMED_FUNCTION_CALL", other("MALFORMED_FUNCTION_CALL")),
        ("NEW_ONE", other("NEW_ONE")),
    ];
    for (word, expected) in cases {
        let (events, error) = read(gemini::text("a") + &finish(word)).await;
        assert!(error.is_none());
        assert_eq!(reason(&events), (expected, Some(word.to_owned())));
    }
    // The last reason wins.
    let body = gemini::text("a") + &finish("STOP") + &gemini::text("b") + &finish("RECITATION");
    let (events, _) = read(body).await;
    assert_eq!(text(&events), "ab");
    assert_eq!(reason(&events).0, ContentFilter);
}

#[tokio::test]
async fn thoughts_are_reasoning_and_signatures_stay_with_their_parts() {
    let body = [
        parts(r#"{"text":"hm","thought":true}"#),
        parts(r#"{"text":"m","thought":true,"thoughtSignature":"s0"}"#),
        gemini::text("Hel"),
        gemini::text("lo"),
        parts(r#"{"text":" you","thoughtSignature":"s1"}"#),
        parts(r#"{"text":"!"}"#),
        parts(r#"{"text":"","thoughtSignature":"s2"}"#),
        parts(r#"{"functionCall":{"name":"t","args":{"b":1,"a":2}},"thoughtSignature":"s3"},{"functionCall":{"name":"t"}}"#),
        parts(r#"{"text":""}"#),
        finish("STOP"),
    ]
    .concat();
    let message = message(body).await;
    let found: Vec<(String, Value)> = message
        .parts
        .iter()
        .map(|part| {
            let kind = match &part.kind {
                PartKind::Text(text) => format!("text {text}"),
                PartKind::Reasoning(text) => format!("reasoning {text}"),
                PartKind::ToolCall(call) => format!("call {}", call.arguments.as_str()),
                other => panic!("{other:?}"),
            };
            (kind, data(part)["fields"]["thoughtSignature"].clone())
        })
        .collect();
    let expected = [
        ("reasoning hm", Value::Null),
        ("reasoning m", json!("s0")),
        ("text Hello", Value::Null),
        ("text  you", json!("s1")),
        ("text !", Value::Null),
        ("text ", json!("s2")),
        (r#"call {"b":1,"a":2}"#, json!("s3")),
        ("call {}", Value::Null),
    ];
    let expected = expected.map(|(kind, data)| (kind.to_owned(), data));
    assert_eq!(found, expected);
}

#[tokio::test]
async fn calls_with_the_same_name_are_distinct() {
    let body = parts(
        r#"{"functionCall":{"id":"x1","name":"t","args":{"a":1}}},{"functionCall":{"name":"t","args":null}}"#,
    ) + &parts(r#"{"functionCall":{"name":"t","args":{ "a": "x y" }}}"#)
        + &finish("STOP");
    let (events, error) = read(body).await;
    assert!(error.is_none());
    assert_eq!(
        calls(&events),
        [
            (
                Some("x1".to_owned()),
                "t".to_owned(),
                r#"{"a":1}"#.to_owned()
            ),
            (None, "t".to_owned(), "{}".to_owned()),
            (None, "t".to_owned(), r#"{"a":"x y"}"#.to_owned()),
        ]
    );
    assert_eq!(reason(&events).0, FinishReason::ToolCalls);
    let ids: std::collections::HashSet<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall(event) => Some(event.call.id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 3);
}

fn pieces() -> Vec<String> {
    vec![
        parts(r#"{"functionCall":{"name":"t","willContinue":true},"thoughtSignature":"s"}"#),
        parts(
            r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.list[0].name","stringValue":"a\"","willContinue":true}],"willContinue":true}}"#,
        ),
        parts(
            r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.list[0].name","stringValue":"b"}],"willContinue":true}}"#,
        ),
        parts(
            r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.list[1].count","numberValue":2},{"jsonPath":"$.is","boolValue":true}],"willContinue":true}}"#,
        ),
        parts(r#"{"functionCall":{}}"#),
    ]
}

#[tokio::test]
async fn partial_arguments_are_reassembled() {
    let whole = r#"{"list":[{"name":"a\"b"},{"count":2}],"is":true}"#;
    // The end of a call may arrive separately, with the last fragment, or not at all.
    for ends in [
        vec![],
        vec![r#"{"functionCall":{}}"#],
        vec![r#"{"functionCall":{"name":"u"}}"#],
    ] {
        for count in [4, 5] {
            let mut body: String = pieces().into_iter().take(count).collect();
            body.extend(ends.iter().map(|end| parts(end)));
            let (events, error) = read(body + &finish("STOP")).await;
            assert!(error.is_none(), "{error:?}");
            let found = calls(&events);
            assert_eq!(found[0].2, whole);
            let preview: String = events
                .iter()
                .filter_map(|event| match event {
                    Event::ToolCallDelta(delta) if delta.index == 0 => {
                        Some(delta.arguments.as_str())
                    }
                    _ => None,
                })
                .collect();
            assert_eq!(preview, whole);
        }
    }
}

#[tokio::test]
async fn truncated_arguments_are_not_valid_json() {
    let body: String = pieces().into_iter().take(2).collect();
    let (events, error) = read(body + &finish("MAX_TOKENS")).await;
    assert!(error.is_none());
    assert_eq!(calls(&events)[0].2, r#"{"list":[{"name":"a\""#);
    assert_eq!(reason(&events).0, FinishReason::Length);
}

#[tokio::test]
async fn invalid_partial_arguments_are_an_error() {
    let first = parts(r#"{"functionCall":{"name":"t","willContinue":true}}"#);
    let bodies = [
        parts(r#"{"functionCall":{"args":{"a":1}}}"#),
        parts(r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.a","numberValue":1}]}}"#),
        first.clone() + &parts(r#"{"functionCall":{"partialArgs":[{"jsonPath":"a"}]}}"#),
        first
            + &parts(
                r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.a","numberValue":1},{"jsonPath":"$.a","numberValue":2}]}}"#,
            ),
    ];
    for body in bodies {
        let (events, error) = read(body + &finish("STOP")).await;
        assert!(calls(&events).is_empty());
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol);
    }
}

#[tokio::test]
async fn server_tool_parts_are_stored_unchanged() {
    let whole = [
        json!({"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["x"]}, "id": "q1"}, "thoughtSignature": "s"}),
        json!({"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "response": {"a": 1}, "id": "q1"}}),
        json!({"executableCode": {"language": "PYTHON", "code": "1/0"}}),
        json!({"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}}),
        json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "stray"}}),
        json!({"somethingNew": [1]}),
    ];
    let body: String = whole.iter().map(|part| parts(&part.to_string())).collect();
    let message = message(body + &gemini::text("Done.") + &finish("STOP")).await;
    let kept: Vec<Value> = message
        .parts
        .iter()
        .map(|part| data(part)["part"].clone())
        .collect();
    assert_eq!(kept[..6], whole);
    let called: Vec<_> = message.tool_calls().collect();
    assert!(
        called
            .iter()
            .all(|call| call.executor == Executor::Provider)
    );
    assert_eq!(called[0].name, "GOOGLE_SEARCH_WEB");
    assert_eq!(called[0].provider_id.as_deref(), Some("q1"));
    let PartKind::ToolResult(result) = &message.parts[3].kind else {
        panic!("{:?}", message.parts[3])
    };
    assert_eq!(result.call_id, called[1].id);
    assert_eq!(result.outcome, concentric_core::ToolOutcome::failed("no"));
    assert!(matches!(message.parts[4].kind, PartKind::Provider(_)));
    assert!(concentric_core::Turn::message(message).is_ok());
}

#[tokio::test]
async fn grounding_metadata_are_stored_and_merged() {
    let chunk = |more: &str| {
        format!(
            "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"a\"}}]}},{more}}}]}}\n\n"
        )
    };
    let body = [
        chunk(r#""groundingMetadata":{},"safetyRatings":[{"category":"x"}]"#),
        chunk(r#""groundingMetadata":{"groundingChunks":[1],"webSearchQueries":["q"]}"#),
        chunk(r#""groundingMetadata":{"groundingChunks":[1,2],"groundingSupports":[3]},"citationMetadata":{"citations":[{"uri":"u"}]}"#),
        chunk(r#""citationMetadata":{"citations":[{"uri":"v"}]},"finishReason":"STOP","finishMessage":"Fine.""#),
    ]
    .concat();
    let message = message(body).await;
    assert_eq!(
        data(message.parts.last().unwrap()),
        json!({"metadata": {
            "groundingMetadata": {"groundingChunks": [1, 2], "groundingSupports": [3], "webSearchQueries": ["q"]},
            "citationMetadata": {"citations": [{"uri": "u"}, {"uri": "v"}]},
        }})
    );
    let blocked = r#"data: {"candidates":[{"finishReason":"SAFETY","finishMessage":"No.","safetyRatings":[{"blocked":true}]}]}"#;
    let (events, error) = read(format!("{blocked}\n\n")).await;
    assert!(error.is_none());
    let Event::Part(part) = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(
        data(part),
        json!({"metadata": {"finishMessage": "No.", "safetyRatings": [{"blocked": true}]}})
    );
}

#[tokio::test]
async fn usage_uses_the_common_format() {
    let tokens = |json: &str| {
        format!(
            "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"a\"}}]}},\"finishReason\":\"STOP\"}}],\"usageMetadata\":{json}}}\n\n"
        )
    };
    let body = tokens(r#"{"promptTokenCount":1,"candidatesTokenCount":9}"#)
        + &tokens(r#"{"promptTokenCount":10,"candidatesTokenCount":5,"thoughtsTokenCount":7,"cachedContentTokenCount":4,"toolUsePromptTokenCount":100,"totalTokenCount":122}"#)
        // A chunk without counts changes nothing.
        + &tokens(r#"{"trafficType":"ON_DEMAND"}"#);
    let (events, _) = read(body).await;
    let found = usage(&events);
    assert_eq!(
        (
            found.input_tokens(),
            found.output_tokens(),
            found.total_tokens()
        ),
        (Some(10), Some(12), Some(122))
    );
    assert_eq!(
        (found.cached_input_tokens(), found.reasoning_tokens()),
        (Some(4), Some(7))
    );
    assert_eq!(
        (found.input_audio_tokens(), found.output_audio_tokens()),
        (None, None)
    );
    let aloud = r#"{"promptTokenCount":9,"candidatesTokenCount":8,
        "promptTokensDetails":[{"modality":"TEXT","tokenCount":2},{"modality":"AUDIO","tokenCount":4},{"modality":"AUDIO","tokenCount":3}],
        "candidatesTokensDetails":[7,{"modality":"AUDIO","tokenCount":"x"},{"modality":null},{"modality":"AUDIO","tokenCount":8}]}"#;
    let (events, _) = read(tokens(&aloud.replace('\n', ""))).await;
    let found = usage(&events);
    assert_eq!(
        (found.input_audio_tokens(), found.output_audio_tokens()),
        (Some(7), Some(8))
    );
    let (events, _) = read(tokens(
        r#"{"promptTokenCount":9,"promptTokensDetails":{"modality":"AUDIO"}}"#,
    ))
    .await;
    assert_eq!(usage(&events).input_audio_tokens(), None);
    let (events, _) = read(tokens(r#"{"promptTokenCount":"x","thoughtsTokenCount":7}"#)).await;
    assert_eq!(usage(&events).output_tokens(), Some(7));
    let (events, _) =
        read(gemini::text("a") + "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n").await;
    assert_eq!(usage(&events), Usage::default());
}

#[tokio::test]
async fn unexpected_chunks_are_ignored() {
    let odd = [
        r#"{"candidates":null}"#,
        r#"{"candidates":[null,3],"usageMetadata":[]}"#,
        r#"{"candidates":[{"content":null}]}"#,
        r#"{"candidates":[{"content":{"role":"model"},"index":"0"}]}"#,
        r#"{"candidates":[{"content":{"parts":[{},null,{"text":null},{"inlineData":{}},{"functionCall":{}},{"thought":1}]}}]}"#,
        r#"{"candidates":[{"index":1,"content":{"parts":[{"text":"another"}]},"finishReason":"SAFETY"}]}"#,
        r#"{"createTime":"2026","unknown":{"a":[1]}}"#,
    ];
    let odd: String = odd
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    let body = [
        &*odd,
        &gemini::text("Hel"),
        &odd,
        &gemini::text("lo"),
        &finish("STOP"),
        &odd,
    ];
    let (events, error) = read(body.concat()).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text(&events), "Hello");
    assert_eq!(
        reason(&events),
        (FinishReason::Stop, Some("STOP".to_owned()))
    );
}

#[tokio::test]
async fn exceeding_a_limit_is_an_error() {
    let mut limits = Limits::default();
    limits.tool_calls = 1;
    limits.tool_arguments = 8;
    let one = |args: &str| {
        parts(&format!(
            r#"{{"functionCall":{{"name":"t","args":{args}}}}}"#
        ))
    };
    for body in [one("{}") + &one("{}"), one(r#"{"a":"12345"}"#)] {
        let script = Script::new([body + &finish("STOP")], End::Clean);
        let (events, error) = read_script(&layer().limits(limits), script).await;
        assert!(calls(&events).is_empty());
        assert_eq!(error.unwrap().kind(), ErrorKind::TooLarge);
    }
}

#[tokio::test]
async fn the_head_contains_the_id_and_the_model() {
    let body = "data: {\"responseId\":\"r1\",\"modelVersion\":\"gemini-3-exact\",\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]},\"finishReason\":\"STOP\"}]}\n\n";
    let response = http::Response::new(Script::new([body], End::Clean));
    let head = call(&layer(), response).await.unwrap().head;
    assert_eq!(head.provider.as_deref(), Some("gcp.gemini"));
    assert_eq!(head.model.as_deref(), Some("gemini-3-exact"));
    assert_eq!(head.id.as_deref(), Some("r1"));
}

#[tokio::test]
async fn a_dropped_body_drops_the_http_body() {
    let script = Script::new([gemini::text("a")], End::Silent);
    let dropped = Arc::clone(&script.dropped);
    let mut body = call(&layer(), http::Response::new(script))
        .await
        .unwrap()
        .body;
    assert!(matches!(body.next().await, Some(Ok(Event::TextDelta(_)))));
    assert!(body.next().now_or_never().is_none());
    assert!(!dropped.load(Ordering::SeqCst));
    drop(body);
    assert!(dropped.load(Ordering::SeqCst));
}
