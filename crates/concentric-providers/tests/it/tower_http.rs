//! tower-http's layers below a provider.

use bytes::Bytes;
use concentric_core::{ChatRequest, Error, ErrorKind};
use concentric_providers::{ApiKey, OpenAiLayer};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use std::{convert::Infallible, time::Duration};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_http::{
    sensitive_headers::SetSensitiveHeadersLayer, timeout::TimeoutLayer, trace::TraceLayer,
};

const ANSWER: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: [DONE]\n\n",
);

/// Calls a model whose upstream responds after `delay`.
async fn ask(delay: Duration) -> Result<String, Error> {
    let upstream = service_fn(move |request: Request<Full<Bytes>>| async move {
        // The key is marked as sensitive for layers that log the request.
        let key = request.headers().get(header::AUTHORIZATION).unwrap();
        assert!(key.is_sensitive());
        assert_eq!(key, "Bearer secret");
        tokio::time::sleep(delay).await;
        let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
        Ok::<_, Infallible>(response.body(Full::from(ANSWER)).unwrap())
    });
    let model = ServiceBuilder::new()
        .layer(OpenAiLayer::new("m", ApiKey::new("secret")))
        .layer(SetSensitiveHeadersLayer::new([header::AUTHORIZATION]))
        .layer(TraceLayer::new_for_http())
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            Duration::from_secs(5),
        ))
        .service(upstream);
    model.oneshot(ChatRequest::user("hi")).await?.text().await
}

#[tokio::test(start_paused = true)]
async fn a_response_passes_through() {
    assert_eq!(ask(Duration::from_secs(1)).await.unwrap(), "hi");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_a_typed_error() {
    let error = ask(Duration::from_secs(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.status(), Some(504));
    assert!(error.is_retryable());
}
