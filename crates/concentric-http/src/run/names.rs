use std::collections::HashMap;

use bytes::Bytes;
use concentric_core::{CallId, Str, ToolSpecs};
use serde_json::Value;

/// The client's ids of a run, and the ids that are already in use.
#[derive(Debug)]
pub(crate) struct RunIds {
    pub(crate) thread: String,
    pub(crate) run: String,
    pub(crate) parent: Option<String>,
    /// The client's tools.
    pub(crate) tools: ToolSpecs,
    pub(crate) messages: Names,
    pub(crate) calls: Names,
    /// The client's system messages at the start of the history, which are not part of the
    /// conversation.
    pub(crate) system: Vec<Value>,
    /// The calls of the last message of the history, whose results the run may produce.
    pub(crate) known: Vec<KnownCall>,
    /// The calls of sub-agents in the history without a result, by run, with the client's ids: a
    /// resumed sub-agent produces their results.
    pub(crate) subagent_calls: HashMap<String, HashMap<CallId, Str>>,
    /// The message of the client that the answer continues, if a message has several steps.
    pub(crate) continued: Option<Continued>,
}

/// A message of the client that an answer continues.
#[derive(Debug)]
pub(crate) struct Continued {
    pub(crate) id: String,
    /// The client's ids of its calls, and whether the client has their results.
    pub(crate) calls: HashMap<String, bool>,
    /// The frames that create the message, without the first.
    pub(crate) frames: Bytes,
}

/// A call that the client knows from an earlier run.
#[derive(Debug)]
pub(crate) struct KnownCall {
    pub(crate) id: CallId,
    /// The client's id of the call.
    pub(crate) wire: Str,
    /// Whether the client has the result.
    pub(crate) answered: bool,
}

/// The ids of one kind that are in use.
///
/// A client ignores a message or call with a known id, and models and scripts repeat their ids.
#[derive(Debug, Default)]
// The last appended number; 0 for an id of the conversation that the client has.
pub(crate) struct Names(HashMap<Str, u32>);

impl Names {
    /// Marks `id` as used by the conversation that the client has.
    pub(crate) fn take(&mut self, id: &str) {
        self.0.entry(id.into()).or_insert(0);
    }

    /// Returns whether no output of this run has `id`, which a sub-agent's output may have.
    pub(crate) fn is_free(&self, id: &str) -> bool {
        self.0.get(id).is_none_or(|count| *count == 0)
    }

    /// Returns an unused id, and marks it as used: `wanted`, with a number appended if necessary.
    pub(crate) fn unique(&mut self, wanted: &str) -> Str {
        let Some(count) = self.0.get_mut(wanted) else {
            let id = Str::from(wanted);
            self.0.insert(id.clone(), 1);
            return id;
        };
        let mut n = (*count).max(1);
        loop {
            n = n.saturating_add(1);
            let id = Str::from(format!("{wanted}{MARK}{n}"));
            if !self.0.contains_key(&id) {
                self.0.insert(id.clone(), 1);
                if let Some(count) = self.0.get_mut(wanted) {
                    *count = n;
                }
                return id;
            }
        }
    }
}

/// The separator between an id and the appended number.
const MARK: char = '~';

/// The id without an appended [number](Names::unique); `None` if it has none.
pub(crate) fn original(id: &str) -> Option<&str> {
    let (original, number) = id.rsplit_once(MARK)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(original)
}
