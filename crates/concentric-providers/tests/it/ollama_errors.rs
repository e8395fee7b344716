//! Errors of Ollama.

use crate::common::*;
use concentric_core::{ChatRequest, Error, ErrorKind};
use concentric_providers::{ApiKey, OllamaLayer};
use std::time::Duration;

async fn refused(status: u16, headers: &[(&'static str, &str)], body: &str) -> Error {
    let layer = OllamaLayer::with_host("", "m", Some(ApiKey::new(CANARY)));
    let response = response(status, headers, body);
    let answer = ask(&layer, ChatRequest::user("hi"), response).await;
    drain(answer).await.1.unwrap()
}

#[tokio::test]
async fn every_status_is_typed() {
    let cases: &[(u16, &str, ErrorKind, &str)] = &[
        (
            400,
            r#"{"error":"\"m\" does not support tools"}"#,
            ErrorKind::InvalidRequest,
            "\"m\" does",
        ),
        (
            401,
            r#"{"error":"unauthorized","signin_url":"https://x.test"}"#,
            ErrorKind::Authentication,
            "unauthorized",
        ),
        (
            404,
            r#"{"error":"model 'm' not found"}"#,
            ErrorKind::NotFound,
            "model 'm'",
        ),
        (
            429,
            r#"{"StatusCode":429,"Status":"","error":"slow down"}"#,
            ErrorKind::RateLimited,
            "slow down",
        ),
        (
            500,
            r#"{"error":"it broke"}"#,
            ErrorKind::Server,
            "it broke",
        ),
        (
            500,
            "",
            ErrorKind::Server,
            "Internal Server Error, and no body",
        ),
        (
            502,
            "<html><title>502 Bad Gateway</title></html>",
            ErrorKind::Server,
            "an HTML page: 502",
        ),
        (
            503,
            r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#,
            ErrorKind::Overloaded,
            "server busy",
        ),
    ];
    for (status, body, kind, message) in cases {
        let error = refused(*status, &[], body).await;
        assert_eq!(error.kind(), *kind, "{body}");
        assert_eq!(error.status(), Some(*status));
        assert_eq!(error.provider(), Some("ollama"));
        assert!(error.message().starts_with(message), "{error}");
    }
}

#[tokio::test]
async fn the_retry_delay_is_read_from_the_response() {
    let error = refused(429, &[("retry-after", "7")], "{}").await;
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    assert!(error.is_retryable());
}

#[tokio::test]
async fn an_error_line_within_a_response_is_typed() {
    let first = "{\"message\":{\"content\":\"a\"},\"done\":false}\n";
    for before in ["", first] {
        let error = refused(200, &[], &format!("{before}{{\"error\":\"it broke\"}}\n")).await;
        assert_eq!(error.kind(), ErrorKind::Server);
        assert_eq!(error.message(), "it broke");
        let error = refused(
            200,
            &[],
            &format!("{before}{{\"error\":{{\"message\":\"no\",\"code\":429}}}}\n"),
        )
        .await;
        assert_eq!(
            (error.kind(), error.status()),
            (ErrorKind::RateLimited, Some(429))
        );
    }
    let error = refused(200, &[], "event: error\ndata: {\"x\":1}\n\n").await;
    assert_eq!(error.kind(), ErrorKind::Server);
    let error = refused(200, &[], "<html>Sign in</html>").await;
    assert_eq!(error.kind(), ErrorKind::Protocol);
    let error = refused(302, &[("location", "https://x.test")], "").await;
    assert_eq!(error.kind(), ErrorKind::Protocol);
}

#[tokio::test]
async fn the_key_is_never_shown() {
    for status in [200, 401, 500] {
        let error = refused(status, &[], &format!("{{\"error\":\"bad key {CANARY}\"}}")).await;
        assert!(!format!("{error} {error:?}").contains(CANARY));
    }
    let layer = OllamaLayer::with_host("", "m", Some(ApiKey::new(CANARY)));
    assert!(!format!("{layer:?}").contains(CANARY));
}
