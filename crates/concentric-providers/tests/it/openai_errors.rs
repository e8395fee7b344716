//! Errors of chat completions services, which must never contain the key.

use crate::common::*;
use concentric_core::{ChatRequest, ErrorKind};
use concentric_providers::{ApiKey, OpenAiLayer};
use std::{convert::Infallible, error::Error as _, io, time::Duration};
use tower::{Layer, ServiceExt, service_fn};

async fn refused(
    status: u16,
    headers: &[(&'static str, &str)],
    body: &str,
) -> concentric_core::Error {
    call(&layer(), response(status, headers, body))
        .await
        .unwrap_err()
}

#[tokio::test]
async fn every_status_is_typed() {
    let long_page = format!("<html><body>{}</body></html>", "oops ".repeat(100_000));
    let cases: &[(u16, &str, ErrorKind, &str)] = &[
        (
            401,
            r#"{"error":{"message":"no","code":"invalid_api_key"}}"#,
            ErrorKind::Authentication,
            "no",
        ),
        (
            403,
            r#"{"error":{"message":"no"}}"#,
            ErrorKind::Permission,
            "no",
        ),
        (404, r#"{"error":"no"}"#, ErrorKind::NotFound, "no"),
        (
            400,
            r#"{"error":{"message":"no"}}"#,
            ErrorKind::InvalidRequest,
            "no",
        ),
        (
            400,
            r#"{"error":{"message":"no","code":"context_length_exceeded"}}"#,
            ErrorKind::ContextWindow,
            "no",
        ),
        (
            400,
            r#"{"message":"This model's maximum context length is 9"}"#,
            ErrorKind::ContextWindow,
            "This model's",
        ),
        (
            400,
            r#"{"error":{"message":"no","code":"content_filter"}}"#,
            ErrorKind::ContentFilter,
            "no",
        ),
        (
            422,
            r#"{"detail":[{"msg":"no"}]}"#,
            ErrorKind::InvalidRequest,
            "no",
        ),
        (
            429,
            r#"{"error":{"message":"no","code":"insufficient_quota"}}"#,
            ErrorKind::Quota,
            "no",
        ),
        (429, "slow down", ErrorKind::RateLimited, "slow down"),
        (402, "{}", ErrorKind::Quota, "{}"),
        (
            413,
            "",
            ErrorKind::TooLarge,
            "Payload Too Large, and no body",
        ),
        (
            500,
            "",
            ErrorKind::Server,
            "Internal Server Error, and no body",
        ),
        (
            502,
            "<html><head><title>502 Bad Gateway</title>",
            ErrorKind::Server,
            "an HTML page: 502 Bad Gateway",
        ),
        (502, &long_page, ErrorKind::Server, "an HTML page: oops"),
        (503, "{", ErrorKind::Overloaded, "{"),
        (
            529,
            r#"{"error":{"type":"overloaded_error","message":"no"}}"#,
            ErrorKind::Overloaded,
            "no",
        ),
        (504, "\0\u{1}binary", ErrorKind::Timeout, "binary"),
        (302, "", ErrorKind::Protocol, "the provider redirected"),
    ];
    for (status, body, kind, message) in cases {
        let error = refused(*status, &[("x-request-id", "req_1")], body).await;
        assert_eq!(error.kind(), *kind, "{status} {body:.80}");
        assert_eq!(error.status(), Some(*status));
        assert_eq!(error.request_id(), Some("req_1"));
        assert_eq!(error.provider(), Some("openai"));
        assert!(error.message().starts_with(message), "{error}");
        assert!(error.message().len() < 1100 && !error.to_string().contains('\n'));
    }
}

#[tokio::test]
async fn the_retry_delay_is_read_from_the_response() {
    let error = refused(429, &[("retry-after", "7")], "{}").await;
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    assert!(error.is_retryable());
    let error = refused(503, &[("retry-after", "999999999")], "{}").await;
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
}

#[tokio::test]
async fn reading_an_error_body_is_limited_in_time() {
    let mut response = http::Response::new(Script::new(["x".repeat(1 << 20)], End::Silent));
    *response.status_mut() = http::StatusCode::BAD_REQUEST;
    let error = call(&layer(), response).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
}

#[tokio::test]
async fn invalid_settings_fail_poll_ready() {
    let http = service_fn(|_| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(Script::new([""], End::Clean)))
    });
    for layer in [
        layer().base_url("not a url"),
        layer().header("bad name", "x"),
        layer().header("name", "bad\nvalue"),
        OpenAiLayer::new("m", ApiKey::new("bad\nkey")),
    ] {
        let error = layer
            .layer(http)
            .oneshot(ChatRequest::user("hi"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(!error.to_string().contains("bad\n"));
    }
    let error = ApiKey::from_env("CONCENTRIC_NO_SUCH_VARIABLE").unwrap_err();
    assert!(
        error
            .message()
            .contains("CONCENTRIC_NO_SUCH_VARIABLE is not set"),
        "{error}"
    );
}

#[tokio::test]
async fn the_key_is_never_shown() {
    let layer = layer()
        .header("x-other-secret", CANARY)
        .base_url(format!("https://h.test/?key={CANARY}"));
    let mut shown = vec![format!("{layer:?} {layer:#?} {:?}", ApiKey::new(CANARY))];
    let with_user = layer
        .clone()
        .base_url(format!("https://u:{CANARY}@h.test/"));
    let refused = call(&with_user, response(200, &[], "")).await.unwrap_err();
    shown.push(format!("{with_user:?} {refused} {refused:?}"));
    let echo = format!(
        r#"{{"error":{{"message":"bad key {CANARY}, sk-{CANARY}","code":"{CANARY}","type":"{CANARY}"}}}}"#
    );
    let bodies = [
        echo.clone(),
        format!("<p>{CANARY}</p>"),
        CANARY.to_owned(),
        format!("data: {echo}\n\n"),
        format!("data: {CANARY}\n\n"),
    ];
    for body in &bodies {
        for status in [200, 302, 401, 500] {
            let mut response = http::Response::new(Script::new([body], End::Clean));
            *response.status_mut() = status.try_into().unwrap();
            response.headers_mut().insert(
                "location",
                format!("https://x.test/{CANARY}").parse().unwrap(),
            );
            match call(&layer, response).await {
                Ok(response) => panic!("{response:?}"),
                Err(error) => {
                    shown.push(format!("{error} {error:?} {error:#?} {:?}", error.source()));
                    shown.push(format!("{:?} {:?}", error.code(), error.error_type()));
                }
            }
        }
    }
    // The service, its future, its body, and the request that it sends.
    let shown_requests = std::sync::Mutex::new(Vec::new());
    let http = service_fn(|request: http::Request<_>| {
        shown_requests
            .lock()
            .unwrap()
            .push(format!("{:?}", request.headers()));
        let script = Script::new([delta(r#"{"content":"a"}"#)], End::Silent);
        std::future::ready(Ok::<_, Infallible>(http::Response::new(script)))
    });
    let service = layer.layer(http);
    let future = service.clone().oneshot(ChatRequest::user("hi"));
    shown.push(format!("{future:?}"));
    let response = future.await.unwrap();
    shown.push(format!("{response:?}"));
    shown.extend(shown_requests.into_inner().unwrap());
    // Errors of the HTTP service.
    for kind in [io::ErrorKind::Other, io::ErrorKind::ConnectionReset] {
        let http = service_fn(|_: http::Request<_>| {
            let error = io::Error::new(kind, format!("no: {CANARY}"));
            std::future::ready(Err::<http::Response<Script>, _>(error))
        });
        let error = layer
            .layer(http)
            .oneshot(ChatRequest::user("hi"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection);
        let source = error.source().map(|source| format!("{source:?}"));
        shown.push(format!("{error} {error:#} {error:?} {source:?}"));
    }
    for text in shown {
        assert!(!text.contains(CANARY), "{text}");
    }
}

#[tokio::test]
async fn a_header_of_the_layer_is_never_shown() {
    const TOKEN: &str = "gateway\"token\"of\\mine";
    let layer = layer()
        .header("x-gateway-token", TOKEN)
        .header("proxy-authorization", "Bearer of-the-proxy");
    let message = format!("no: {TOKEN}, of-the-proxy");
    let nested = serde_json::json!({ "error": message }).to_string();
    let bodies = [
        serde_json::json!({"error": {"message": message, "code": TOKEN}}).to_string(),
        serde_json::json!({"error": {"message": nested, "type": TOKEN}}).to_string(),
        format!("{nested} and more"),
        message.clone(),
    ];
    let mut errors = Vec::new();
    for body in &bodies {
        errors.push(call(&layer, response(401, &[], body)).await.unwrap_err());
    }
    // Errors that are reported within a response, and errors of the HTTP service.
    let answer = call(
        &layer,
        response(200, &[], &format!("data: {}\n\n", bodies[0])),
    );
    errors.push(answer.await.unwrap_err());
    let http = service_fn(|_: http::Request<_>| {
        let error = io::Error::other(message.clone());
        std::future::ready(Err::<http::Response<Script>, _>(error))
    });
    let answer = layer.layer(http).oneshot(ChatRequest::user("hi"));
    errors.push(answer.await.unwrap_err());
    for error in errors {
        let shown = format!(
            "{error} {error:#} {error:?} {:?} {:?}",
            error.code(),
            error.error_type()
        );
        assert!(shown.contains("no: [REDACTED], [REDACTED]"), "{shown}");
        assert!(!shown.contains("of\\mine"), "{shown}");
        assert!(!shown.contains("of\\\\mine"), "{shown}");
        assert!(!shown.contains("of-the-proxy"), "{shown}");
    }
}
