//! A client that builds the message like `processUIMessageStream` of `ai`, and panics where that throws.

use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// The chunks of a body, whose last frame must be `[DONE]`.
#[track_caller]
pub fn chunks(body: &str) -> Vec<Value> {
    assert!(body.ends_with("\n\n"), "cut off: {body:?}");
    let mut chunks = Vec::new();
    let frames = body.split("\n\n").filter(|it| !it.is_empty());
    let mut is_done = false;
    for frame in frames.filter(|it| !it.starts_with(':')) {
        assert!(!is_done, "after the end: {frame}");
        let data = frame.lines().next_back().unwrap();
        assert!(frame.lines().count() <= 2, "{frame}");
        match data.strip_prefix("data: ").expect("a frame") {
            "[DONE]" => is_done = true,
            json => chunks.push(serde_json::from_str(json).unwrap()),
        }
    }
    assert!(is_done, "no end: {body}");
    chunks
}

/// The required fields of each type, and its optional ones, by `uiMessageChunkSchema`.
const FIELDS: &[(&str, &[&str], &[&str])] = &[
    ("start", &[], &["messageId", "messageMetadata"]),
    ("message-metadata", &["messageMetadata"], &[]),
    ("start-step", &[], &[]),
    ("finish-step", &[], &[]),
    ("reset-step", &[], &[]),
    ("text-start", &["id"], &[]),
    ("text-delta", &["id", "delta"], &[]),
    ("text-end", &["id"], &[]),
    ("reasoning-start", &["id"], &[]),
    ("reasoning-delta", &["id", "delta"], &[]),
    ("reasoning-end", &["id"], &[]),
    (
        "tool-input-start",
        &["toolCallId", "toolName"],
        &["dynamic"],
    ),
    ("tool-input-delta", &["toolCallId", "inputTextDelta"], &[]),
    (
        "tool-input-available",
        &["toolCallId", "toolName", "input"],
        &["dynamic", "providerExecuted"],
    ),
    (
        "tool-input-error",
        &["toolCallId", "toolName", "input", "errorText"],
        &["dynamic"],
    ),
    (
        "tool-approval-request",
        &["approvalId", "toolCallId"],
        &["approvalDescriptor", "reason", "signature"],
    ),
    (
        "tool-approval-response",
        &["approvalId", "approved"],
        &["reason"],
    ),
    (
        "tool-output-available",
        &["toolCallId", "output"],
        &["preliminary"],
    ),
    ("tool-output-error", &["toolCallId", "errorText"], &[]),
    ("tool-output-denied", &["toolCallId"], &[]),
    ("file", &["url", "mediaType"], &[]),
    ("source-url", &["sourceId", "url"], &["title"]),
    (
        "source-document",
        &["sourceId", "mediaType", "title"],
        &["filename"],
    ),
    ("finish", &[], &["finishReason", "messageMetadata"]),
    ("abort", &[], &["reason"]),
    ("error", &["errorText"], &[]),
];

#[track_caller]
fn check(chunk: &Value) {
    let kind = chunk["type"].as_str().expect("a type");
    let object = chunk.as_object().unwrap();
    if kind.starts_with("data-") {
        assert!(object.contains_key("data"), "{chunk}");
        let known = ["type", "id", "data", "transient"];
        assert!(object.keys().all(|key| known.contains(&&**key)), "{chunk}");
        return;
    }
    let (_, required, optional) = FIELDS
        .iter()
        .find(|(name, ..)| *name == kind)
        .unwrap_or_else(|| panic!("unknown: {chunk}"));
    for name in *required {
        assert!(object.contains_key(*name), "{name} is missing: {chunk}");
    }
    for (name, value) in object {
        let is_known = name == "type" || required.contains(&&**name) || optional.contains(&&**name);
        assert!(is_known, "{name}: {chunk}");
        let may_be_null = ["input", "output"].contains(&&**name);
        assert!(may_be_null || !value.is_null(), "{name} is null: {chunk}");
    }
}

/// The message that the chunks build.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub id: String,
    pub parts: Vec<Value>,
    pub metadata: Value,
    pub end: Option<Value>,
    texts: HashMap<String, usize>,
    previews: HashSet<String>,
}

impl Message {
    /// Continues a message, as after an approval.
    pub fn continue_from(message: &Value) -> Self {
        Self {
            id: message["id"].as_str().unwrap().to_owned(),
            parts: message["parts"].as_array().unwrap().clone(),
            metadata: message["metadata"].clone(),
            ..Self::default()
        }
    }

    pub fn of(chunks: &[Value]) -> Self {
        let mut message = Self::default();
        message.apply_all(chunks);
        message
    }

    #[track_caller]
    pub fn apply_all(&mut self, chunks: &[Value]) {
        for chunk in chunks {
            self.apply(chunk);
        }
    }

    pub fn json(&self) -> Value {
        json!({"id": self.id, "role": "assistant", "metadata": self.metadata, "parts": self.parts})
    }

    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter(|part| part["type"] == "text");
        texts.map(|part| part["text"].as_str().unwrap()).collect()
    }

    #[track_caller]
    pub fn tool(&self, id: &str) -> &Value {
        let at = self.find(id);
        &self.parts[at]
    }

    #[track_caller]
    pub fn tool_mut(&mut self, id: &str) -> &mut Value {
        let at = self.find(id);
        &mut self.parts[at]
    }

    #[track_caller]
    fn find(&self, id: &str) -> usize {
        let at = self.parts.iter().rposition(|part| part["toolCallId"] == id);
        at.unwrap_or_else(|| panic!("no tool invocation found for `{id}`"))
    }

    fn in_step(&self, id: &str) -> Option<usize> {
        let is_start = |part: &Value| part["type"] == "step-start";
        let start = self.parts.iter().rposition(is_start).map_or(0, |at| at + 1);
        let found = self.parts[start..].iter();
        let mut found = found
            .enumerate()
            .filter(|(_, part)| part["toolCallId"] == id);
        found.next().map(|(at, _)| start + at)
    }

    fn update(&mut self, chunk: &Value, state: &str, fields: &[&str]) {
        let id = chunk["toolCallId"].as_str().unwrap();
        let at = self.in_step(id).unwrap_or_else(|| {
            self.parts.push(json!({"toolCallId": id}));
            self.parts.len() - 1
        });
        let part = &mut self.parts[at];
        match chunk["dynamic"] == true {
            true => {
                part["type"] = "dynamic-tool".into();
                part["toolName"] = chunk["toolName"].clone();
            }
            false => part["type"] = format!("tool-{}", chunk["toolName"].as_str().unwrap()).into(),
        }
        part["state"] = state.into();
        for name in fields {
            part[*name] = chunk[*name].clone();
        }
    }

    fn push_text(&mut self, kind: &str, chunk: &Value) {
        let id = chunk["id"].as_str().unwrap().to_owned();
        self.texts.insert(id, self.parts.len());
        self.parts.push(json!({"type": kind, "text": ""}));
    }

    fn add_metadata(&mut self, new: &Value) {
        match (&mut self.metadata, new) {
            (Value::Object(old), Value::Object(new)) => old.extend(new.clone()),
            (_, Value::Null) => {}
            (old, new) => *old = new.clone(),
        }
    }

    #[track_caller]
    fn apply(&mut self, chunk: &Value) {
        check(chunk);
        assert!(self.end.is_none(), "after the end: {chunk}");
        let text = |name: &str| chunk[name].as_str().unwrap();
        match text("type") {
            "start" => text("messageId").clone_into(&mut self.id),
            "message-metadata" => self.add_metadata(&chunk["messageMetadata"]),
            "start-step" => self.parts.push(json!({"type": "step-start"})),
            "text-start" => self.push_text("text", chunk),
            "reasoning-start" => self.push_text("reasoning", chunk),
            "text-delta" | "reasoning-delta" => {
                let at = *self.texts.get(text("id")).expect("a started part");
                let old = self.parts[at]["text"].as_str().unwrap();
                self.parts[at]["text"] = format!("{old}{}", text("delta")).into();
            }
            "text-end" | "reasoning-end" => {
                assert!(self.texts.remove(text("id")).is_some(), "{chunk}");
            }
            "tool-input-start" => {
                self.previews.insert(text("toolCallId").to_owned());
                self.update(chunk, "input-streaming", &[]);
            }
            "tool-input-delta" => assert!(self.previews.contains(text("toolCallId")), "{chunk}"),
            "tool-input-available" => self.update(chunk, "input-available", &["input"]),
            "tool-input-error" => self.update(chunk, "output-error", &["input", "errorText"]),
            "tool-approval-request" => {
                let approval = json!({"id": chunk["approvalId"], "signature": chunk["signature"],
                    "descriptor": chunk["approvalDescriptor"]});
                let part = self.tool_mut(text("toolCallId"));
                part["state"] = "approval-requested".into();
                part["approval"] = approval;
            }
            "tool-approval-response" => {
                let is_asked = |part: &&mut Value| part["approval"]["id"] == chunk["approvalId"];
                let part = self.parts.iter_mut().find(is_asked).expect("an approval");
                part["state"] = "approval-responded".into();
                part["approval"]["approved"] = chunk["approved"].clone();
                part["approval"]["reason"] = chunk["reason"].clone();
            }
            "tool-output-available" => {
                let part = self.tool_mut(text("toolCallId"));
                part["state"] = "output-available".into();
                part["output"] = chunk["output"].clone();
                part["preliminary"] = chunk["preliminary"].clone();
            }
            "tool-output-error" => {
                let part = self.tool_mut(text("toolCallId"));
                part["state"] = "output-error".into();
                part["errorText"] = chunk["errorText"].clone();
            }
            "tool-output-denied" => {
                self.tool_mut(text("toolCallId"))["state"] = "output-denied".into();
            }
            "reset-step" => {
                let is_start = |part: &Value| part["type"] == "step-start";
                let start = self.parts.iter().rposition(is_start).map_or(0, |at| at + 1);
                self.parts.truncate(start);
                self.texts.clear();
                self.previews.clear();
            }
            "finish" | "abort" | "error" => {
                assert!(self.texts.is_empty(), "open parts at the end: {chunk}");
                self.add_metadata(&chunk["messageMetadata"]);
                self.end = Some(chunk.clone());
            }
            kind if kind.starts_with("data-") => {
                if chunk["transient"] == true {
                    return;
                }
                let is_same = |part: &Value| {
                    !chunk["id"].is_null() && part["type"] == kind && part["id"] == chunk["id"]
                };
                match self.parts.iter().position(is_same) {
                    Some(at) => self.parts[at]["data"] = chunk["data"].clone(),
                    None => self.parts.push(chunk.clone()),
                }
            }
            "file" | "source-url" | "source-document" => self.parts.push(chunk.clone()),
            _ => {}
        }
    }
}
