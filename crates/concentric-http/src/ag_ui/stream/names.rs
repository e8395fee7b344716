use std::collections::HashMap;

use concentric_core::{CallId, Str, ToolSpecs};

/// What the client calls a run, and the identifiers that it knows already.
#[derive(Debug)]
pub(in crate::ag_ui) struct RunIds {
    pub(in crate::ag_ui) thread: String,
    pub(in crate::ag_ui) run: String,
    pub(in crate::ag_ui) parent: Option<String>,
    /// The client's tools.
    pub(in crate::ag_ui) tools: ToolSpecs,
    pub(in crate::ag_ui) messages: Names,
    pub(in crate::ag_ui) calls: Names,
    /// The calls of the history's last message, which the run may have results of.
    pub(in crate::ag_ui) known: Vec<KnownCall>,
    /// The calls of the history's sub-agents that have no result, by their runs, and what the client
    /// calls them: one that waited has its results when it continues.
    pub(in crate::ag_ui) subagent_calls: HashMap<String, HashMap<CallId, Str>>,
}

/// A call that the client has from an earlier run.
#[derive(Debug)]
pub(in crate::ag_ui) struct KnownCall {
    pub(in crate::ag_ui) id: CallId,
    /// What the client calls it.
    pub(in crate::ag_ui) wire: Str,
    /// Whether the client has its result.
    pub(in crate::ag_ui) answered: bool,
}

/// Identifiers of one kind that are in use.
///
/// A client takes a message or a call whose identifier it knows for the one that it has, and shows
/// nothing new; models and scripts repeat theirs.
#[derive(Debug, Default)]
pub(in crate::ag_ui) struct Names(HashMap<Str, u32>);

impl Names {
    /// Says that `id` is in use.
    pub(in crate::ag_ui) fn take(&mut self, id: &str) {
        self.0.entry(id.into()).or_insert(1);
    }

    /// An identifier that is not in use: `wanted`, or else it and a number.
    pub(super) fn unique(&mut self, wanted: &str) -> Str {
        let Some(count) = self.0.get_mut(wanted) else {
            let id = Str::from(wanted);
            self.0.insert(id.clone(), 1);
            return id;
        };
        let mut n = *count;
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

/// What stands between an identifier and the number that tells it apart.
const MARK: char = '~';

/// What an identifier was before a [number](Names::unique) was appended to it.
pub(in crate::ag_ui) fn original(id: &str) -> Option<&str> {
    let (original, number) = id.rsplit_once(MARK)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(original)
}
