//! The URL of a request, and its key.

use crate::common::*;
use concentric_core::{ChatRequest, Error, ErrorKind};
use concentric_providers::{ApiKey, OpenAiLayer};
use tower::{Layer, ServiceExt};

async fn unready(layer: OpenAiLayer) -> Error {
    let mut model = layer.layer(Http::new(response(200, &[], "")));
    model.ready().await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn an_invalid_base_url_is_rejected() {
    for url in [
        "http://:80",
        "http://a.test:99999/v1",
        "https://a.test:0",
        "http://a.test:65536/v1",
        "http://u:p@a.test/v1",
        "http://[::1]:70000",
    ] {
        let error = unready(OpenAiLayer::compatible(url, "m", None)).await;
        assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
    }
    for url in [
        "http://a.test:65535/v1",
        "http://[::1]:8080",
        "https://a.test",
    ] {
        let layer = OpenAiLayer::compatible(url, "m", None);
        let (parts, _) = sent_by(&layer, ChatRequest::user("hi")).await;
        assert!(parts.uri.to_string().starts_with(url));
    }
}

#[tokio::test]
async fn white_space_around_a_key_is_removed() {
    let padded = || format!(" \t{CANARY}\r\n");
    for key in [ApiKey::new(padded()), ApiKey::from_fn(move || Ok(padded()))] {
        let layer = OpenAiLayer::new("m", key);
        let (parts, _) = sent_by(&layer, ChatRequest::user("hi")).await;
        let sent = parts.headers["authorization"].to_str().unwrap();
        assert_eq!(sent, format!("Bearer {CANARY}"));
    }
}

#[tokio::test]
async fn an_empty_key_is_rejected() {
    for key in ["", " ", "\n"] {
        let error = unready(OpenAiLayer::new("m", ApiKey::new(key))).await;
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert_eq!(error.message(), "the provider's key is empty");
        let layer = OpenAiLayer::new("m", ApiKey::from_fn(move || Ok(key)));
        let error = try_sent_by(&layer, ChatRequest::user("hi")).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Authentication);
        assert_eq!(error.message(), "the key for the provider is empty");
    }
}
