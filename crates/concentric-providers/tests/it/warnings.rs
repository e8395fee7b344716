//! The warnings of a provider layer when it is put around a service.

use concentric_providers::{ApiKey, OllamaLayer, OpenAiLayer};
use concentric_test::LogCapture;
use tower::Layer;

/// A key that must not appear in the log.
const CANARY: &str = "canary-7f3a9d51e0c84b26";

#[test]
fn a_key_without_tls_causes_a_warning() {
    let (log, _guard) = LogCapture::of_thread("concentric_providers");
    let warned = |url: &str, key: Option<ApiKey>, header: bool| {
        let mut layer = OpenAiLayer::compatible(url, "m", key);
        if header {
            layer = layer.header("x-key", CANARY);
        }
        let _ = layer.layer(());
        log.take()
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
    assert!(log.take().is_empty());
}
