//! Where a request goes, and with which key.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use common::*;
use concentric_core::{ChatRequest, Error, ErrorKind};
use concentric_providers::{ApiKey, OllamaLayer, OpenAiLayer};
use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};
use tower::{Layer, ServiceExt};
use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

async fn unready(layer: OpenAiLayer) -> Error {
    let mut model = layer.layer(Http::new(response(200, &[], "")));
    model.ready().await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn a_base_url_that_no_service_can_have_is_refused() {
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
async fn white_space_around_a_key_is_not_sent() {
    let padded = || format!(" \t{CANARY}\r\n");
    for key in [ApiKey::new(padded()), ApiKey::from_fn(move || Ok(padded()))] {
        let layer = OpenAiLayer::new("m", key);
        let (parts, _) = sent_by(&layer, ChatRequest::user("hi")).await;
        let sent = parts.headers["authorization"].to_str().unwrap();
        assert_eq!(sent, format!("Bearer {CANARY}"));
    }
}

#[tokio::test]
async fn an_empty_key_is_refused() {
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

/// The warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("concentric_providers")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_key_without_tls_is_warned_of() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let warned = |url: &str, key: Option<ApiKey>, header: bool| {
        let mut layer = OpenAiLayer::compatible(url, "m", key);
        if header {
            layer = layer.header("x-key", CANARY);
        }
        let _ = layer.layer(());
        std::mem::take(&mut *warnings.0.lock().unwrap())
    };
    let key = || Some(ApiKey::new(CANARY));
    let url = format!("http://a.test:8080/v1?key={CANARY}");
    for lines in [
        warned(&url, key(), false),
        warned("http://10.0.0.1/v1", None, true),
        warned("http://[fe80::1]/v1", key(), false),
    ] {
        let [line] = &lines[..] else {
            panic!("{lines:?}")
        };
        assert!(
            line.contains("without TLS") && !line.contains(CANARY),
            "{line}"
        );
    }
    for lines in [
        warned("http://a.test/v1", None, false),
        warned("https://a.test/v1", key(), true),
        warned("http://localhost:1/v1", key(), true),
        warned("http://a.localhost/v1", key(), true),
        warned("http://127.0.0.2/v1", key(), true),
        warned("http://[::1]:1/v1", key(), true),
        warned("http://[::ffff:127.0.0.1]:1/v1", key(), true),
    ] {
        assert!(lines.is_empty(), "{lines:?}");
    }
    let _ = OllamaLayer::new("m").layer(());
    assert!(warnings.0.lock().unwrap().is_empty());
}
