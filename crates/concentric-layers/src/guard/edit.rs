//! Texts that are in one piece.

use super::{Parts, Rules, json, scan};
use concentric_core::{
    CancelReason, Finish, FinishReason, Media, MediaSource, Message, Outcome, Part, PartKind,
    ProviderData, Role, Round, Str, ToolCallPart, ToolContent, ToolOutcome, ToolResult, Transcript,
    Turn,
};
use serde_json::Value;
use std::sync::Arc;

/// The maximum number of JSON texts inside of each other that are edited as such.
const DEPTH: usize = 8;

/// The number of bytes at the end of a field's name that rules may match together with its value: an array has
/// many values, each with the same name.
const NAME: usize = 64;

/// Replaces matches in texts of some kinds, and collects them.
///
/// A method returns whether it has changed its text.
pub(super) struct Edit<'a> {
    rules: &'a Rules,
    parts: Parts,
    /// The matches: the rule, the kind of the text, and the length in bytes.
    pub(super) found: Vec<(usize, Parts, usize)>,
    /// Whether a match blocks.
    pub(super) is_blocked: bool,
    // The number of JSON texts around the current one.
    depth: usize,
}

impl<'a> Edit<'a> {
    pub(super) const fn new(rules: &'a Rules, parts: Parts) -> Self {
        Self {
            rules,
            parts,
            found: Vec::new(),
            is_blocked: false,
            depth: 0,
        }
    }

    /// Returns the text that replaces `text`, if it is different.
    fn replaced(&mut self, text: &str, part: Parts) -> Option<Str> {
        if !self.parts.contains(part) {
            return None;
        }
        let released = scan::whole(self.rules, text)?;
        self.is_blocked |= released.is_blocked;
        let found = released.matches.iter();
        self.found
            .extend(found.map(|found| (found.rule, part, found.len)));
        (released.text != text).then_some(released.text)
    }

    pub(super) fn text(&mut self, text: &mut Str, part: Parts) -> bool {
        let by = self.replaced(text, part);
        let is_changed = by.is_some();
        *text = by.unwrap_or_else(|| std::mem::take(text));
        is_changed
    }

    /// A text that may be JSON, whose strings then are edited without their escapes.
    pub(super) fn json(&mut self, text: &str, part: Parts) -> Option<String> {
        if !self.parts.contains(part) {
            return None;
        }
        if !json::is_json(text) {
            return self.replaced(text, part).map(|text| text.to_string());
        }
        self.depth += 1;
        let by = json::rewrite(text, |name, value| {
            let by = self.field(name, value, part);
            by.map(|text| text.to_string())
        });
        self.depth -= 1;
        by
    }

    /// Returns the text that replaces the value of a field, if it is different. Rules may match the name and
    /// the value together, as in `password: ...`.
    fn field(&mut self, name: Option<&str>, value: &str, part: Parts) -> Option<Str> {
        let is_nested = self.depth < DEPTH && value.trim_start().starts_with(['{', '[']);
        if is_nested && self.parts.contains(part) && json::is_json(value) {
            let found = self.found.len();
            let by = self.json(value, part);
            if by.is_some() || self.found.len() > found {
                return by.map(Str::from);
            }
        }
        let by = self.replaced(value, part);
        let (None, Some(name)) = (&by, name) else {
            return by;
        };
        let (_, name) = name.split_at(name.ceil_char_boundary(name.len().saturating_sub(NAME)));
        let found = self.found.len();
        let by = self.replaced(&format!("{name}: {value}"), part)?;
        if by.ends_with(&format!(": {value}")) {
            // The name alone matches, and is edited as such.
            self.found.truncate(found);
            return None;
        }
        let rest = by
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(": "));
        Some(rest.map_or_else(|| by.clone(), Str::from))
    }

    /// The strings in a value and, with `names`, those of its fields.
    pub(super) fn value(&mut self, value: &mut Value, part: Parts, names: bool) -> bool {
        self.value_of(None, value, part, names)
    }

    fn value_of(
        &mut self,
        name: Option<&str>,
        value: &mut Value,
        part: Parts,
        names: bool,
    ) -> bool {
        match value {
            Value::String(text) => {
                let by = self.field(name, text, part);
                let is_changed = by.is_some();
                if let Some(by) = by {
                    *text = by.to_string();
                }
                is_changed
            }
            Value::Number(number) => {
                let by = self.field(name, &number.to_string(), part);
                let is_changed = by.is_some();
                if let Some(by) = by {
                    *value = Value::String(by.to_string());
                }
                is_changed
            }
            Value::Array(items) => {
                let edits = items
                    .iter_mut()
                    .map(|item| self.value_of(name, item, part, names));
                edits.fold(false, |all, it| all | it)
            }
            Value::Object(fields) => {
                let edits = fields.iter_mut();
                let edits =
                    edits.map(|(name, field)| self.value_of(Some(name), field, part, names));
                let mut is_changed = edits.fold(false, |all, it| all | it);
                let renamed: Vec<(String, Str)> = fields
                    .keys()
                    .filter(|_| names)
                    .filter_map(|name| Some((name.clone(), self.replaced(name, part)?)))
                    .collect();
                if !renamed.is_empty() {
                    is_changed = true;
                    let mut names: json::Names = fields.keys().cloned().collect();
                    for (name, by) in renamed {
                        if let Some(field) = fields.remove(&name) {
                            fields.insert(names.add(&by), field);
                        }
                    }
                }
                is_changed
            }
            _ => false,
        }
    }

    pub(super) fn shared(&mut self, value: &mut Arc<Value>, part: Parts) -> bool {
        if !self.parts.contains(part) {
            return false;
        }
        let mut edited = Value::clone(value);
        let is_changed = self.value(&mut edited, part, true);
        if is_changed {
            *value = Arc::new(edited);
        }
        is_changed
    }

    /// Whether a rule matches in data of a provider.
    fn is_found(&mut self, data: &ProviderData) -> bool {
        if !self.parts.contains(Parts::PROVIDER_DATA) {
            return false;
        }
        let before = self.found.len();
        self.value(&mut data.data.clone(), Parts::PROVIDER_DATA, true);
        self.found.len() > before
    }

    pub(super) fn provider_data(&mut self, data: &mut Option<Arc<ProviderData>>) -> bool {
        let is_changed = data.as_deref().is_some_and(|data| self.is_found(data));
        if is_changed {
            *data = None;
        }
        is_changed
    }

    fn media(&mut self, media: &mut Media, part: Parts) -> bool {
        let mut is_changed = media
            .name
            .as_mut()
            .is_some_and(|name| self.text(name, part));
        if let Some(media_type) = &mut media.media_type {
            is_changed |= self.text(media_type, part);
        }
        if let MediaSource::Url(url) = &mut media.source
            && !url.starts_with("data:")
        {
            is_changed |= self.text(url, part);
        }
        is_changed
    }

    pub(super) fn call(&mut self, call: &mut ToolCallPart) -> bool {
        let mut is_changed = self.text(&mut call.name, Parts::ARGUMENTS);
        if let Some(arguments) = self.json(call.arguments.as_str(), Parts::ARGUMENTS) {
            call.arguments = arguments.into();
            is_changed = true;
        }
        is_changed
    }

    pub(super) fn outcome(&mut self, outcome: &mut ToolOutcome) -> bool {
        let part = Parts::RESULTS;
        let mut is_changed = match &mut outcome.content {
            ToolContent::Text(text) => match self.json(text, part) {
                Some(by) => {
                    *text = by.into();
                    true
                }
                None => false,
            },
            ToolContent::Parts(parts) => self.parts(parts, part),
            _ => false,
        };
        if let Some(data) = &mut outcome.data {
            is_changed |= self.shared(data, part);
        }
        if let Some(reason) = &mut outcome.halt {
            is_changed |= self.text(reason, part);
        }
        is_changed
    }

    pub(super) fn result(&mut self, result: &mut ToolResult) -> bool {
        let is_changed = self.text(&mut result.name, Parts::ARGUMENTS);
        self.outcome(&mut result.outcome) | is_changed
    }

    /// A part of a message; `None` if it is removed. Its text is of the kind `text`.
    pub(super) fn part(&mut self, part: &mut Part, text: Parts) -> Option<bool> {
        let mut is_changed = match &mut part.kind {
            PartKind::Text(of) => {
                let by = match text {
                    Parts::RESULTS => self.json(of, text).map(Str::from),
                    // As of a layer that has a conversation summarised.
                    Parts::USER if json::is_json(of) && of.trim_start().starts_with(['{', '[']) => {
                        let by = self.json(of, text).map(Str::from);
                        // Rules may match the text as it is.
                        let rest = self.replaced(by.as_ref().unwrap_or(of), text);
                        rest.or(by)
                    }
                    _ => self.replaced(of, text),
                };
                let is_changed = by.is_some();
                *of = by.unwrap_or_else(|| std::mem::take(of));
                is_changed
            }
            PartKind::Reasoning(of) => self.text(of, Parts::REASONING),
            PartKind::Refusal(of) => self.text(of, Parts::REFUSAL),
            PartKind::Image(media) | PartKind::Audio(media) | PartKind::File(media) => {
                self.media(media, text)
            }
            PartKind::ToolCall(call) => {
                // What a provider keeps about a call is not a signature of its arguments.
                let is_changed = self.call(call);
                return Some(self.provider_data(&mut part.provider_data) | is_changed);
            }
            PartKind::ToolResult(result) => self.result(result),
            PartKind::Provider(data) if self.is_found(data) => return None,
            _ => false,
        };
        if is_changed {
            // It may be a signature of the text, or repeat it.
            part.provider_data = None;
        }
        is_changed |= self.provider_data(&mut part.provider_data);
        Some(is_changed)
    }

    fn parts(&mut self, parts: &mut Vec<Part>, text: Parts) -> bool {
        let mut is_changed = false;
        parts.retain_mut(|part| {
            let edited = self.part(part, text);
            is_changed |= edited != Some(false);
            edited.is_some()
        });
        is_changed
    }

    pub(super) fn message(&mut self, message: &mut Message) -> bool {
        let text = match message.role {
            Role::User => Parts::USER,
            Role::System => Parts::SYSTEM,
            Role::Tool => Parts::RESULTS,
            _ => Parts::TEXT,
        };
        self.parts(&mut message.parts, text)
    }

    /// Returns the turn that replaces `turn`, if it is different.
    fn turn(&mut self, turn: &Turn) -> Option<Turn> {
        let mut message = turn.as_message().clone();
        let mut is_changed = self.message(&mut message);
        let mut results = turn.results().to_vec();
        for result in &mut results {
            is_changed |= self.result(result);
        }
        if !is_changed {
            return None;
        }
        // The ids of the calls are unchanged.
        let edited = match turn.as_round() {
            Some(_) => Round::new(message, results).map(Turn::from),
            None => Turn::message(message),
        };
        self.is_blocked |= edited.is_err();
        Some(edited.unwrap_or_else(|_| turn.clone()))
    }

    /// Returns the conversation that replaces `all`, whose first turns `known` has, and those that replace
    /// these.
    pub(super) fn transcript(
        &mut self,
        all: &Transcript,
        known: Option<&(Transcript, Transcript)>,
    ) -> Transcript {
        let known = known.filter(|(of, _)| all.extends(of));
        let (start, mut edited) = match known {
            Some((of, by)) => (of.len(), by.clone()),
            None => (0, Transcript::new()),
        };
        let mut turns: Vec<&Turn> = all.rev().take(all.len().saturating_sub(start)).collect();
        turns.reverse();
        // Unchanged turns stay shared, so that layers inside recognise them.
        let mut is_same = all.extends(&edited);
        for (at, turn) in turns.into_iter().enumerate() {
            match self.turn(turn) {
                Some(turn) => {
                    if is_same {
                        edited = all.prefix(start + at);
                        is_same = false;
                    }
                    edited.push(turn);
                }
                None if is_same => {}
                None => edited.push(turn.clone()),
            }
        }
        if is_same { all.clone() } else { edited }
    }

    /// Returns what replaces a conversation that is shown: all of it with [`Parts::TRANSCRIPT`].
    pub(super) fn conversation(&mut self, all: &Transcript) -> Transcript {
        let parts = self.parts;
        if parts.contains(Parts::TRANSCRIPT) {
            self.parts = Parts::ALL;
        }
        let edited = self.transcript(all, None);
        self.parts = parts;
        edited
    }

    /// A reason may be that of a provider.
    pub(super) fn reason(&mut self, reason: &mut FinishReason) {
        if let FinishReason::Other(reason) = reason {
            self.text(reason, Parts::TEXT);
        }
    }

    pub(super) fn finish(&mut self, finish: &mut Finish) {
        match &mut finish.outcome {
            Outcome::Halted { reason }
            | Outcome::Aborted {
                reason: CancelReason::Other(reason),
            } => {
                self.text(reason, Parts::TEXT);
            }
            _ => {}
        }
        self.reason(&mut finish.reason);
        if let Some(reason) = &mut finish.provider_reason {
            self.text(reason, Parts::TEXT);
        }
        if self.parts.contains(Parts::TRANSCRIPT)
            && let Some(transcript) = &mut finish.transcript
        {
            *transcript = self.conversation(transcript);
        }
    }
}
