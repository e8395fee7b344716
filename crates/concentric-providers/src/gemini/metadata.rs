//! What the service says about an answer, besides it: sources, citations, why it was blocked.

use super::wire::Candidate;
use serde_json::{Map, Value};

#[derive(Debug, Default)]
pub(super) struct Metadata(Map<String, Value>);

impl Metadata {
    /// Takes in what `candidate` says; whether that is anything.
    pub(super) fn take(&mut self, candidate: &mut Candidate<'_>) -> bool {
        let stopped = candidate.finish_reason.as_str() == Some("STOP");
        let mut fields = [
            ("groundingMetadata", candidate.grounding_metadata.take()),
            ("citationMetadata", candidate.citation_metadata.take()),
            ("urlContextMetadata", candidate.url_context_metadata.take()),
            // All that is said by them is that nothing happened, unless something did.
            ("safetyRatings", candidate.safety_ratings.take()),
            ("finishMessage", candidate.finish_message.take()),
        ];
        let happened = candidate.finish_reason.filled().is_some() && !stopped;
        let skip = if happened { 0 } else { 2 };
        let kept = fields.len() - skip;
        let mut changed = false;
        for (name, said) in fields.iter_mut().take(kept) {
            let Some(said) = said.take() else { continue };
            match (self.0.get_mut(*name), said) {
                (_, Value::Null) => {}
                (_, Value::Object(said)) if said.is_empty() => {}
                (Some(Value::Object(old)), Value::Object(new)) => {
                    changed |= join(old, new);
                }
                (_, said) => {
                    changed |= self.0.get(*name) != Some(&said);
                    self.0.insert((*name).to_owned(), said);
                }
            }
        }
        changed
    }

    /// All that was said, if anything was.
    pub(super) fn into_value(self) -> Option<Value> {
        (!self.0.is_empty()).then_some(Value::Object(self.0))
    }
}

/// Joins what is said of one thing in two chunks; whether that is anything new. A list that begins
/// with the old one replaces it.
fn join(old: &mut Map<String, Value>, new: Map<String, Value>) -> bool {
    let mut changed = false;
    for (name, value) in new {
        match (old.get_mut(&name), value) {
            (Some(Value::Array(old)), Value::Array(new)) if !new.starts_with(old) => {
                changed |= !new.is_empty();
                old.extend(new);
            }
            (known, value) => {
                changed |= known.as_deref() != Some(&value);
                old.insert(name, value);
            }
        }
    }
    changed
}
