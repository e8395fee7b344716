//! The reasoning of a response, and its provider data.

use crate::api::Answer;
use concentric_core::{Event, PartKind, Str};
use serde_json::{Value, json};

#[derive(Debug, Default)]
pub(super) struct Reasoning {
    // Whether the last delta was reasoning.
    open: bool,
    // `reasoning_details`, which are sent back unchanged, except that deltas are merged.
    details: Vec<Value>,
}

impl Reasoning {
    #[inline]
    pub(super) fn text(&mut self, text: Str, answer: &mut Answer) {
        self.open = true;
        answer.emit(Event::ReasoningDelta(text));
    }

    /// Adds `reasoning_details`. `shown` is the text of the same delta, if it is sent separately.
    pub(super) fn details(&mut self, details: Value, shown: Option<Str>, answer: &mut Answer) {
        let shown_apart = shown.is_some();
        if let Some(text) = shown {
            self.text(text, answer);
        }
        let Value::Array(details) = details else {
            return;
        };
        let is_filled =
            |detail: &Value| detail.as_object().is_some_and(|detail| !detail.is_empty());
        for detail in details.into_iter().filter(is_filled) {
            if !shown_apart
                && let Some(text) = ["text", "summary"]
                    .iter()
                    .find_map(|f| detail.get(f)?.as_str())
                && !text.is_empty()
            {
                self.text(text.into(), answer);
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
    pub(super) fn end(&mut self, answer: &mut Answer) {
        if !self.details.is_empty() {
            self.end_with_details(answer);
        }
        self.open = false;
    }

    fn end_with_details(&mut self, answer: &mut Answer) {
        let data = json!({ "reasoning_details": std::mem::take(&mut self.details) });
        let data = answer.data(data);
        if self.open {
            answer.end_part(data);
        } else {
            // The service hides this reasoning, but requires its details in later requests.
            answer.part(PartKind::Reasoning(Str::default()), data);
        }
    }
}
