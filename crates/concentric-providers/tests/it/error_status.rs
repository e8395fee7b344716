//! Responses with an error status.

use crate::common::*;
use concentric_core::{Error, ErrorKind};
use std::time::Duration;

async fn error(response: http::Response<Script>) -> Error {
    match call(&layer(), response).await {
        Ok(_) => panic!("an answer"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn the_longest_retry_delay_wins() {
    for values in [["1", "9"], ["9", "1"], ["later", "9"], ["9", "-1"]] {
        let mut response = response(429, &[], "{}");
        for value in values {
            response
                .headers_mut()
                .append("retry-after", value.parse().unwrap());
        }
        let error = error(response).await;
        assert_eq!(
            error.retry_after(),
            Some(Duration::from_secs(9)),
            "{values:?}"
        );
    }
    let mut response = response(429, &[], "{}");
    for value in ["100", "2000"] {
        response
            .headers_mut()
            .append("retry-after-ms", value.parse().unwrap());
    }
    assert_eq!(
        error(response).await.retry_after(),
        Some(Duration::from_secs(2))
    );
}

#[tokio::test]
async fn the_providers_advice_about_a_retry_is_read() {
    let cases = [
        ("true", Some(true)),
        ("false", Some(false)),
        ("perhaps", None),
    ];
    for (value, advice) in cases {
        let mut response = response(429, &[], "{}");
        let value = value.parse().unwrap();
        response.headers_mut().insert("x-should-retry", value);
        assert_eq!(error(response).await.advice(), advice);
    }
    assert_eq!(error(response(429, &[], "{}")).await.advice(), None);
}

#[tokio::test]
async fn conflicts_and_early_requests_are_retryable() {
    for status in [409, 425] {
        let error = error(response(status, &[], r#"{"error":{"message":"locked"}}"#)).await;
        assert_eq!(error.kind(), ErrorKind::Server, "{status}");
        assert_eq!(error.status(), Some(status));
        assert!(error.is_retryable());
        assert!(error.message().contains("locked"));
    }
    // A code in the body takes precedence.
    let body = r#"{"error":{"message":"no","code":"insufficient_quota"}}"#;
    assert_eq!(
        error(response(409, &[], body)).await.kind(),
        ErrorKind::Quota
    );
    assert!(!error(response(422, &[], "{}")).await.is_retryable());
}

#[tokio::test]
async fn not_every_3xx_status_is_a_redirect() {
    let moved = error(response(302, &[], "")).await;
    assert!(moved.message().contains("redirects"), "{moved}");
    let same = error(response(304, &[], "")).await;
    assert_eq!(same.kind(), ErrorKind::Protocol);
    assert_eq!(same.status(), Some(304));
    assert!(!same.message().contains("redirect"), "{same}");
    assert!(same.message().contains("Not Modified"), "{same}");
}
