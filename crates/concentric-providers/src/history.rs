//! A conversation as one service may read it, whoever wrote it.
//!
//! What only its own provider understands (a signature, encrypted reasoning, a block of a server's
//! own tool) goes back to that provider, and to nobody else. So does what a model thought, readable or
//! not: to another it is neither its own thought nor something that was said. Ids of tool calls are the
//! provider's own where it gave them and made the call, and else ours, in the form that the service
//! takes; so are the names of the tools that were called.

use crate::repair::repair;
use concentric_core::{
    Arguments, Author, CallId, Executor, Part, PartKind, ProviderData, Str, ToolCallPart,
    ToolResult, ToolSpecs, Turn,
};
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

/// Which ids of tool calls a service takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdRules {
    /// The most characters; the least, where `exact`.
    pub(crate) length: usize,
    pub(crate) exact: bool,
    /// What may be in it besides ASCII letters and digits.
    pub(crate) punctuation: &'static str,
}

impl IdRules {
    /// Anything.
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

    /// What the service is to call `call`, which `part` is of.
    ///
    /// The same call has the same id wherever it stands in a conversation.
    pub(crate) fn id<'a>(&self, call: &'a ToolCallPart, own: bool) -> Cow<'a, str> {
        let provided = call
            .provider_id
            .as_deref()
            .filter(|id| own && self.fits(id));
        if let Some(id) = provided.or_else(|| Some(call.id.as_str()).filter(|id| self.fits(id))) {
            return id.into();
        }
        // Letters and digits are taken by all.
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

/// Which names of tools a service takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameRules {
    /// The most characters.
    pub(crate) length: usize,
    /// What may be in it besides ASCII letters and digits.
    pub(crate) punctuation: &'static str,
    /// Whether it begins with a letter or `_`.
    pub(crate) begins_with_letter: bool,
}

impl NameRules {
    /// What the services that speak chat completions take alike (OpenAI's *Create chat completion*).
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

    /// The name of a tool as it may stand in a history: a model may have made it up, or somebody
    /// else's service have taken it.
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

    /// These, of a service which may take any: what is offered is called as it is offered.
    pub(crate) fn beside(self, offered: &ToolSpecs) -> NamesBeside<'_> {
        let odd = offered.iter().map(|spec| spec.name.as_str());
        NamesBeside {
            rules: self,
            odd: odd.filter(|name| !self.fits(name)).collect(),
        }
    }
}

/// Which names of tools a service takes besides those that it is offered.
pub(crate) struct NamesBeside<'a> {
    rules: NameRules,
    /// The names that are offered, and are not as the rules say.
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

/// The arguments of a call as the JSON object that they are.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Input<'a> {
    Json(&'a RawValue),
    Repaired(Value),
}

impl<'a> Input<'a> {
    pub(crate) fn of(arguments: &'a Arguments) -> Self {
        let text = arguments.for_history();
        // Half of a surrogate pair is JSON to some, but not to the services.
        let odd = text.contains("\\u") && serde_json::from_str::<Value>(text).is_err();
        match serde_json::from_str(text) {
            Ok(json) if !odd => Self::Json(json),
            _ => {
                let value = serde_json::from_str(&repair(text)).unwrap_or_default();
                Self::Repaired(match value {
                    Value::Object(_) => value,
                    _ => Value::Object(Map::new()),
                })
            }
        }
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

/// What `provider` wants back with `part`.
pub(crate) fn own_data<'a>(part: &'a Part, provider: &Str) -> Option<&'a ProviderData> {
    let data = match &part.kind {
        PartKind::Provider(data) => Some(data),
        _ => part.provider_data.as_deref(),
    };
    data.filter(|data| data.provider == *provider)
}

/// What a model of `provider` thought in `parts`, as text.
pub(crate) fn own_reasoning(parts: &[Part], provider: &Str) -> String {
    let thought = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Reasoning(text) if is_own(part, provider) => Some(text.as_str()),
        _ => None,
    });
    thought.collect()
}

/// The results of a turn, by their calls.
pub(crate) struct Results<'a> {
    list: Vec<&'a ToolResult>,
    /// Empty for a few, which are found sooner without.
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

/// What a user is taken to say before an assistant's message that begins a conversation, for
/// services whose conversations begin with a user.
pub(crate) const BEGINNING: &str = "[The conversation begins with the assistant.]";

/// One piece of an assistant's turn: what it said, the calls it made in it, and their results.
///
/// A turn that holds results of calls that somebody else executed is several: what was said and
/// called, and behind its results, what was said then. What a provider executed itself is nobody
/// else's, neither the call nor its result.
#[derive(Debug)]
pub(crate) struct Said<'a> {
    pub(crate) parts: &'a [Part],
    /// The calls in `parts` that have a result, which it is behind them; what a provider executed
    /// itself has none here.
    pub(crate) calls: Vec<(&'a Part, &'a ToolCallPart, &'a ToolResult)>,
}

/// The pieces of an assistant's turn.
pub(crate) fn said(turn: &Turn) -> Vec<Said<'_>> {
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
        pieces.push(Said {
            parts,
            calls: calls.collect(),
        });
    }
    pieces
}

/// What `part` says in words: a text, or, since an answer may be nothing else, a refusal. A medium that
/// a model made, which most services take from nobody but a user, is named.
pub(crate) fn words(part: &Part) -> Option<&str> {
    match &part.kind {
        PartKind::Text(text) | PartKind::Refusal(text) => Some(text),
        PartKind::Image(_) => Some("[image]"),
        PartKind::Audio(_) => Some("[sound]"),
        PartKind::File(_) => Some("[document]"),
        _ => None,
    }
}

/// What `parts` say in words.
pub(crate) fn text(parts: &[Part]) -> Cow<'_, str> {
    joined(parts, words)
}

/// What is `said` by each of `parts`, as one text.
pub(crate) fn joined<'a>(
    parts: &'a [Part],
    said: impl Fn(&'a Part) -> Option<&'a str>,
) -> Cow<'a, str> {
    let mut texts = parts.iter().filter_map(said);
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
    fn an_id_is_the_providers_own_or_ours_or_made_to_fit() {
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
    fn a_name_is_its_own_or_made_to_fit() {
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
    fn what_a_model_thought_is_for_its_provider_only() {
        let by = |provider: &str, text: &str| {
            let author = Author::Model {
                provider: provider.into(),
                model: "m".into(),
            };
            Part::new(PartKind::Reasoning(text.into())).by(author)
        };
        let nobody = Part::new(PartKind::Reasoning("c".into()));
        let parts = [by("x", "a"), by("y", "b"), nobody, by("x", "d")];
        assert_eq!(own_reasoning(&parts, &"x".into()), "ad");
        assert_eq!(own_reasoning(&parts, &"y".into()), "b");
        assert_eq!(own_reasoning(&parts, &"z".into()), "");
    }

    #[test]
    fn a_turn_with_results_in_it_is_several() {
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
        let pieces = said(&turn);
        assert_eq!(pieces.len(), 2);
        let counts: Vec<_> = pieces
            .iter()
            .map(|p| (p.parts.len(), p.calls.len()))
            .collect();
        assert_eq!(counts, [(2, 1), (1, 0)]);
    }

    #[test]
    fn what_a_provider_executed_is_no_call_with_a_result() {
        let result = ToolResult::new(CallId::new("1"), "f", ToolOutcome::done("ok"));
        let parts = vec![
            Part::new(PartKind::ToolCall(
                call("1", None).executed_by(Executor::Provider),
            )),
            Part::new(PartKind::ToolResult(result)),
            Part::text("b"),
        ];
        let turn = Turn::message(Message::new(Role::Assistant, parts)).expect("a turn");
        assert!(said(&turn).iter().all(|piece| piece.calls.is_empty()));
    }
}
