//! Helpers for the tests of Gemini.

use super::{CANARY, End, Script, read_script};
use concentric_core::{Error, Event};
use concentric_providers::{ApiKey, GeminiLayer};

pub fn layer() -> GeminiLayer {
    GeminiLayer::new("gemini-3-test", ApiKey::new(CANARY))
}

pub async fn read(body: impl AsRef<[u8]>) -> (Vec<Event>, Option<Error>) {
    read_script(&layer(), Script::new([body], End::Clean)).await
}

/// An event of a stream whose candidate has these parts.
pub fn parts(parts: &str) -> String {
    format!(
        "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{parts}],\"role\":\"model\"}},\"index\":0}}]}}\r\n\r\n"
    )
}

pub fn text(text: &str) -> String {
    parts(&format!(r#"{{"text":"{text}"}}"#))
}

pub fn finish(reason: &str) -> String {
    format!(
        "data: {{\"candidates\":[{{\"finishReason\":\"{reason}\",\"index\":0}}],\"usageMetadata\":{{\"promptTokenCount\":3,\"candidatesTokenCount\":2,\"totalTokenCount\":5}}}}\r\n\r\n"
    )
}
