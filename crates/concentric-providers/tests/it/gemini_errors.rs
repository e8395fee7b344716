//! Errors of Google's services, which must never contain the key.

use crate::common::{CANARY, End, Script, call, gemini::layer, response};
use concentric_core::{Error, ErrorKind};
use serde_json::json;
use std::time::Duration;

async fn refused(status: u16, headers: &[(&'static str, &str)], body: &str) -> Error {
    call(&layer(), response(status, headers, body))
        .await
        .unwrap_err()
}

fn status(code: u16, status: &str, message: &str, details: &serde_json::Value) -> String {
    json!({"error": {"code": code, "message": message, "status": status, "details": details}})
        .to_string()
}

#[tokio::test]
async fn every_status_is_typed() {
    let info = |reason: &str| json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}]);
    let none = json!([]);
    let cases = [
        (
            400,
            status(400, "INVALID_ARGUMENT", "no", &none),
            ErrorKind::InvalidRequest,
        ),
        (
            400,
            status(400, "INVALID_ARGUMENT", "no", &info("API_KEY_INVALID")),
            ErrorKind::Authentication,
        ),
        (
            400,
            status(
                400,
                "INVALID_ARGUMENT",
                "The input token count (9) exceeds the maximum number of tokens allowed (8).",
                &none,
            ),
            ErrorKind::ContextWindow,
        ),
        (
            400,
            status(400, "FAILED_PRECONDITION", "no", &none),
            ErrorKind::InvalidRequest,
        ),
        (
            401,
            status(401, "UNAUTHENTICATED", "no", &info("ACCESS_TOKEN_EXPIRED")),
            ErrorKind::Authentication,
        ),
        (
            403,
            status(403, "PERMISSION_DENIED", "no", &info("SERVICE_DISABLED")),
            ErrorKind::Permission,
        ),
        (
            404,
            status(404, "NOT_FOUND", "no", &none),
            ErrorKind::NotFound,
        ),
        (
            429,
            status(
                429,
                "RESOURCE_EXHAUSTED",
                "no",
                &info("RATE_LIMIT_EXCEEDED"),
            ),
            ErrorKind::RateLimited,
        ),
        (500, status(500, "INTERNAL", "no", &none), ErrorKind::Server),
        (
            503,
            status(503, "UNAVAILABLE", "no", &none),
            ErrorKind::Overloaded,
        ),
        (529, String::new(), ErrorKind::Overloaded),
        (
            504,
            status(504, "DEADLINE_EXCEEDED", "no", &none),
            ErrorKind::Timeout,
        ),
        (
            404,
            "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>".to_owned(),
            ErrorKind::NotFound,
        ),
        (502, String::new(), ErrorKind::Server),
        // The format of an error in a JSON stream.
        (
            429,
            format!("[{}]", status(429, "RESOURCE_EXHAUSTED", "no", &none)),
            ErrorKind::RateLimited,
        ),
    ];
    for (status, body, kind) in cases {
        let error = refused(status, &[], &body).await;
        assert_eq!(error.kind(), kind, "{body}");
        assert_eq!(error.status(), Some(status));
        assert_eq!(error.provider(), Some("gcp.gemini"));
        if body.contains("error\":") {
            assert_eq!(error.code(), Some(&*status.to_string()));
            assert!(body.contains(error.error_type().unwrap()), "{error:?}");
        }
    }
}

#[tokio::test]
async fn the_retry_delay_is_read_from_the_response() {
    let retry = |delay: &str| {
        let details = json!([
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
        ]);
        status(429, "RESOURCE_EXHAUSTED", "no", &details)
    };
    type Headers<'a> = &'a [(&'static str, &'a str)];
    let cases: &[(Headers<'_>, &str, Option<Duration>)] = &[
        (&[], &retry("34.5s"), Some(Duration::from_millis(34_500))),
        (&[], &retry("0s"), Some(Duration::ZERO)),
        (
            &[],
            &retry("51820.638305887s"),
            Some(Duration::from_secs(3600)),
        ),
        (&[], &retry("1e999s"), Some(Duration::from_secs(3600))),
        (&[], &retry("-3s"), Some(Duration::ZERO)),
        (&[], &retry("soon"), None),
        (
            &[("retry-after", "7")],
            &retry("3s"),
            Some(Duration::from_secs(7)),
        ),
        (
            &[("retry-after", "3")],
            &retry("7s"),
            Some(Duration::from_secs(7)),
        ),
        (&[("retry-after", "7")], "{}", Some(Duration::from_secs(7))),
        (
            &[("retry-after-ms", "1500")],
            "",
            Some(Duration::from_millis(1500)),
        ),
        (&[], "{}", None),
    ];
    for (headers, body, after) in cases {
        let error = refused(429, headers, body).await;
        assert_eq!(error.retry_after(), *after, "{headers:?} {body}");
        assert!(error.is_retryable());
    }
    // Also within a response.
    let body = format!("data: {}\n\n", retry("2s"));
    let response = http::Response::new(Script::new([body], End::Clean));
    let error = call(&layer(), response).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    assert_eq!(error.kind(), ErrorKind::RateLimited);
}

#[tokio::test]
async fn the_key_is_never_shown() {
    let layer = layer();
    let said = [
        status(
            400,
            CANARY,
            &format!("bad key {CANARY}"),
            &json!([{"reason": CANARY}]),
        ),
        format!(
            r#"{{"promptFeedback":{{"blockReason":"{CANARY}","blockReasonMessage":"{CANARY}"}}}}"#
        ),
    ];
    for body in said {
        for status in [200, 400] {
            let mut response = http::Response::new(Script::new([&body], End::Clean));
            *response.status_mut() = status.try_into().unwrap();
            let error = call(&layer, response).await.unwrap_err();
            let shown = format!(
                "{layer:?} {error} {error:?} {:?} {:?}",
                error.code(),
                error.error_type()
            );
            assert!(!shown.contains(CANARY), "{shown}");
        }
    }
}
