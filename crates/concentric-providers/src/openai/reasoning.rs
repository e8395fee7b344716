//! The reasoning of a response, and its provider data.

use concentric_core::{Event, Part, PartEnd, PartKind, ProviderData, Str};
use serde_json::{Value, json};
use std::{collections::VecDeque, sync::Arc};

#[derive(Debug, Default)]
pub(super) struct Reasoning {
    // Whether the last delta was reasoning.
    open: bool,
    // `reasoning_details`, which are sent back unchanged, except that deltas are merged.
    details: Vec<Value>,
}

impl Reasoning {
    #[inline]
    pub(super) fn text(&mut self, text: Str, events: &mut VecDeque<Event>) {
        self.open = true;
        events.push_back(Event::ReasoningDelta(text));
    }

    /// Adds `reasoning_details`. `shown` is the text of the same delta, if it is sent separately.
    pub(super) fn details(
        &mut self,
        details: Value,
        shown: Option<Str>,
        events: &mut VecDeque<Event>,
    ) {
        let details = match details {
            Value::Array(details) => details,
            _ => Vec::new(),
        };
        let shown_apart = shown.is_some();
        if let Some(text) = shown {
            self.text(text, events);
        }
        let is_filled =
            |detail: &Value| detail.as_object().is_some_and(|detail| !detail.is_empty());
        for detail in details.into_iter().filter(is_filled) {
            if !shown_apart
                && let Some(text) = ["text", "summary"]
                    .iter()
                    .find_map(|f| detail.get(f)?.as_str())
                && !text.is_empty()
            {
                self.text(text.into(), events);
            }
            self.detail(detail);
        }
    }

    fn detail(&mut self, detail: Value) {
        let same = |old: &Value| {
            ["type", "index", "id"]
                .iter()
                .all(|field| match (old.get(field), detail.get(field)) {
                    (Some(old), Some(new)) if !old.is_null() && !new.is_null() => old == new,
                    _ => *field != "type",
                })
        };
        let Some(Value::Object(old)) = self.details.last_mut().filter(|old| same(old)) else {
            self.details.push(detail);
            return;
        };
        let Value::Object(new) = detail else {
            return;
        };
        for (field, value) in new {
            match (old.get_mut(&field), value) {
                (_, Value::Null) => {}
                (Some(Value::String(text)), Value::String(more))
                    if matches!(field.as_str(), "text" | "summary" | "data") =>
                {
                    text.push_str(&more);
                }
                (_, value) => {
                    old.insert(field, value);
                }
            }
        }
    }

    /// Ends the reasoning before other content or at the end of the response.
    #[inline]
    pub(super) fn end(&mut self, provider: &Str, events: &mut VecDeque<Event>) {
        if !self.details.is_empty() {
            self.end_with_details(provider, events);
        }
        self.open = false;
    }

    fn end_with_details(&mut self, provider: &Str, events: &mut VecDeque<Event>) {
        let data = json!({ "reasoning_details": std::mem::take(&mut self.details) });
        let data = Some(Arc::new(ProviderData::new(provider.clone(), data)));
        events.push_back(if self.open {
            Event::PartEnd(Box::new(PartEnd::new(data)))
        } else {
            // The service hides this reasoning, but requires its details in later requests.
            let part = Part::new(PartKind::Reasoning(Str::default()));
            Event::Part(Box::new(part.with_provider_data(data)))
        });
    }
}
