//! The messages of a request, with alternating roles.

use super::content::{Block, CacheControl, Kind, Outcome};
use crate::{
    Unsupported,
    history::{self, BEGINNING, IdRules, Input, NameRules, Segment, is_own, own_data, words},
};
use concentric_core::{
    ChatRequest, Executor, Message, Part, PartKind, ProviderData, Role, Str, ToolCallPart,
    ToolContent, ToolResult, ToolStatus, Transcript,
};
use serde::Serialize;
use serde_json::{Map, Value};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    ptr,
};

/// A conversation in the service's format.
#[derive(Debug, Default)]
pub(in super::super) struct Conversation<'a> {
    messages: Vec<Entry<'a>>,
    /// The system messages within the conversation.
    pub(super) system: Vec<&'a str>,
    /// Content that the service does not accept.
    pub(in super::super) unsupported: Vec<Unsupported>,
    /// The container that executes the model's code, if it waits for this request.
    pub(super) container: Option<&'a str>,
    /// Whether the service paused the last turn, which this request continues.
    paused: bool,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    role: Speaker,
    content: Vec<Block<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Speaker {
    User,
    Assistant,
}

const IDS: IdRules = IdRules {
    length: 64,
    exact: false,
    punctuation: "_-",
};

/// The tool names that the service accepts.
pub(in super::super) const NAMES: NameRules = NameRules {
    length: 128,
    ..NameRules::COMMON
};

impl<'a> Conversation<'a> {
    pub(in super::super) fn of(request: &'a ChatRequest, provider: &'a Str) -> Self {
        let mut writer = Writer {
            provider,
            executed: Executed::of(&request.transcript, provider),
            ids: HashSet::new(),
            copies: HashMap::new(),
            turn: 0,
            is_last: false,
            out: Conversation::default(),
        };
        let turns = request.transcript.len();
        for (at, turn) in request.transcript.iter().enumerate() {
            (writer.turn, writer.is_last) = (at, at + 1 == turns);
            let message = turn.as_message();
            match message.role {
                Role::System => writer.system(message),
                Role::Assistant => {
                    for segment in history::segments(turn) {
                        writer.assistant(&segment);
                    }
                }
                _ => writer.user(message),
            }
        }
        let mut out = writer.out;
        out.trim_end();
        out.begin_with_user();
        out
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the model must continue a message that the application wrote.
    pub(in super::super) fn is_prefilled(&self) -> bool {
        let last = self.messages.last();
        !self.paused && last.is_some_and(|message| message.role == Speaker::Assistant)
    }

    /// Whether the conversation ends within a round of tool calls that started without thinking,
    /// for example by another provider's model. The service does not accept a budget there.
    pub(super) fn is_in_round_without_thinking(&self) -> bool {
        let [.., call, results] = &*self.messages else {
            return false;
        };
        let first = |entry: &Entry<'a>, is: fn(&Kind<'a>) -> bool| {
            entry.content.first().is_some_and(|block| is(&block.kind))
        };
        first(results, |kind| matches!(kind, Kind::Result { .. }))
            && first(call, |kind| {
                matches!(kind, Kind::Text(_) | Kind::Call { .. })
            })
    }

    pub(super) fn messages(&self) -> &impl Serialize {
        &self.messages
    }

    /// Adds a cache breakpoint at the end of the conversation.
    pub(super) fn cache(&mut self, control: CacheControl) {
        let last = self.messages.last_mut();
        let last = last.filter(|message| message.role == Speaker::User);
        if let Some(block) = last.and_then(|message| message.content.last_mut())
            && block.can_be_cached()
        {
            block.cache = Some(control);
        }
    }

    fn push(&mut self, role: Speaker, block: Block<'a>) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.content.push(block),
            _ => self.messages.push(Entry {
                role,
                content: vec![block],
            }),
        }
    }

    /// Inserts a user message at the start if necessary, since the service requires one.
    fn begin_with_user(&mut self) {
        let first = self.messages.first();
        if first.is_some_and(|message| message.role == Speaker::Assistant) {
            let entry = Entry {
                role: Speaker::User,
                content: vec![Block::new(Kind::Text(BEGINNING))],
            };
            self.messages.insert(0, entry);
        }
    }

    /// Removes trailing white space from a prefilled message, which the service rejects.
    fn trim_end(&mut self) {
        let last = self.messages.last_mut();
        if let Some(last) = last.filter(|message| message.role == Speaker::Assistant)
            && let Some(Block {
                kind: Kind::Text(text),
                ..
            }) = last.content.last_mut()
        {
            *text = text.trim_end();
        }
    }
}

/// The ids of calls that the service has executed, and of their results.
///
/// The service requires both, and a history may have lost one of them.
#[derive(Debug, Default)]
struct Executed<'a> {
    calls: HashSet<&'a str>,
    results: HashSet<&'a str>,
}

impl<'a> Executed<'a> {
    fn of(transcript: &'a Transcript, provider: &Str) -> Self {
        let mut executed = Self::default();
        for turn in transcript.rev() {
            for part in &turn.as_message().parts {
                match &part.kind {
                    PartKind::ToolCall(call) if call.executor == Executor::Provider => {
                        let id = call.provider_id.as_deref();
                        executed.calls.extend(id.filter(|_| is_own(part, provider)));
                    }
                    PartKind::Provider(data) if data.provider == *provider => {
                        executed.results.extend(answered(data));
                    }
                    _ => {}
                }
            }
        }
        executed
    }
}

/// The id of the call whose result is `data`, if it is a result.
fn answered(data: &ProviderData) -> Option<&str> {
    data.data.get("tool_use_id").and_then(Value::as_str)
}

struct Writer<'a> {
    provider: &'a Str,
    executed: Executed<'a>,
    /// The ids of earlier calls, since the service requires unique ids.
    ids: HashSet<Cow<'a, str>>,
    /// The last suffix that was tried for each repeated id.
    copies: HashMap<String, usize>,
    turn: usize,
    is_last: bool,
    out: Conversation<'a>,
}

impl<'a> Writer<'a> {
    fn system(&mut self, message: &'a Message) {
        let texts = message.parts.iter().filter_map(|part| match &part.kind {
            PartKind::Text(text) if is_not_blank(text) => Some(text.as_str()),
            _ => None,
        });
        self.out.system.extend(texts);
    }

    fn user(&mut self, message: &'a Message) {
        for part in &message.parts {
            if let Some(block) = self.content(part) {
                self.out.push(Speaker::User, block);
            }
        }
    }

    /// Converts a part of a user message or a tool result.
    fn content(&mut self, part: &'a Part) -> Option<Block<'a>> {
        let medium = match &part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) => {
                if !is_not_blank(text) {
                    return None;
                }
                Ok(Block::new(Kind::Text(text)))
            }
            PartKind::Image(image) => Block::medium(image, true),
            PartKind::File(file) => Block::medium(file, false),
            PartKind::Provider(data) if data.provider == *self.provider => {
                Ok(Block::new(Kind::Opaque))
            }
            _ => return None,
        };
        match medium {
            Ok(mut block) => {
                block.more = self.more(part);
                Some(block)
            }
            Err(what) => {
                let unsupported = Unsupported::new(what).at(self.turn);
                self.out.unsupported.push(unsupported);
                None
            }
        }
    }

    fn more(&self, part: &'a Part) -> Option<&'a Map<String, Value>> {
        own_data(part, self.provider).and_then(|data| data.data.as_object())
    }

    fn assistant(&mut self, segment: &Segment<'a>) {
        let ids: Vec<Cow<'a, str>> = segment
            .calls
            .iter()
            .map(|(part, call, _)| self.id(part, call))
            .collect();
        let is_call = |part: &&Part| match &part.kind {
            PartKind::ToolCall(call) => call.executor != Executor::Provider,
            _ => false,
        };
        let is_details = |part: &Part| self.details(part).is_some();
        let others = segment
            .parts
            .iter()
            .filter(|part| !is_call(part) && !is_details(part));
        let others = others.count();
        // Each block has its position among the others, since calls are emitted after them.
        let mut blocks: Vec<((usize, bool), Block<'a>)> = Vec::with_capacity(segment.parts.len());
        let mut at = 0;
        let mut made = segment.calls.iter().zip(&ids).peekable();
        for part in segment.parts {
            if let Some(details) = self.details(part) {
                self.take_details(details);
                continue;
            }
            if is_call(&part) {
                // Calls have the order of their parts.
                let is_it = |((made, ..), _): &(&(&Part, _, _), _)| ptr::eq(*made, part);
                let Some(((_, call, _), id)) = made.next_if(is_it) else {
                    continue;
                };
                let mut block = Block::new(call_block(call, id.clone()));
                block.more = self.more(part);
                let behind = block
                    .more
                    .and_then(|more| more.get("followed_by")?.as_u64());
                let behind = behind.and_then(|behind| usize::try_from(behind).ok());
                let place = behind.map_or(at, |behind| others.saturating_sub(behind));
                blocks.push(((place, false), block));
                continue;
            }
            if let Some(block) = self.assistant_part(part) {
                blocks.push(((at, true), block));
            }
            at += 1;
        }
        blocks.sort_by_key(|(place, _)| *place);
        for (_, block) in blocks {
            self.out.push(Speaker::Assistant, block);
        }
        for ((_, _, result), id) in segment.calls.iter().zip(ids) {
            let block = self.result(result, id);
            self.out.push(Speaker::User, block);
        }
    }

    /// Converts a part of an assistant message, except calls for the loop.
    fn assistant_part(&mut self, part: &'a Part) -> Option<Block<'a>> {
        let more = self.more(part);
        let kind = match &part.kind {
            PartKind::Text(text) | PartKind::Refusal(text) if is_not_blank(text) => {
                Kind::Text(text)
            }
            PartKind::Image(_) | PartKind::Audio(_) | PartKind::File(_) => Kind::Text(words(part)?),
            // Without a signature, the part is from another provider or incomplete.
            PartKind::Reasoning(text) if more?.contains_key("signature") => Kind::Thinking(text),
            PartKind::ToolCall(call) if more?.contains_key("type") => {
                let id = call.provider_id.as_deref()?;
                if !self.is_last && !self.executed.results.contains(id) {
                    return None;
                }
                call_block(call, id.into())
            }
            PartKind::Provider(data) if data.provider == *self.provider => {
                let lost = |id| !self.executed.calls.contains(id);
                if answered(data).is_some_and(lost) {
                    return None;
                }
                Kind::Opaque
            }
            _ => return None,
        };
        let mut block = Block::new(kind);
        block.more = more;
        Some(block)
    }

    /// The service's fields of the whole message.
    fn details(&self, part: &'a Part) -> Option<&'a Value> {
        match &part.kind {
            PartKind::Provider(data) if data.provider == *self.provider => {
                Some(&data.data).filter(|data| data.get("type").is_some_and(|t| t == "message"))
            }
            _ => None,
        }
    }

    fn take_details(&mut self, details: &'a Value) {
        if self.is_last {
            let container = details
                .get("container")
                .and_then(|it| it.get("id")?.as_str());
            self.out.container = container;
            let reason = details.get("stop_reason").and_then(Value::as_str);
            self.out.paused = matches!(reason, Some("pause_turn" | "compaction"));
        }
    }

    /// The unique id of `call` for the service.
    fn id(&mut self, part: &Part, call: &'a ToolCallPart) -> Cow<'a, str> {
        let first = IDS.id(call, is_own(part, self.provider));
        if self.ids.insert(first.clone()) {
            return first;
        }
        // Keyed by the truncated id, so that no suffix is tried twice.
        let kept = first.get(..first.len().min(56)).unwrap_or_default();
        let n = self.copies.entry(kept.to_owned()).or_insert(1);
        loop {
            *n += 1;
            let id: Cow<'a, str> = format!("{kept}_{n}").into();
            if self.ids.insert(id.clone()) {
                return id;
            }
        }
    }

    fn result(&mut self, result: &'a ToolResult, id: Cow<'a, str>) -> Block<'a> {
        let outcome = &result.outcome;
        let is_error = outcome.status != ToolStatus::Done;
        let text = |text: Cow<'a, str>| match is_not_blank(&text) {
            true => Outcome::Text(text),
            // The service rejects an error without text.
            false if is_error => Outcome::Text("The call failed.".into()),
            false => Outcome::Nothing,
        };
        let content = match &outcome.content {
            // An error can only contain text.
            content if is_error => text(content.text()),
            ToolContent::Parts(parts) => {
                let blocks: Vec<_> = parts
                    .iter()
                    .filter_map(|part| self.result_part(part))
                    .collect();
                match blocks.is_empty() {
                    true => Outcome::Nothing,
                    false => Outcome::Blocks(blocks),
                }
            }
            content => text(content.text()),
        };
        Block::new(Kind::Result {
            id,
            content,
            is_error,
        })
    }

    fn result_part(&mut self, part: &'a Part) -> Option<Block<'a>> {
        if let PartKind::Audio(_) = part.kind {
            let unsupported = Unsupported::new("audio in a tool result").at(self.turn);
            self.out.unsupported.push(unsupported);
        }
        self.content(part)
    }
}

fn is_not_blank(text: &str) -> bool {
    !text.trim().is_empty()
}

fn call_block<'a>(call: &'a ToolCallPart, id: Cow<'a, str>) -> Kind<'a> {
    Kind::Call {
        id,
        name: NAMES.name(&call.name),
        input: Input(&call.arguments),
    }
}
