//! The metadata of a response: sources, citations, and reasons for blocking.

use super::wire::Candidate;
use serde_json::{Map, Value};

#[derive(Debug, Default)]
pub(super) struct Metadata(Map<String, Value>);

impl Metadata {
    /// Adds the metadata of `candidate`. Returns whether they changed.
    pub(super) fn take(&mut self, candidate: &mut Candidate<'_>) -> bool {
        let stopped = candidate.finish_reason.as_str() == Some("STOP");
        let mut fields = [
            ("groundingMetadata", candidate.grounding_metadata.take()),
            ("citationMetadata", candidate.citation_metadata.take()),
            ("urlContextMetadata", candidate.url_context_metadata.take()),
            // Only relevant if the response was not stopped normally.
            ("safetyRatings", candidate.safety_ratings.take()),
            ("finishMessage", candidate.finish_message.take()),
        ];
        let happened = candidate.finish_reason.filled().is_some() && !stopped;
        let skip = if happened { 0 } else { 2 };
        let kept = fields.len() - skip;
        let mut changed = false;
        for (name, value) in fields.iter_mut().take(kept) {
            let Some(value) = value.take() else { continue };
            match (self.0.get_mut(*name), value) {
                (_, Value::Null) => {}
                (_, Value::Object(value)) if value.is_empty() => {}
                (Some(Value::Object(old)), Value::Object(new)) => {
                    changed |= join(old, new);
                }
                (_, value) => {
                    changed |= self.0.get(*name) != Some(&value);
                    self.0.insert((*name).to_owned(), value);
                }
            }
        }
        changed
    }

    /// The metadata, if there are any.
    pub(super) fn into_value(self) -> Option<Value> {
        (!self.0.is_empty()).then_some(Value::Object(self.0))
    }
}

/// Merges the metadata of two chunks, and returns whether they changed. A list that starts with the
/// old one replaces it.
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
