//! Converts a conversation for a service, including messages from other providers.
//!
//! Provider-specific data (a signature, encrypted reasoning, a block of a server tool) is sent back
//! only to the provider that produced it, and so is reasoning, readable or not: for another
//! provider it is neither its own reasoning nor part of the conversation. Ids of tool calls are the
//! provider's own where the provider made the call and assigned an id, otherwise ours, converted to
//! a form that the service accepts. The same applies to the names of the called tools.

use crate::repair::repair;
use concentric_core::{
    Arguments, Author, CallId, Executor, Part, PartKind, ProviderData, Str, ToolCallPart,
    ToolContent, ToolResult, ToolSpecs, Turn,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, value::RawValue};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

/// The ids of tool calls that a service accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdRules {
    /// The maximum number of characters; also the minimum if `exact`.
    pub(crate) length: usize,
    pub(crate) exact: bool,
    /// Accepted characters besides ASCII letters and digits.
    pub(crate) punctuation: &'static str,
}

impl IdRules {
    /// Accepts every id.
    pub(crate) const ANY: Self = Self {
        length: usize::MAX,
        exact: false,
        punctuation: "",
    };

    fn fits(&self, id: &str) -> bool {
        if *self == Self::ANY {
            return !id.is_empty();
        }
        let count = id.chars().count();
        let length = match self.exact {
            true => count == self.length,
            false => (1..=self.length).contains(&count),
        };
        let is_known = |c: char| c.is_ascii_alphanumeric() || self.punctuation.contains(c);
        length && id.chars().all(is_known)
    }

    /// The id for `call` in a request. `own` means that the provider made the call.
    ///
    /// The same call has the same id at every position in a conversation.
    pub(crate) fn id<'a>(&self, call: &'a ToolCallPart, own: bool) -> Cow<'a, str> {
        let provided = call
            .provider_id
            .as_deref()
            .filter(|id| own && self.fits(id));
        if let Some(id) = provided.or_else(|| Some(call.id.as_str()).filter(|id| self.fits(id))) {
            return id.into();
        }
        // Every service accepts letters and digits.
        const DIGITS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut id = String::new();
        let mut hash = DefaultHasher::new();
        while id.len() < self.length.min(24) {
            call.id.as_str().hash(&mut hash);
            let mut left = hash.finish();
            for _ in 0..12.min(self.length - id.len()) {
                id.extend(DIGITS.get((left % 36) as usize).copied().map(char::from));
                left /= 36;
            }
        }
        id.into()
    }
}

/// The names of tools that a service accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameRules {
    /// The maximum number of characters.
    pub(crate) length: usize,
    /// Accepted characters besides ASCII letters and digits.
    pub(crate) punctuation: &'static str,
    /// Whether a name must start with a letter or `_`.
    pub(crate) begins_with_letter: bool,
}

impl NameRules {
    /// The names that every chat completions service accepts (OpenAI's *Create chat completion*).
    pub(crate) const COMMON: Self = Self {
        length: 64,
        punctuation: "_-",
        begins_with_letter: false,
    };

    fn knows(&self, c: char) -> bool {
        c.is_ascii_alphanumeric() || self.punctuation.contains(c)
    }

    fn takes_first(&self, name: &str) -> bool {
        let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        !self.begins_with_letter || name.starts_with(letter)
    }

    pub(crate) fn fits(&self, name: &str) -> bool {
        (1..=self.length).contains(&name.len())
            && self.takes_first(name)
            && name.chars().all(|c| self.knows(c))
    }

    /// Converts the name of a tool in a history: a model may have invented it, or another service
    /// may have accepted it.
    pub(crate) fn name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        if self.fits(name) {
            return name.into();
        }
        if name.is_empty() {
            return "unknown".into();
        }
        let known = name.chars().map(|c| if self.knows(c) { c } else { '_' });
        let first = (!self.takes_first(name)).then_some('_');
        let name: String = first.into_iter().chain(known).take(self.length).collect();
        name.into()
    }

    /// Adds the offered names for a service which may accept any: offered tools keep their names.
    pub(crate) fn beside(self, offered: &ToolSpecs) -> NamesBeside<'_> {
        let odd = offered.iter().map(|spec| spec.name.as_str());
        NamesBeside {
            rules: self,
            odd: odd.filter(|name| !self.fits(name)).collect(),
        }
    }
}

/// The names of tools that a service accepts besides those of the offered tools.
pub(crate) struct NamesBeside<'a> {
    rules: NameRules,
    /// The offered names that do not follow the rules.
    odd: HashSet<&'a str>,
}

impl NamesBeside<'_> {
    pub(crate) fn name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self.odd.contains(name) {
            true => name.into(),
            false => self.rules.name(name),
        }
    }
}

/// The arguments of a call, which serialize as a JSON object.
///
/// They are parsed when they are serialized, since requests are also built only to be checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a Arguments);

impl Serialize for Input<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.as_str();
        let json = serde_json::from_str::<&RawValue>(text).ok();
        let Some(json) = json.filter(|json| json.get().starts_with('{')) else {
            return Map::new().serialize(serializer);
        };
        // Some parsers accept an unpaired surrogate; the services do not.
        if !text.contains("\\u") || serde_json::from_str::<Value>(text).is_ok() {
            return json.serialize(serializer);
        }
        let repaired: Map<String, Value> = serde_json::from_str(&repair(text)).unwrap_or_default();
        repaired.serialize(serializer)
    }
}

/// Whether `provider` authored `part`.
pub(crate) fn is_own(part: &Part, provider: &Str) -> bool {
    match &part.author {
        Author::Model { provider: by, .. } => by == provider,
        _ => part
            .provider_data
            .as_deref()
            .is_some_and(|data| data.provider == *provider),
    }
}

/// The data of `part` that must be sent back to `provider`.
pub(crate) fn own_data<'a>(part: &'a Part, provider: &Str) -> Option<&'a ProviderData> {
    let data = match &part.kind {
        PartKind::Provider(data) => Some(data),
        _ => part.provider_data.as_deref(),
    };
    data.filter(|data| data.provider == *provider)
}

/// The text of the reasoning in `parts` by models of `provider`.
pub(crate) fn own_reasoning(parts: &[Part], provider: &Str) -> String {
    let thought = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Reasoning(text) if is_own(part, provider) => Some(text.as_str()),
        _ => None,
    });
    thought.collect()
}

/// The results of a turn, indexed by their calls.
pub(crate) struct Results<'a> {
    list: Vec<&'a ToolResult>,
    /// Empty if there are only a few results, for which a linear search is faster.
    by_call: HashMap<&'a CallId, &'a ToolResult>,
}

impl<'a> Results<'a> {
    pub(crate) fn of(turn: &'a Turn) -> Self {
        const FEW: usize = 16;
        let own = turn.as_message().parts.iter();
        let own = own.filter_map(|part| match &part.kind {
            PartKind::ToolResult(result) => Some(result),
            _ => None,
        });
        let list: Vec<&ToolResult> = turn.results().iter().chain(own).collect();
        let mut by_call = HashMap::new();
        if list.len() > FEW {
            by_call.reserve(list.len());
            for result in &list {
                by_call.entry(&result.call_id).or_insert(*result);
            }
        }
        Self { list, by_call }
    }

    /// The first result of a call.
    pub(crate) fn get(&self, call: &CallId) -> Option<&'a ToolResult> {
        if self.by_call.is_empty() {
            let mut all = self.list.iter().copied();
            return all.find(|result| result.call_id == *call);
        }
        self.by_call.get(call).copied()
    }
}

/// The user message that is inserted before an initial assistant message, for services whose
/// conversations start with a user.
pub(crate) const BEGINNING: &str = "[The conversation begins with the assistant.]";

/// One segment of an assistant turn: its content, its calls, and their results.
///
/// A turn that contains tool results has several segments: the content and the calls before a
/// result, and the content after it. Calls that a provider executed itself are not listed in
/// `calls`, since neither they nor their results are sent to other providers.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) parts: &'a [Part],
    /// The calls in `parts` that have a result, except those that the provider executed.
    pub(crate) calls: Vec<(&'a Part, &'a ToolCallPart, &'a ToolResult)>,
}

/// Splits an assistant turn into segments.
pub(crate) fn segments(turn: &Turn) -> Vec<Segment<'_>> {
    let message = turn.as_message();
    let results = Results::of(turn);
    let is_result = |part: &Part| matches!(part.kind, PartKind::ToolResult(_));
    let mut pieces = Vec::new();
    for parts in message
        .parts
        .split(is_result)
        .filter(|parts| !parts.is_empty())
    {
        let calls = parts.iter().filter_map(|part| match &part.kind {
            PartKind::ToolCall(call) if call.executor != Executor::Provider => {
                Some((part, call, results.get(&call.id)?))
            }
            _ => None,
        });
        pieces.push(Segment {
            parts,
            calls: calls.collect(),
        });
    }
    pieces
}

/// The parts of the content of a tool result, if it has any.
pub(crate) fn parts(content: &ToolContent) -> &[Part] {
    match content {
        ToolContent::Parts(parts) => parts,
        _ => &[],
    }
}

/// The text of `part`: of a text, or of a refusal, which may be the whole response. Media that a
/// model generated are replaced with a name, since most services accept media only from users.
pub(crate) fn words(part: &Part) -> Option<&str> {
    match &part.kind {
        PartKind::Text(text) | PartKind::Refusal(text) => Some(text),
        PartKind::Image(_) => Some("[image]"),
        PartKind::Audio(_) => Some("[sound]"),
        PartKind::File(_) => Some("[document]"),
        _ => None,
    }
}

/// The text of `parts`.
pub(crate) fn text(parts: &[Part]) -> Cow<'_, str> {
    joined(parts.iter().filter_map(words))
}

/// The concatenated `texts`.
pub(crate) fn joined<'a>(mut texts: impl Iterator<Item = &'a str>) -> Cow<'a, str> {
    match (texts.next(), texts.next()) {
        (None, _) => "".into(),
        (Some(only), None) => only.into(),
        (Some(first), Some(second)) => {
            let mut all = [first, second].concat();
            all.extend(texts);
            all.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concentric_core::{Message, Role, ToolOutcome, ToolSpec};
    use std::sync::Arc;

    fn call(id: &str, provided: Option<&str>) -> ToolCallPart {
        ToolCallPart::new(CallId::new(id), "f", "{}").with_provider_id(provided.map(Str::from))
    }

    #[test]
    fn an_id_is_the_providers_or_ours_or_converted() {
        let nine = IdRules {
            length: 9,
            exact: true,
            punctuation: "",
        };
        let long = IdRules {
            length: 40,
            exact: false,
            punctuation: "_-",
        };
        assert_eq!(
            nine.id(&call("call_1", Some("abcdefghi")), true),
            "abcdefghi"
        );
        let made = nine
            .id(&call("call_1", Some("abcdefghi")), false)
            .into_owned();
        assert_eq!(made.len(), 9);
        assert_eq!(nine.id(&call("call_1", None), true), made);
        assert_ne!(nine.id(&call("call_2", None), true), made);
        assert_eq!(long.id(&call("call_1", Some("a:b")), true), "call_1");
        let strange = "x|y".repeat(40);
        assert_eq!(long.id(&call(&strange, None), true).len(), 24);
        assert_eq!(IdRules::ANY.id(&call(&strange, None), true), strange);
    }

    #[test]
    fn a_name_is_kept_or_converted() {
        let rules = NameRules::COMMON;
        let long = "x".repeat(65);
        for (name, fit) in [
            ("files-read_2", "files-read_2"),
            ("files.read", "files_read"),
            ("mcp:server/tool näme", "mcp_server_tool_n_me"),
            ("5", "5"),
            ("", "unknown"),
            (&long, long.get(..64).expect("longer")),
        ] {
            assert_eq!(rules.name(name), fit);
            assert!(rules.fits(fit));
        }
        let letter = NameRules {
            begins_with_letter: true,
            ..rules
        };
        assert_eq!(letter.name("5"), "_5");
        assert_eq!(letter.name("é.5"), "___5");
        let offered = ToolSpecs::new([Arc::new(ToolSpec::new(
            "files.read",
            "",
            serde_json::json!({"type": "object"}),
        ))]);
        assert_eq!(rules.beside(&offered).name("files.read"), "files.read");
        assert_eq!(rules.beside(&offered).name("files.write"), "files_write");
    }

    #[test]
    fn reasoning_is_sent_only_to_its_own_provider() {
        let by = |provider: &str, text: &str| {
            let author = Author::Model {
                provider: provider.into(),
                model: "m".into(),
            };
            Part::new(PartKind::Reasoning(text.into())).by(author)
        };
        let unattributed = Part::new(PartKind::Reasoning("c".into()));
        let parts = [by("x", "a"), by("y", "b"), unattributed, by("x", "d")];
        assert_eq!(own_reasoning(&parts, &"x".into()), "ad");
        assert_eq!(own_reasoning(&parts, &"y".into()), "b");
        assert_eq!(own_reasoning(&parts, &"z".into()), "");
    }

    #[test]
    fn a_turn_with_results_has_several_segments() {
        let result = ToolResult::new(CallId::new("1"), "f", ToolOutcome::done("ok"));
        let parts = vec![
            Part::text("a"),
            Part::new(PartKind::ToolCall(
                call("1", None).executed_by(Executor::Agent),
            )),
            Part::new(PartKind::ToolResult(result)),
            Part::text("b"),
        ];
        let turn = Turn::message(Message::new(Role::Assistant, parts)).expect("a turn");
        let pieces = segments(&turn);
        assert_eq!(pieces.len(), 2);
        let counts: Vec<_> = pieces
            .iter()
            .map(|p| (p.parts.len(), p.calls.len()))
            .collect();
        assert_eq!(counts, [(2, 1), (1, 0)]);
    }

    #[test]
    fn calls_of_the_provider_have_no_result_in_a_segment() {
        let result = ToolResult::new(CallId::new("1"), "f", ToolOutcome::done("ok"));
        let parts = vec![
            Part::new(PartKind::ToolCall(
                call("1", None).executed_by(Executor::Provider),
            )),
            Part::new(PartKind::ToolResult(result)),
            Part::text("b"),
        ];
        let turn = Turn::message(Message::new(Role::Assistant, parts)).expect("a turn");
        assert!(segments(&turn).iter().all(|piece| piece.calls.is_empty()));
    }
}
