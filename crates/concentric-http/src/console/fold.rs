//! The events of a run, as a console shows them.

mod chunk;

use std::collections::HashMap;

use memchr::memmem;
use serde::Deserialize;
use serde_json::{Value, json};

use super::html::visible;

/// The number of entries of a run that a page shows, the newest.
pub(super) const ENTRIES: usize = 500;

/// An entry of a run: a text, a call, a result, or another event.
pub(super) struct Entry {
    /// The kind, which is also the class of its element.
    pub(super) kind: &'static str,
    pub(super) title: String,
    pub(super) text: String,
}

/// The counts in the usage of a model, and their names.
const COUNTS: [(&str, &str); 4] = [
    ("inputTokens", "input tokens"),
    ("outputTokens", "output tokens"),
    ("reasoningTokens", "reasoning tokens"),
    ("cachedInputTokens", "cached input tokens"),
];

/// Where a live run is, as far as its events tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum At {
    /// Its model answers.
    Model,
    /// The calls of a round run.
    Round,
}

/// A change of what a page shows.
#[derive(Debug, PartialEq)]
pub(super) enum Op {
    /// Adds an entry. Later changes refer to it by its key; one without a key does not change.
    Add {
        key: Option<String>,
        kind: &'static str,
        title: String,
        text: String,
    },
    /// Adds text to an entry.
    Append { key: String, text: String },
    /// The run is at another place.
    Move(At),
    /// The run has ended.
    End(End),
}

/// The end of a run, as far as its events have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct End {
    /// `ended`, `waiting`, `cancelled` or `failed`.
    pub(super) status: &'static str,
    /// The outcome of a run that ended early, or the code of its error.
    pub(super) outcome: Option<String>,
    /// The usage of each model.
    pub(super) usage: Vec<Value>,
}

/// The fields of events that the console reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    message_id: String,
    tool_call_id: String,
    tool_call_name: String,
    step_name: String,
    role: String,
    delta: Value,
    content: Value,
    messages: Vec<Value>,
    name: String,
    value: Value,
    snapshot: Value,
    metadata: Value,
    outcome: Value,
    usage: Vec<Value>,
    code: String,
    message: String,
    subagent_run_id: Option<String>,
    // Those of `useChat`.
    id: String,
    tool_name: String,
    input: Value,
    output: Value,
    data: Value,
    error_text: String,
    reason: String,
    finish_reason: String,
    message_metadata: Value,
}

/// Reads the changes from frames of a log. Without the right to read it, content is omitted.
pub(super) fn ops(frames: &[u8], content: bool) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let mut at = None;
    for json in events(frames) {
        // The mark at the end of a stream of `useChat` is no event.
        if json == b"[DONE]" {
            continue;
        }
        // The frames are ours, but a value in them may be nested too deeply.
        let changes = match serde_json::from_slice::<Event>(json) {
            Ok(event) => {
                if let Some(now) = event.at().filter(|now| at != Some(*now)) {
                    at = Some(now);
                    ops.push(Op::Move(now));
                }
                event.ops(content)
            }
            Err(_) => vec![Op::Add {
                key: None,
                kind: "event",
                title: "An event that cannot be shown".to_owned(),
                text: String::new(),
            }],
        };
        for op in changes {
            match (ops.last_mut(), op) {
                (
                    Some(Op::Append { key, text }),
                    Op::Append {
                        key: of,
                        text: more,
                    },
                ) if *key == of => {
                    text.push_str(&more);
                }
                (_, op) => ops.push(op),
            }
        }
    }
    ops
}

/// The JSON of each event in frames.
fn events(frames: &[u8]) -> impl Iterator<Item = &[u8]> {
    const DATA: &[u8] = b"data: ";
    let lines = frames.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.strip_prefix(DATA))
}

/// The id of the last event in frames.
pub(super) fn last_id(frames: &[u8]) -> Option<&str> {
    let rest = match memmem::rfind(frames, b"\nid: ") {
        Some(at) => frames.get(at + 5..)?,
        None => frames.strip_prefix(b"id: ")?,
    };
    let line = rest.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line).ok()
}

/// The end of a run that a log has.
pub(super) fn end(terminal: &[u8]) -> Option<End> {
    let event: Event = serde_json::from_slice(terminal).ok()?;
    event.ops(false).into_iter().find_map(|op| match op {
        Op::End(end) => Some(end),
        _ => None,
    })
}

/// What the changes result in.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) all: Vec<Entry>,
    pub(super) at: Option<At>,
    pub(super) end: Option<End>,
    by_key: HashMap<String, usize>,
}

impl Entries {
    pub(super) fn apply(&mut self, ops: Vec<Op>) {
        for op in ops {
            match op {
                Op::Add {
                    key,
                    kind,
                    title,
                    text,
                } => {
                    if let Some(key) = key {
                        self.by_key.insert(key, self.all.len());
                    }
                    self.all.push(Entry { kind, title, text });
                }
                Op::Append { key, text } => {
                    let at = self.by_key.get(&key);
                    if let Some(entry) = at.and_then(|at| self.all.get_mut(*at)) {
                        entry.text.push_str(&text);
                    }
                }
                Op::Move(at) => self.at = Some(at),
                Op::End(end) => self.end = Some(end),
            }
        }
    }

    /// The keys of the entries that a page shows, whose texts may continue.
    pub(super) fn keys(&self) -> HashMap<usize, &str> {
        self.by_key
            .iter()
            .map(|(key, at)| (*at, key.as_str()))
            .collect()
    }
}

impl Op {
    /// The bytes of its text.
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Add { text, .. } | Self::Append { text, .. } => text.len(),
            Self::Move(_) | Self::End(_) => 0,
        }
    }

    /// The form that the script of the page reads.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Add {
                key,
                kind,
                title,
                text,
            } => json!(["add", key, kind, visible(title), visible(text)]),
            Self::Append { key, text } => json!(["append", key, visible(text)]),
            Self::Move(at) => json!(["move", at.as_str(), at.describe()]),
            Self::End(end) => json!(["end", end.status, end.describe()]),
        }
    }
}

impl At {
    /// The name of the place in the page.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Round => "round",
        }
    }

    /// The place in words.
    pub(super) const fn describe(self) -> &'static str {
        match self {
            Self::Model => "the model answers",
            Self::Round => "tools run",
        }
    }
}

impl End {
    /// The end in words.
    pub(super) fn describe(&self) -> String {
        let mut text = match &self.outcome {
            Some(outcome) => format!("{}: {outcome}", self.status),
            None => self.status.to_owned(),
        };
        for (name, words) in COUNTS {
            let counts = self.usage.iter().filter_map(|used| used[name].as_u64());
            let count = counts.fold(0, u64::saturating_add);
            if count > 0 {
                text.push_str(&format!(", {count} {words}"));
            }
        }
        visible(&text)
    }
}

impl Event {
    /// Where the run is from this event on; `None` if the event does not tell. A sub-agent is within a call of its
    /// caller's round.
    fn at(&self) -> Option<At> {
        if self.subagent_run_id.is_some() {
            return None;
        }
        match self.kind.as_str() {
            "STEP_STARTED"
            | "TEXT_MESSAGE_START"
            | "REASONING_MESSAGE_START"
            | "TOOL_CALL_START"
            | "start-step"
            | "text-start"
            | "reasoning-start" => Some(At::Model),
            "TOOL_CALL_END"
            | "TOOL_CALL_RESULT"
            | "tool-input-available"
            | "tool-output-available"
            | "tool-output-error"
            | "tool-output-denied" => Some(At::Round),
            _ => None,
        }
    }

    fn ops(self, content: bool) -> Vec<Op> {
        let shown = |text: String| if content { text } else { String::new() };
        let of = self.subagent_run_id.as_deref();
        let title = |title: &str| match of {
            Some(run) => format!("{title} (sub-agent {run})"),
            None => title.to_owned(),
        };
        let key = |kind: &str, id: &str| format!("{kind} {} {id}", of.unwrap_or_default());
        let add = |key: Option<String>, kind, title: String, text: String| Op::Add {
            key,
            kind,
            title,
            text,
        };
        let append = |key: String, text: String| match text.is_empty() {
            true => Vec::new(),
            false => vec![Op::Append { key, text }],
        };
        match self.kind.as_str() {
            "RUN_STARTED" => vec![add(None, "event", title("Run started"), String::new())],
            "STEP_STARTED" => vec![add(None, "event", title(&self.step_name), String::new())],
            "TEXT_MESSAGE_START" => {
                let key = key("text", &self.message_id);
                vec![add(
                    Some(key),
                    "text",
                    title(&role(&self.role)),
                    hidden(content),
                )]
            }
            "TEXT_MESSAGE_CONTENT" => {
                append(key("text", &self.message_id), shown(text(&self.delta)))
            }
            "REASONING_MESSAGE_START" => {
                let key = key("reasoning", &self.message_id);
                vec![add(
                    Some(key),
                    "reasoning",
                    title("Reasoning"),
                    hidden(content),
                )]
            }
            "REASONING_MESSAGE_CONTENT" => {
                append(key("reasoning", &self.message_id), shown(text(&self.delta)))
            }
            "TOOL_CALL_START" => {
                let key = key("call", &self.tool_call_id);
                let call = format!("Call of {}", self.tool_call_name);
                vec![add(Some(key), "call", title(&call), hidden(content))]
            }
            "TOOL_CALL_ARGS" => append(key("call", &self.tool_call_id), shown(text(&self.delta))),
            "TOOL_CALL_RESULT" => {
                let status = field(&self.metadata, "status").unwrap_or("done");
                let result = format!("Result of {}: {status}", self.tool_call_id);
                let text = shown(text(&self.content)) + &hidden(content);
                vec![add(None, "result", title(&result), text)]
            }
            "MESSAGES_SNAPSHOT" => {
                let messages = self.messages.iter();
                messages
                    .flat_map(|message| snapshot(message, content))
                    .collect()
            }
            "STATE_SNAPSHOT" | "STATE_DELTA" => {
                let value = match self.snapshot.is_null() {
                    true => &self.delta,
                    false => &self.snapshot,
                };
                let value = shown(value.to_string()) + &hidden(content);
                vec![add(None, "event", title("State changed"), value)]
            }
            "CUSTOM" => {
                let value = shown(self.value.to_string()) + &hidden(content);
                vec![add(None, "event", title(&self.name), value)]
            }
            "SUBAGENT_STARTED" => {
                let name = format!("Sub-agent {} started", self.name);
                vec![add(None, "event", title(&name), String::new())]
            }
            "SUBAGENT_FINISHED" => {
                vec![add(None, "event", title("Sub-agent ended"), String::new())]
            }
            "SUBAGENT_ERROR" => {
                let failed = format!("Sub-agent failed: {}", self.code);
                vec![add(None, "error", title(&failed), shown(self.message))]
            }
            "RUN_FINISHED" => {
                let status = match field(&self.outcome, "type") {
                    Some("interrupt") => "waiting",
                    Some("cancelled") => "cancelled",
                    _ => "ended",
                };
                let metadata = |name: &str| field(&self.metadata, name).map(str::to_owned);
                let end = End {
                    status,
                    outcome: metadata("reason").or_else(|| metadata("outcome")),
                    usage: self.usage,
                };
                let entry = add(
                    None,
                    "event",
                    format!("Run {}", end.describe()),
                    String::new(),
                );
                vec![entry, Op::End(end)]
            }
            "RUN_ERROR" => {
                let end = End {
                    status: "failed",
                    outcome: Some(self.code),
                    usage: self.usage,
                };
                let entry = add(
                    None,
                    "error",
                    format!("Run {}", end.describe()),
                    shown(self.message),
                );
                vec![entry, Op::End(end)]
            }
            _ => self.chunk(content),
        }
    }
}

fn hidden(content: bool) -> String {
    match content {
        true => String::new(),
        false => "(content hidden)".to_owned(),
    }
}

/// The changes of a message in a snapshot.
fn snapshot(message: &Value, content: bool) -> Vec<Op> {
    let role = role(message["role"].as_str().unwrap_or_default());
    let add = |kind, title: String, text: String| Op::Add {
        key: None,
        kind,
        title,
        text: if content { text } else { hidden(false) },
    };
    let mut ops = Vec::new();
    let shown = text(&message["content"]);
    match message["toolCallId"].as_str() {
        Some(call) => ops.push(add("result", format!("Result of {call}"), shown)),
        None if !shown.is_empty() => ops.push(add("text", role, shown)),
        None => {}
    }
    for call in message["toolCalls"].as_array().into_iter().flatten() {
        let call = &call["function"];
        let title = format!("Call of {}", call["name"].as_str().unwrap_or_default());
        ops.push(add("call", title, text(&call["arguments"])));
    }
    ops
}

fn role(role: &str) -> String {
    match role {
        "assistant" => "Assistant".to_owned(),
        "user" => "User".to_owned(),
        "system" => "System".to_owned(),
        "developer" => "Developer".to_owned(),
        other => other.to_owned(),
    }
}

/// A text in an object.
fn field<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        // Content parts: their texts, and the other ones as JSON.
        Value::Array(parts) if parts.iter().all(|part| part["type"].is_string()) => {
            let parts = parts.iter().map(|part| match part["text"].as_str() {
                Some(text) => text.to_owned(),
                None => part.to_string(),
            });
            parts.collect::<Vec<_>>().join("\n")
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: &[u8] = b"id: 1-aa\ndata: {\"type\":\"TEXT_MESSAGE_START\",\"messageId\":\"m\",\"role\":\"assistant\"}\n\n\
        id: 2-aa\ndata: {\"type\":\"TEXT_MESSAGE_CONTENT\",\"messageId\":\"m\",\"delta\":\"sec\"}\n\n\
        id: 3-aa\ndata: {\"type\":\"TEXT_MESSAGE_CONTENT\",\"messageId\":\"m\",\"delta\":\"ret\"}\n\n";

    #[test]
    fn the_events_of_use_chat_are_shown() {
        let frames = b"id: 1-aa\ndata: {\"type\":\"start\",\"messageId\":\"m\"}\n\n\
            id: 2-aa\ndata: {\"type\":\"text-start\",\"id\":\"t\"}\n\n\
            id: 3-aa\ndata: {\"type\":\"text-delta\",\"id\":\"t\",\"delta\":\"se\"}\n\n\
            id: 4-aa\ndata: {\"type\":\"text-delta\",\"id\":\"t\",\"delta\":\"cret\"}\n\n\
            id: 5-aa\ndata: {\"type\":\"tool-input-available\",\"toolCallId\":\"c\",\"toolName\":\"pay\",\"input\":{\"to\":\"secret\"}}\n\n\
            id: 6-aa\ndata: {\"type\":\"tool-output-available\",\"toolCallId\":\"c\",\"output\":\"secret\"}\n\n\
            id: 7-aa\ndata: {\"type\":\"data-note\",\"data\":\"secret\"}\n\n\
            id: 8-aa\ndata: {\"type\":\"tool-approval-request\",\"toolCallId\":\"c\",\"reason\":\"secret\"}\n\n\
            id: 9-aa\ndata: {\"type\":\"error\",\"errorText\":\"secret\"}\n\n\
            id: 10-aa\ndata: [DONE]\n\n";
        let mut entries = Entries::default();
        entries.apply(ops(frames, true));
        let texts: Vec<_> = entries.all.iter().map(|it| it.text.as_str()).collect();
        let call = "{\"to\":\"secret\"}";
        // Data is shown as JSON.
        let rest = ["secret", "\"secret\"", "secret", "secret"];
        assert_eq!(texts.first(), Some(&""));
        assert_eq!(texts.get(1..3), Some(&["secret", call][..]));
        assert_eq!(texts.get(3..), Some(&rest[..]));
        assert_eq!(entries.end.map(|end| end.status), Some("failed"));
        let hidden = format!("{:?}", ops(frames, false));
        assert!(!hidden.contains("secret"), "{hidden}");
    }

    #[test]
    fn a_run_of_use_chat_that_asks_is_waiting() {
        let end = |reason: &str| {
            let event = format!("{{\"type\":\"finish\",\"finishReason\":\"{reason}\"}}");
            end(event.as_bytes()).map(|end| end.status)
        };
        assert_eq!(end("tool-calls"), Some("waiting"));
        assert_eq!(end("stop"), Some("ended"));
    }

    #[test]
    fn an_event_that_cannot_be_parsed_is_visible() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let frame =
            format!("id: 1-aa\ndata: {{\"type\":\"CUSTOM\",\"name\":\"n\",\"value\":{deep}}}\n\n");
        let shown = format!("{:?}", ops(frame.as_bytes(), true));
        assert!(shown.contains("An event that cannot be shown"), "{shown}");
        assert_eq!(ops(b"id: 1-aa\ndata: [DONE]\n\n", true), []);
    }

    #[test]
    fn an_id_begins_a_line() {
        let frame = b"id: 7-aa\ndata: {\"type\":\"TEXT_MESSAGE_CONTENT\",\"delta\":\"id: 3\"}\n\n";
        assert_eq!(last_id(frame), Some("7-aa"));
        assert_eq!(last_id(&[FRAMES, frame].concat()), Some("7-aa"));
        assert_eq!(last_id(b"data: id: 3\n\n"), None);
    }

    #[test]
    fn deltas_are_joined() {
        assert_eq!(last_id(FRAMES), Some("3-aa"));
        let all = ops(FRAMES, true);
        let key = "text  m".to_owned();
        let text = "secret".to_owned();
        assert_eq!(all.len(), 3);
        assert_eq!(all.last(), Some(&Op::Append { key, text }));
    }

    #[test]
    fn a_run_moves_between_its_model_and_its_tools() {
        let frames = |kinds: &[&str]| -> String {
            let kinds = kinds.iter();
            kinds
                .map(|kind| format!("data: {{\"type\":\"{kind}\",\"toolCallId\":\"c\"}}\n\n"))
                .collect()
        };
        let moves = |kinds: &[&str]| -> Vec<At> {
            let ops = ops(frames(kinds).as_bytes(), true).into_iter();
            ops.filter_map(|op| match op {
                Op::Move(at) => Some(at),
                _ => None,
            })
            .collect()
        };
        let ag_ui = [
            "RUN_STARTED",
            "STEP_STARTED",
            "TEXT_MESSAGE_START",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "STEP_STARTED",
        ];
        assert_eq!(moves(&ag_ui), [At::Model, At::Round, At::Model]);
        let use_chat = [
            "start",
            "start-step",
            "text-start",
            "tool-input-available",
            "tool-output-available",
            "finish",
        ];
        assert_eq!(moves(&use_chat), [At::Model, At::Round]);
        let nested = "data: {\"type\":\"STEP_STARTED\",\"subagentRunId\":\"r\"}\n\n";
        assert!(
            !ops(nested.as_bytes(), true)
                .iter()
                .any(|op| matches!(op, Op::Move(_)))
        );
    }

    #[test]
    fn content_is_omitted_without_the_right() {
        let event =
            br#"data: {"type":"MESSAGES_SNAPSHOT","messages":[{"role":"user","content":"secret"},
            {"role":"assistant","toolCalls":[{"function":{"name":"pay","arguments":"secret"}}]}]}"#;
        let event: Vec<u8> = event
            .iter()
            .copied()
            .filter(|byte| *byte != b'\n')
            .collect();
        let others: [&[u8]; 5] = [
            br#"data: {"type":"TOOL_CALL_ARGS","toolCallId":"c","delta":"secret"}"#,
            br#"data: {"type":"TOOL_CALL_RESULT","toolCallId":"c","content":"secret"}"#,
            br#"data: {"type":"CUSTOM","name":"n","value":{"a":"secret"}}"#,
            br#"data: {"type":"STATE_SNAPSHOT","snapshot":{"a":"secret"}}"#,
            br#"data: {"type":"RUN_ERROR","code":"server","message":"secret"}"#,
        ];
        for event in others.into_iter().chain([FRAMES, &event[..]]) {
            let shown = |content| {
                let all: Vec<Value> = ops(event, content).iter().map(Op::to_json).collect();
                Value::from(all).to_string()
            };
            assert!(shown(true).contains("secret"), "{}", shown(true));
            assert!(!shown(false).contains("secret"), "{}", shown(false));
        }
    }
}
