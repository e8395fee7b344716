//! Errors of Responses services, which must never contain the key.

use crate::common::*;
use concentric_core::{Error, ErrorKind};
use concentric_providers::{ApiKey, OpenAiResponsesLayer};
use std::{error::Error as _, time::Duration};

fn layer() -> OpenAiResponsesLayer {
    OpenAiResponsesLayer::new("gpt-test", ApiKey::new(CANARY))
}

async fn refused(status: u16, headers: &[(&'static str, &str)], body: &str) -> Error {
    call(&layer(), response(status, headers, body))
        .await
        .unwrap_err()
}

#[tokio::test]
async fn every_status_is_typed() {
    let of = |code: &str| {
        format!(
            r#"{{"error":{{"message":"no","type":"invalid_request_error","param":"x","code":"{code}"}}}}"#
        )
    };
    let cases: &[(u16, &str, ErrorKind, &str)] = &[
        (401, &of("invalid_api_key"), ErrorKind::Authentication, "no"),
        (403, &of("unsupported_country"), ErrorKind::Permission, "no"),
        (404, &of("model_not_found"), ErrorKind::NotFound, "no"),
        (
            400,
            &of("previous_response_not_found"),
            ErrorKind::InvalidRequest,
            "no",
        ),
        (
            400,
            &of("context_length_exceeded"),
            ErrorKind::ContextWindow,
            "no",
        ),
        (400, &of("content_filter"), ErrorKind::ContentFilter, "no"),
        (429, &of("insufficient_quota"), ErrorKind::Quota, "no"),
        (
            429,
            &of("rate_limit_exceeded"),
            ErrorKind::RateLimited,
            "no",
        ),
        (503, "", ErrorKind::Overloaded, "Service Unavailable"),
        (529, "{", ErrorKind::Overloaded, "{"),
        (500, r#"{"detail":"no"}"#, ErrorKind::Server, "no"),
        (
            502,
            "<html><title>502 Bad Gateway</title>",
            ErrorKind::Server,
            "an HTML page: 502",
        ),
        (504, "", ErrorKind::Timeout, "Gateway Timeout"),
        (302, "", ErrorKind::Protocol, "the provider redirected"),
    ];
    for (status, body, kind, message) in cases {
        let error = refused(*status, &[("x-request-id", "req_1")], body).await;
        assert_eq!(error.kind(), *kind, "{status} {body}");
        assert_eq!(error.status(), Some(*status));
        assert_eq!(error.request_id(), Some("req_1"));
        assert_eq!(error.provider(), Some("openai"));
        assert!(error.message().starts_with(message), "{error}");
    }
}

#[tokio::test]
async fn the_retry_delay_is_read_from_the_response() {
    let cases = [
        ("retry-after", "7", Some(7000)),
        ("retry-after", "0.5", Some(500)),
        ("retry-after", "999999999", Some(3_600_000)),
        ("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
        ("retry-after-ms", "1500", Some(1500)),
        ("retry-after", "soon", None),
    ];
    for (name, value, millis) in cases {
        for status in [429, 503] {
            let error = refused(status, &[(name, value)], "{}").await;
            assert_eq!(
                error.retry_after(),
                millis.map(Duration::from_millis),
                "{name}: {value}"
            );
            assert!(error.is_retryable());
        }
    }
}

#[tokio::test]
async fn an_invalid_body_is_a_protocol_error() {
    for body in [
        "<html><title>Sign in</title></html>",
        "Internal Server Error",
        "data: {oops}\n\n",
    ] {
        let script = Script::new([body], End::Clean);
        let (_, error) = read_script(&layer(), script).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Protocol, "{body}");
    }
    let (_, error) = read_script(&layer(), Script::new([""], End::Clean)).await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Truncated);
}

#[tokio::test]
async fn the_key_is_never_shown() {
    let echo = format!(r#"{{"message":"bad key {CANARY}","code":"{CANARY}"}}"#);
    let bodies = [
        format!("data: {{\"type\":\"error\",\"error\":{echo}}}\n\n"),
        format!(
            "data: {{\"type\":\"response.failed\",\"response\":{{\"status\":\"failed\",\"error\":{echo}}}}}\n\n"
        ),
        format!("{{\"object\":\"response\",\"status\":\"failed\",\"output\":[],\"error\":{echo}}}"),
        format!("{{\"error\":{echo}}}"),
        format!("data: {CANARY}\n\n"),
    ];
    for body in &bodies {
        for status in [200, 401] {
            let mut response = http::Response::new(Script::new([body], End::Clean));
            *response.status_mut() = status.try_into().unwrap();
            let error = call(&layer(), response).await.unwrap_err();
            let shown = format!(
                "{error} {error:?} {error:#?} {:?} {:?}",
                error.source(),
                error.code()
            );
            assert!(!shown.contains(CANARY), "{shown}");
        }
    }
    let shown = format!("{:?} {:#?}", layer(), layer());
    assert!(!shown.contains(CANARY), "{shown}");
}
