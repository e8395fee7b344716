//! Serialization of a model's response and of the results of its calls.

use super::{
    super::compat::IDS,
    content::Content,
    input::{Plain, item},
};
use crate::history::{Input, NamesBeside, Segment, is_own, joined, own_data, parts, words};
use concentric_core::{
    Executor, MediaSource, Part, PartKind, Str, ToolCallPart, ToolContent, ToolResult, ToolStatus,
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};
use std::{borrow::Cow, ptr};

/// The maximum length of an item id in requests. Some services generate longer ids, but do not
/// require them.
const ID: usize = 64;

/// A segment of an assistant turn as items, in the original order.
pub(super) struct Answer<'a> {
    entries: Vec<(u64, Entry<'a>)>,
    /// Ids are sent only together with the reasoning that they belong to: the service resolves
    /// references between them, and fails if one of them is missing.
    has_ids: bool,
}

enum Entry<'a> {
    /// The texts of one message.
    Message {
        item: Option<&'a Value>,
        parts: Vec<(&'a Part, Option<&'a Value>)>,
    },
    Reasoning(&'a Value),
    /// An item that is sent unchanged.
    Whole(&'a Value),
    Image {
        item: &'a Value,
        bytes: &'a str,
    },
    Call {
        call: &'a ToolCallPart,
        item: Option<&'a Value>,
        is_own: bool,
    },
}

impl<'a> Answer<'a> {
    pub(super) fn new(segment: &Segment<'a>, provider: &Str, is_stored: bool) -> Self {
        let mut entries: Vec<(u64, Entry<'a>)> = Vec::new();
        let mut index = 0;
        let mut answered = segment.calls.iter().peekable();
        for part in segment.parts {
            let own = own_data(part, provider).map(|own| &own.data);
            let item = item(part, provider);
            // Parts without an index stay at their position.
            let at = own.and_then(|own| own.get("index")?.as_u64());
            index = at.unwrap_or(index);
            let entry = match &part.kind {
                PartKind::Text(text) | PartKind::Refusal(text) if !text.is_empty() => {
                    let annotations = own.and_then(|own| own.get("annotations"));
                    push_message(&mut entries, index, item, (part, annotations));
                    continue;
                }
                PartKind::Reasoning(_) => match item {
                    Some(item) if is_stored || is_whole(item) => Entry::Reasoning(item),
                    _ => continue,
                },
                PartKind::Provider(_) => match item {
                    Some(item) => Entry::Whole(item),
                    None => continue,
                },
                PartKind::Image(image) => match (item, &image.source) {
                    (Some(item), MediaSource::Base64(bytes)) => Entry::Image { item, bytes },
                    _ => {
                        push_message(&mut entries, index, None, (part, None));
                        continue;
                    }
                },
                PartKind::Audio(_) | PartKind::File(_) => {
                    push_message(&mut entries, index, None, (part, None));
                    continue;
                }
                PartKind::ToolCall(call) if call.executor == Executor::Provider => match item {
                    Some(item) => Entry::Whole(item),
                    None => continue,
                },
                PartKind::ToolCall(call) => {
                    // Calls have the order of their parts.
                    if answered
                        .next_if(|(known, ..)| ptr::eq(*known, part))
                        .is_none()
                    {
                        continue;
                    }
                    Entry::Call {
                        call,
                        item,
                        is_own: is_own(part, provider),
                    }
                }
                _ => continue,
            };
            entries.push((index, entry));
        }
        // Calls are the last parts of a message, wherever they were in the response.
        entries.sort_by_key(|(index, _)| *index);
        // The service rejects reasoning without an item that follows it.
        while let Some((_, Entry::Reasoning(_))) = entries.last() {
            entries.pop();
        }
        let has_ids = entries
            .iter()
            .any(|(_, entry)| matches!(entry, Entry::Reasoning(_)));
        Self { entries, has_ids }
    }

    pub(super) fn items<'b>(
        &'b self,
        names: &'b NamesBeside<'b>,
    ) -> impl Iterator<Item = impl Serialize> {
        self.entries.iter().map(move |(_, entry)| Item {
            entry,
            has_ids: self.has_ids,
            names,
        })
    }
}

/// Adds a part to the preceding message if it has the same item, or starts a new one.
fn push_message<'a>(
    entries: &mut Vec<(u64, Entry<'a>)>,
    index: u64,
    item: Option<&'a Value>,
    part: (&'a Part, Option<&'a Value>),
) {
    match entries.last_mut() {
        Some((_, Entry::Message { item: last, parts }))
            if id(*last) == id(item) && last.is_some() == item.is_some() =>
        {
            parts.push(part);
        }
        _ => {
            let parts = vec![part];
            entries.push((index, Entry::Message { item, parts }));
        }
    }
}

/// Whether reasoning is complete, so that the service does not have to look it up.
fn is_whole(item: &Value) -> bool {
    let filled = |name: &str| match item.get(name) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        _ => false,
    };
    filled("encrypted_content") || filled("content")
}

fn id(item: Option<&Value>) -> Option<&str> {
    item?.get("id")?.as_str().filter(|id| id.len() <= ID)
}

fn type_(item: Option<&Value>) -> Option<&str> {
    item?.get("type")?.as_str()
}

struct Item<'a> {
    entry: &'a Entry<'a>,
    has_ids: bool,
    names: &'a NamesBeside<'a>,
}

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.entry {
            // A message by another provider's model.
            Entry::Message { item: None, parts } => {
                let content = &joined(parts.iter().filter_map(|(part, _)| words(part)));
                let role = "assistant";
                Plain { role, content }.serialize(serializer)
            }
            Entry::Message {
                item: Some(item),
                parts,
            } => self.message(item, parts, serializer),
            Entry::Reasoning(item) | Entry::Whole(item) => whole(item, None, serializer),
            Entry::Image { item, bytes } => whole(item, Some(bytes), serializer),
            Entry::Call { call, item, is_own } => self.call(call, *item, *is_own, serializer),
        }
    }
}

/// Serializes an unchanged item, and adds the bytes that were removed from it.
fn whole<S: Serializer>(
    item: &Value,
    bytes: Option<&str>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let fields = item.as_object();
    let mut map = serializer.serialize_map(None)?;
    for (name, value) in fields.into_iter().flatten() {
        if name != "id" || id(Some(item)).is_some() {
            map.serialize_entry(name, value)?;
        }
    }
    if let Some(bytes) = bytes {
        map.serialize_entry("result", bytes)?;
    }
    map.end()
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Spoken<'a> {
    OutputText {
        text: &'a str,
        annotations: Cow<'a, Value>,
    },
    Refusal {
        refusal: &'a str,
    },
}

impl Item<'_> {
    fn message<S: Serializer>(
        &self,
        item: &Value,
        parts: &[(&Part, Option<&Value>)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let content = parts.iter().filter_map(|(part, annotations)| {
            Some(match &part.kind {
                PartKind::Text(text) => Spoken::OutputText {
                    text,
                    annotations: match annotations {
                        Some(annotations) => Cow::Borrowed(*annotations),
                        None => Cow::Owned(json!([])),
                    },
                },
                PartKind::Refusal(refusal) => Spoken::Refusal { refusal },
                _ => return None,
            })
        });
        let content: Vec<Spoken<'_>> = content.collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", "message")?;
        if let Some(id) = id(Some(item)).filter(|_| self.has_ids) {
            map.serialize_entry("id", id)?;
        }
        map.serialize_entry("role", "assistant")?;
        map.serialize_entry("status", "completed")?;
        map.serialize_entry("content", &content)?;
        if let Some(phase) = item.get("phase") {
            map.serialize_entry("phase", phase)?;
        }
        map.end()
    }

    fn call<S: Serializer>(
        &self,
        call: &ToolCallPart,
        item: Option<&Value>,
        is_own: bool,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let type_ = type_(item).unwrap_or("function_call");
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", type_)?;
        // The service identifies calls of its own tools only by the id.
        let needs_id = matches!(type_, "local_shell_call" | "shell_call");
        if let Some(id) = id(item).filter(|_| self.has_ids || needs_id) {
            map.serialize_entry("id", id)?;
        }
        map.serialize_entry("call_id", &IDS.id(call, is_own))?;
        let arguments = &call.arguments;
        let name = self.names.name(&call.name);
        match type_ {
            "custom_tool_call" => {
                map.serialize_entry("name", &name)?;
                map.serialize_entry("input", arguments.as_str())?;
            }
            "local_shell_call" | "shell_call" => {
                map.serialize_entry("action", &Input(arguments))?;
                map.serialize_entry("status", "completed")?;
            }
            "apply_patch_call" => {
                map.serialize_entry("operation", &Input(arguments))?;
                map.serialize_entry("status", "completed")?;
            }
            _ => {
                map.serialize_entry("name", &name)?;
                map.serialize_entry("arguments", arguments.for_history())?;
            }
        }
        // Other fields of the item, such as the caller.
        for (name, value) in item.and_then(Value::as_object).into_iter().flatten() {
            if !matches!(&**name, "type" | "id") {
                map.serialize_entry(name, value)?;
            }
        }
        map.end()
    }
}

/// The result of a call.
pub(super) struct CallOutput<'a> {
    call_id: Cow<'a, str>,
    item: Option<&'a Value>,
    result: &'a ToolResult,
}

impl<'a> CallOutput<'a> {
    pub(super) fn new(
        part: &'a Part,
        call: &'a ToolCallPart,
        result: &'a ToolResult,
        provider: &Str,
    ) -> Self {
        Self {
            call_id: IDS.id(call, is_own(part, provider)),
            item: item(part, provider),
            result,
        }
    }
}

impl Serialize for CallOutput<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let outcome = &self.result.outcome;
        let is_done = outcome.status == ToolStatus::Done;
        let mut map = serializer.serialize_map(None)?;
        let type_ = match type_(self.item) {
            Some("custom_tool_call") => "custom_tool_call_output",
            Some("local_shell_call") => "local_shell_call_output",
            Some("shell_call") => "shell_call_output",
            Some("apply_patch_call") => "apply_patch_call_output",
            _ => "function_call_output",
        };
        map.serialize_entry("type", type_)?;
        map.serialize_entry("call_id", &self.call_id)?;
        match type_ {
            "shell_call_output" => {
                let text = outcome.content.text();
                let (stdout, stderr) = match is_done {
                    true => (&*text, ""),
                    false => ("", &*text),
                };
                let exit = json!({ "type": "exit", "exit_code": i32::from(!is_done) });
                let output = json!([{ "stdout": stdout, "stderr": stderr, "outcome": exit }]);
                map.serialize_entry("output", &output)?;
            }
            "apply_patch_call_output" => {
                let status = if is_done { "completed" } else { "failed" };
                map.serialize_entry("status", status)?;
                map.serialize_entry("output", &outcome.content.text())?;
            }
            "local_shell_call_output" => {
                map.serialize_entry("output", &outcome.content.text())?;
            }
            _ => map.serialize_entry("output", &Output(&outcome.content))?,
        }
        // A program that made the call is identified by this field.
        if let Some(caller) = self.item.and_then(|item| item.get("caller"))
            && !caller.is_null()
        {
            map.serialize_entry("caller", caller)?;
        }
        map.end()
    }
}

struct Output<'a>(&'a ToolContent);

impl Serialize for Output<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = parts(self.0);
        let is_text = |part: &Part| !matches!(part.kind, PartKind::Image(_) | PartKind::File(_));
        match parts.iter().all(is_text) {
            true => serializer.serialize_str(&self.0.text()),
            false => serializer.collect_seq(parts.iter().filter_map(Content::of)),
        }
    }
}
