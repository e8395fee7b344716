//! What a provider layer warns of when it is put around a service.
//!
//! A program of its own with one test: whether an event is logged is known once for all threads, and
//! a subscriber of one thread may miss an event that another thread has come to first.
#![cfg(feature = "full")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use concentric_providers::{ApiKey, OllamaLayer, OpenAiLayer};
use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};
use tower::Layer;
use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// A key that must not appear in the log.
const CANARY: &str = "canary-7f3a9d51e0c84b26";

/// The warnings of this process.
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
fn a_key_without_tls_causes_a_warning() {
    let warnings = Warnings::default();
    tracing::subscriber::set_global_default(warnings.clone()).unwrap();
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
