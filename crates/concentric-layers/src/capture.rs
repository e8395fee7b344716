//! The text of requests and answers, as observers record it.

use concentric_core::panic::catch;
use serde_json::Value;
use std::{borrow::Cow, fmt, sync::Arc};

/// The text that is recorded instead of one whose redaction panicked.
const REDACTION_FAILED: &str = "[redaction_failed]";

/// How much text is recorded, if any, and with what removed.
#[derive(Clone, Default)]
pub(crate) struct Capture {
    max_chars: Option<usize>,
    redact: Option<Arc<Redact>>,
}

type Redact = dyn Fn(&str) -> String + Send + Sync;

impl Capture {
    pub(crate) fn set_max(&mut self, chars: usize) {
        self.max_chars = Some(chars);
    }

    pub(crate) fn set_redact(&mut self, redact: impl Fn(&str) -> String + Send + Sync + 'static) {
        self.redact = Some(Arc::new(redact));
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.max_chars.is_some()
    }

    /// The number of characters that are recorded; `None` if no text is recorded.
    #[cfg(feature = "otel")]
    pub(crate) const fn max_chars(&self) -> Option<usize> {
        self.max_chars
    }

    /// Returns what is recorded of `text`; `None` if no text is recorded.
    pub(crate) fn text(&self, text: &str) -> Option<String> {
        let max = self.max_chars?;
        // The whole text is redacted, since a cut might split what is to be removed.
        Some(cut(&self.redacted(text), max).to_owned())
    }

    /// Removes from the names and values of JSON what is to be removed.
    pub(crate) fn redact(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.rewritten(text).into_owned(),
            Value::Number(number) => {
                let text = number.to_string();
                let redacted = self.rewritten(&text);
                if redacted != text {
                    *value = Value::String(redacted.into_owned());
                }
            }
            // No deeper than what serde_json parses.
            Value::Array(values) => values.iter_mut().for_each(|value| self.redact(value)),
            Value::Object(fields) => {
                let fields_of = std::mem::take(fields).into_iter();
                let redacted = fields_of.map(|(name, mut value)| {
                    self.redact(&mut value);
                    (self.rewritten(&name).into_owned(), value)
                });
                *fields = redacted.collect();
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// The whole text without what is removed, whether text is recorded or not.
    pub(crate) fn redacted<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = self.rewritten(text);
        // In JSON, an escape may hide what is to be removed.
        if text.contains('\\')
            && let Ok(mut value) = serde_json::from_str(&text)
        {
            self.redact(&mut value);
            return Cow::Owned(self.rewritten(&value.to_string()).into_owned());
        }
        text
    }

    /// The text as it is, without what is removed.
    pub(crate) fn rewritten<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let text = match &self.redact {
            None => Cow::Borrowed(text),
            Some(redact) => match catch(|| redact(text)) {
                Ok(text) => Cow::Owned(text),
                Err(_) => Cow::Borrowed(REDACTION_FAILED),
            },
        };
        without_secrets(text)
    }
}

/// Replaces credentials, which no record needs.
#[cfg(feature = "guard")]
fn without_secrets(text: Cow<'_, str>) -> Cow<'_, str> {
    use crate::guard::{Rules, secrets};
    use std::sync::LazyLock;

    static RULES: LazyLock<Option<Rules>> = LazyLock::new(|| Rules::new(secrets::all()).ok());
    let Some(rules) = &*RULES else {
        return Cow::Borrowed(REDACTION_FAILED);
    };
    let replaced = match rules.apply(&text) {
        Cow::Owned(replaced) => Some(replaced),
        Cow::Borrowed(_) => None,
    };
    replaced.map_or(text, Cow::Owned)
}

#[cfg(not(feature = "guard"))]
const fn without_secrets(text: Cow<'_, str>) -> Cow<'_, str> {
    text
}

/// The first characters of `text`.
pub(crate) fn cut(text: &str, max_chars: usize) -> &str {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => text.get(..end).unwrap_or_default(),
        None => text,
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("max_chars", &self.max_chars)
            .field("is_redacted", &self.redact.is_some())
            .finish()
    }
}
