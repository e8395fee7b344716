use super::*;

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

// Case F006.
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
