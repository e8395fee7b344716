use super::*;

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

// Case F004.
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
