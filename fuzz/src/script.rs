use arbitrary::Arbitrary;
use serde_json::{Value, json};
use std::fmt::Write;

/// How an API says something: the chunks of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    api: &'static str,
}

impl Script {
    /// The APIs whose words are known.
    pub const ALL: &'static [Self] = &[Self { api: "openai-chat" }];

    /// The API.
    pub const fn api(self) -> &'static str {
        self.api
    }

    /// One of those.
    pub fn pick(which: u8) -> Self {
        Self::ALL[usize::from(which) % Self::ALL.len()]
    }

    /// An answer that is `texts`.
    pub fn texts<'a>(self, texts: impl IntoIterator<Item = &'a str>) -> Vec<Value> {
        let mut chunks = Vec::new();
        for text in texts {
            chunks.push(json!({"choices": [{"index": 0, "delta": {"content": text}}]}));
        }
        chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
        chunks
    }

    /// An answer that makes calls, each a name and the pieces of its arguments. `order` says which
    /// call's next piece comes next, where the API lets several be written at once.
    pub fn calls(self, calls: &[(String, Vec<String>)], order: &[u8]) -> Vec<Value> {
        let mut chunks = Vec::new();
        let mut said = vec![0; calls.len()];
        let mut order = order.iter().map(|byte| usize::from(*byte));
        let delta = |call: Value| {
            let delta = json!({"tool_calls": [call]});
            json!({"choices": [{"index": 0, "delta": delta}]})
        };
        for (index, (name, _)) in calls.iter().enumerate() {
            let function = json!({"name": name, "arguments": ""});
            chunks.push(delta(json!({
                "index": index, "id": format!("id_{index}"), "type": "function", "function": function,
            })));
        }
        loop {
            let open: Vec<usize> = (0..calls.len())
                .filter(|at| said[*at] < calls[*at].1.len())
                .collect();
            if open.is_empty() {
                break;
            }
            let index = open[order.next().unwrap_or(0) % open.len()];
            let piece = &calls[index].1[said[index]];
            said[index] += 1;
            chunks.push(delta(
                json!({"index": index, "function": {"arguments": piece}}),
            ));
        }
        chunks.push(json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}));
        chunks
    }
}

/// How JSON is written.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Style {
    /// In one line.
    Compact,
    /// In several.
    Pretty,
    /// In one line of ASCII.
    Ascii,
}

impl Style {
    /// Writes `value`.
    pub fn write(self, value: &Value) -> String {
        match self {
            Self::Compact => value.to_string(),
            Self::Pretty => format!("{value:#}"),
            Self::Ascii => {
                let mut ascii = String::new();
                for c in value.to_string().chars() {
                    if c.is_ascii() {
                        ascii.push(c);
                        continue;
                    }
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(ascii, "\\u{unit:04x}");
                    }
                }
                ascii
            }
        }
    }
}
