//! The whole conversation, after it was rewritten.

use concentric_core::{CallId, Message, PartKind, Role, Str, ToolResult, Transcript, Turn};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

use super::{
    Lane, Out, Wire,
    calls::{arguments, metadata},
    convert::{content, user_content},
};
use crate::run::object;

/// The ids under which a client knows messages and calls.
pub(in crate::ag_ui) trait WireIds {
    /// The id of the next message, whose stored id is `known`.
    fn message(&mut self, known: Option<&str>) -> String;

    /// The id of the next call, whose stored id is `id`.
    fn call(&mut self, id: &CallId) -> Str;
}

impl Lane {
    /// Writes the conversation that replaces the client's. The client has none of a sub-agent.
    pub(in super::super) fn replace(&mut self, transcript: &Transcript, out: &mut Out) {
        if self.owner.is_some() {
            return;
        }
        self.close_message(out);
        let mut messages = Vec::new();
        let mut ids = Ids {
            lane: self,
            out,
            message_ids: HashSet::new(),
            call_ids: HashSet::new(),
        };
        // The newest messages and calls keep the ids under which the client knows them.
        for turn in transcript.rev() {
            push_turn(turn, &mut ids, &mut messages);
        }
        messages.extend(out.ids.system.iter().rev().cloned());
        messages.reverse();
        self.write(Wire::MessagesSnapshot { messages }, out);
    }
}

/// Appends the messages of a turn, the newest first.
pub(in crate::ag_ui) fn push_turn(turn: &Turn, ids: &mut impl WireIds, messages: &mut Vec<Value>) {
    let message = turn.as_message();
    let calls = message.tool_calls().map(|call| &call.id);
    let calls: HashMap<&CallId, Str> = calls.map(|id| (id, ids.call(id))).collect();
    let inline = message.parts.iter().filter_map(|part| match &part.kind {
        PartKind::ToolResult(result) => Some(result),
        _ => None,
    });
    let results: Vec<&ToolResult> = inline.chain(turn.results()).collect();
    for result in results.into_iter().rev() {
        if let Some(call) = calls.get(&result.call_id) {
            let id = ids.message(None);
            let metadata = metadata(&result.outcome);
            messages.push(object([
                ("id", Some(id.into())),
                ("role", Some("tool".into())),
                ("content", Some(content(&result.outcome.content))),
                ("toolCallId", Some(call.as_str().into())),
                ("metadata", (!metadata.is_empty()).then(|| metadata.into())),
            ]));
        }
    }
    let id = ids.message(message.id.as_ref().map(|id| id.as_str()));
    messages.push(match message.role {
        Role::System => json!({"id": id, "role": "system", "content": message.text()}),
        Role::Assistant => assistant(id, message, &calls),
        _ => json!({"id": id, "role": "user", "content": user_content(message)}),
    });
}

/// The ids of a run's snapshot.
struct Ids<'a> {
    lane: &'a Lane,
    out: &'a mut Out,
    message_ids: HashSet<Str>,
    call_ids: HashSet<Str>,
}

impl WireIds for Ids<'_> {
    fn message(&mut self, known: Option<&str>) -> String {
        let (names, ended) = (&mut self.out.ids.messages, &self.lane.ended);
        let known = known.map(Str::from);
        let known = known.filter(|id| names.is_free(id) || ended.contains(id));
        let id = match known.filter(|id| self.message_ids.insert(id.clone())) {
            Some(id) => id,
            None => names.unique(&self.out.context.new_id("msg_")),
        };
        names.take(&id);
        id.as_str().to_owned()
    }

    fn call(&mut self, id: &CallId) -> Str {
        let names = &mut self.out.ids.calls;
        let own = self.lane.call(id).map(|call| call.id.clone());
        let free = names.is_free(id.as_str()).then(|| Str::from(id.as_str()));
        let mut known = own.into_iter().chain(free);
        let id = match known.find(|id| self.call_ids.insert(id.clone())) {
            Some(id) => id,
            None => names.unique(id.as_str()),
        };
        names.take(&id);
        id
    }
}

fn assistant(id: String, message: &Message, calls: &HashMap<&CallId, Str>) -> Value {
    let texts = message.parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) | PartKind::Refusal(text) => Some(text.as_str()),
        _ => None,
    });
    let text: String = texts.collect();
    let calls = message.tool_calls().filter_map(|call| {
        let function = json!({"name": call.name.as_str(), "arguments": arguments(call)});
        let id = calls.get(&call.id)?.as_str();
        Some(json!({"id": id, "type": "function", "function": function}))
    });
    let calls: Vec<Value> = calls.collect();
    object([
        ("id", Some(id.into())),
        ("role", Some("assistant".into())),
        ("content", (!text.is_empty()).then(|| text.into())),
        ("toolCalls", (!calls.is_empty()).then(|| calls.into())),
    ])
}
