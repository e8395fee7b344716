//! Recorded streams of real services, decoded by the complete provider layer and by the bare
//! decoder.
//!
//! The recordings come from third parties and are not part of this repository; they are read from
//! [`concentric_replay::default_dir`] on demand. The works use the streams that the vendor's own SDK read
//! successfully, except those that are one JSON array or have several choices. Each frame of the
//! body is one event.

use super::{Wire, Work, work};
use concentric_replay::{self as replay, Recording};
use serde_json::Value;

/// A service with recorded streams.
struct Service {
    api: &'static str,
    /// The prefix of the SDK's name in the recordings.
    sdk: &'static str,
    media_type: &'static str,
    /// Whether a line ends a frame.
    ends: fn(line: &[u8]) -> bool,
}

const fn events(api: &'static str, sdk: &'static str) -> Service {
    Service {
        api,
        sdk,
        media_type: "text/event-stream",
        ends: |line| line.trim_ascii().is_empty(),
    }
}

impl Service {
    fn load(&self) -> Vec<Wire> {
        let Some(dir) = replay::default_dir() else {
            return Vec::new();
        };
        let found = replay::load(&dir, self.api).expect("the recordings can be read");
        found.iter().filter_map(|one| self.wire(one)).collect()
    }

    fn wire(&self, recording: &Recording) -> Option<Wire> {
        let expected = recording.expected.as_ref()?;
        let field = |name: &str| expected.get(name).and_then(Value::as_str);
        let is_json = recording
            .headers
            .get(http::header::CONTENT_TYPE)
            .is_some_and(|media_type| media_type.as_bytes().starts_with(b"application/json"));
        let is_read = recording.stream
            && field("trust") == Some("full")
            && field("outcome") == Some("ok")
            && field("oracle").is_some_and(|oracle| oracle.starts_with(self.sdk));
        if !is_read || is_json || recording.has("multi-choice") {
            return None;
        }
        let mut frames = Vec::new();
        let mut start = 0;
        let mut end = 0;
        for line in recording.body.split_inclusive(|byte| *byte == b'\n') {
            end += line.len();
            if (self.ends)(line) || end == recording.body.len() {
                frames.push(recording.body.slice(start..end));
                start = end;
            }
        }
        Some(Wire {
            media_type: self.media_type,
            frames,
            text: field("text").map_or(0, str::len),
        })
    }
}

macro_rules! service {
    ($name:ident, $service:expr, $layer:path, $bare:path) => {
        mod $name {
            use super::*;
            use std::sync::LazyLock;

            pub(super) const SERVICE: Service = $service;

            static WIRES: LazyLock<Vec<Wire>> = LazyLock::new(|| SERVICE.load());

            pub(super) fn wires() -> &'static [Wire] {
                &WIRES
            }

            pub(super) fn concentric(count: u64) {
                let layer = $layer();
                for wire in wires() {
                    wire.concentric(&layer, count);
                }
            }

            pub(super) fn bare(count: u64) {
                for wire in wires() {
                    wire.bare(|bytes, take| $bare(bytes, take), count);
                }
            }
        }
    };
}

service!(
    openai,
    events("openai-chat", "openai=="),
    crate::work::codec::layer,
    crate::bare::codec::decode
);
service!(
    anthropic,
    events("anthropic-messages", "anthropic=="),
    crate::work::services::anthropic_layer,
    crate::bare::services::anthropic
);
service!(
    responses,
    events("openai-responses", "openai=="),
    crate::work::services::responses_layer,
    crate::bare::services::responses
);
service!(
    gemini,
    events("gemini-generate", "google-genai=="),
    crate::work::services::gemini_layer,
    crate::bare::services::gemini
);
service!(
    ollama,
    Service {
        api: "ollama-chat",
        sdk: "ollama==",
        media_type: "application/x-ndjson",
        ends: |_| true,
    },
    crate::work::services::ollama_layer,
    crate::bare::services::ollama
);

/// Returns the works for which there are recordings.
pub(crate) fn all() -> Vec<Work> {
    macro_rules! recorded {
        ($module:ident, $name:expr, $title:expr) => {{
            let events = $module::wires().iter().map(|wire| wire.frames.len() as u64);
            work(
                $name,
                $title,
                events.sum(),
                $module::bare,
                $module::concentric,
            )
            .reads($module::SERVICE.api, $module::wires)
        }};
    }
    let mut all = vec![
        recorded!(openai, "decode-recorded", "a recorded OpenAI event"),
        recorded!(
            anthropic,
            "decode-anthropic-recorded",
            "a recorded Anthropic event"
        ),
        recorded!(
            responses,
            "decode-responses-recorded",
            "a recorded Responses event"
        ),
        recorded!(gemini, "decode-gemini-recorded", "a recorded Gemini event"),
        recorded!(ollama, "decode-ollama-recorded", "a recorded Ollama line"),
    ];
    all.retain(|work| work.ops > 0);
    all
}
