//! Errors of Anthropic's service.

use crate::common::*;
use concentric_core::{Error, ErrorKind, Event};
use concentric_providers::{AnthropicLayer, ApiKey};
use std::time::Duration;

fn layer() -> AnthropicLayer {
    AnthropicLayer::new("claude-opus-4-8", ApiKey::new(CANARY))
}

async fn refused(status: u16, headers: &[(&'static str, &str)], body: &str) -> Error {
    let Err(error) = call(&layer(), response(status, headers, body)).await else {
        panic!("{body}")
    };
    error
}

fn body_of(type_: &str, message: &str) -> String {
    serde_json::json!({
        "type": "error",
        "error": {"type": type_, "message": message},
        "request_id": "req_1",
    })
    .to_string()
}

#[tokio::test]
async fn every_error_is_typed() {
    let cases = [
        (
            400,
            "invalid_request_error",
            "no",
            ErrorKind::InvalidRequest,
        ),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 210000 tokens > 200000 maximum",
            ErrorKind::ContextWindow,
        ),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
            ErrorKind::ContextWindow,
        ),
        (
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the API.",
            ErrorKind::Quota,
        ),
        (401, "authentication_error", "no", ErrorKind::Authentication),
        (402, "billing_error", "no", ErrorKind::Quota),
        (403, "permission_error", "no", ErrorKind::Permission),
        (404, "not_found_error", "no", ErrorKind::NotFound),
        (413, "request_too_large", "no", ErrorKind::TooLarge),
        (429, "rate_limit_error", "no", ErrorKind::RateLimited),
        (500, "api_error", "no", ErrorKind::Server),
        (504, "timeout_error", "no", ErrorKind::Timeout),
        (529, "overloaded_error", "no", ErrorKind::Overloaded),
    ];
    for (status, type_, message, kind) in cases {
        let error = refused(status, &[("request-id", "req_1")], &body_of(type_, message)).await;
        assert_eq!(error.kind(), kind, "{status} {type_}");
        assert_eq!(error.status(), Some(status));
        assert_eq!(error.error_type(), Some(type_));
        assert_eq!(error.message(), message);
        assert_eq!(error.request_id(), Some("req_1"));
        assert_eq!(error.provider(), Some("anthropic"));
    }
    let error = refused(529, &[], "").await;
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    let error = refused(502, &[], "<html><title>Bad Gateway</title>").await;
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Server, "an HTML page: Bad Gateway")
    );
}

#[tokio::test]
async fn the_retry_delay_is_read_from_the_response() {
    for (name, value, expected) in [
        ("retry-after", "7", Some(7)),
        ("retry-after", "999999999", Some(3600)),
        ("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
        ("retry-after", "soon", None),
        ("retry-after-ms", "2000", Some(2)),
    ] {
        let body = body_of("rate_limit_error", "no");
        let error = refused(429, &[(name, value)], &body).await;
        assert_eq!(
            error.retry_after(),
            expected.map(Duration::from_secs),
            "{name}: {value}"
        );
        assert!(error.is_retryable());
    }
}

#[tokio::test]
async fn an_error_within_a_response_is_typed() {
    const SAID: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n\
        data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n\
        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hel\"}}\n\n";
    for (type_, kind) in [
        ("overloaded_error", ErrorKind::Overloaded),
        ("api_error", ErrorKind::Server),
        ("rate_limit_error", ErrorKind::RateLimited),
        ("invalid_request_error", ErrorKind::InvalidRequest),
        ("request_too_large", ErrorKind::TooLarge),
        ("timeout_error", ErrorKind::Timeout),
    ] {
        for before in ["", SAID] {
            for name in ["event: error\n", ""] {
                let body = format!("{before}{name}data: {}\n\n", body_of(type_, "no"));
                let script = Script::new([body], End::Silent);
                let (events, error) = read_script(&layer(), script).await;
                let error = error.unwrap();
                assert_eq!((error.kind(), error.message()), (kind, "no"));
                assert_eq!(error.error_type(), Some(type_));
                assert_eq!(events.is_empty(), before.is_empty());
                assert!(!events.iter().any(Event::is_finish));
            }
        }
    }
    let script = Script::new(["event: error\ndata: it broke\n\n"], End::Clean);
    let (_, error) = read_script(&layer(), script).await;
    assert_eq!(error.unwrap().message(), "it broke");
}
