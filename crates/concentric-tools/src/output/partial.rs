use super::{VALUE_FOLLOWS, opened, unfenced};
use concentric_core::{Custom, Event, PartKind, Str};
use jiter::{JsonValue, PartialMode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use std::{fmt, marker::PhantomData};

/// Reads the typed answer of a run while it is written.
///
/// Hand it each event of the run, as it arrives. What it returns is the value as far as it is
/// written, each time that there is more of it. It is not validated: the schema and the type are
/// looked at when it is whole ([`Output::of_finish`](super::Output::of_finish)).
///
/// ```
/// use concentric_core::{Custom, Event};
/// use concentric_tools::output::{VALUE_FOLLOWS, output};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Folder {
///     purpose: String,
///     files: u32,
/// }
///
/// /// A folder that is not all there yet.
/// #[derive(Deserialize)]
/// struct Sketch {
///     purpose: Option<String>,
///     files: Option<u32>,
/// }
///
/// let mut partials = output::<Folder>("folder").partials::<Sketch>();
/// // The layer says this first, if the answer is to be the value.
/// let follows = Custom::new(VALUE_FOLLOWS, json!({"schema": "folder"}));
/// assert!(partials.push(&Event::Custom(Box::new(follows))).is_none());
///
/// let sketch = partials.push(&Event::text(r#"{"purpose": "te"#)).unwrap();
/// assert_eq!(sketch.purpose.as_deref(), Some("te"));
/// assert_eq!(sketch.files, None);
/// ```
///
/// # What is read
///
/// | event | |
/// |---|---|
/// | [`VALUE_FOLLOWS`], for this schema | the text of this step is the value; that of other steps is not looked at |
/// | [`Event::TextDelta`], a part that is text | more of it |
/// | [`Event::Reset`], [`Event::StepStart`] | the value begins anew, as when the model tries again |
/// | [`Event::StepFinish`], [`Event::Finish`] | it is whole |
///
/// A byte order mark, a fence around the value and sentences around the fence are ignored, as by
/// [`Output::of_text`](super::Output::of_text). A string shows as far as it is written, unless
/// [`whole_strings`](Self::whole_strings) is set; a number, `true`, `false` and `null` show once they
/// are whole, and a field once it has a value. At the end of the step only shows a value that is but a
/// number, `true`, `false` or `null`, and what comes after a whole number that is beyond an [`i64`].
///
/// What is not JSON shows as far as it was, and as nothing if it never was; it is no error here. Nor
/// is a value that is not a `P` yet: it does not show.
///
/// # Cost
///
/// Up to 4 KiB of text, each delta has the text read again; from there on, it is read each time that
/// it has grown by a sixteenth. So a value of n bytes costs no more than to read 17 n bytes, and
/// 8 MiB before that if it arrives byte by byte; and the last sixteenth of a long one shows when more
/// arrives, or the step ends. What is held is the text, up to [`max_bytes`](Self::max_bytes), and the
/// last value.
pub struct Partials<P> {
    schema: Str,
    mode: PartialMode,
    max_bytes: usize,
    // The step is for the value.
    here: bool,
    text: String,
    // How long the text is when it is read again.
    next: usize,
    shown: Option<Value>,
    of: PhantomData<fn() -> P>,
}

/// Up to this length, a text is read again whenever it grows, and then when it did by its share.
const SHORT: usize = 4096;
const SHARE: usize = 16;

impl<P> Partials<P>
where
    P: DeserializeOwned,
{
    pub(super) const fn new(schema: Str) -> Self {
        Self {
            schema,
            mode: PartialMode::TrailingStrings,
            max_bytes: 1 << 20,
            here: false,
            text: String::new(),
            next: 0,
            shown: None,
            of: PhantomData,
        }
    }

    /// Leaves a string out until it is whole: for types that take some strings only.
    #[must_use]
    pub const fn whole_strings(mut self) -> Self {
        self.mode = PartialMode::On;
        self
    }

    /// Sets how many bytes of text are read; the default is 1 MiB. A longer value shows no more
    /// from there on; with 0, none does.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Takes in one event of the run, and returns the value if there is more of it now.
    pub fn push(&mut self, event: &Event) -> Option<P> {
        match event {
            Event::TextDelta(text) => self.more(text),
            Event::Part(part) => match &part.kind {
                PartKind::Text(text) => self.more(text),
                _ => None,
            },
            Event::Custom(custom) => {
                if self.follows(custom) {
                    self.begin(true);
                }
                None
            }
            // The step is still the same.
            Event::Reset => {
                self.begin(self.here);
                None
            }
            Event::StepStart(_) => {
                self.begin(false);
                None
            }
            Event::StepFinish(_) | Event::Finish(_) => self.end(),
            _ => None,
        }
    }

    fn follows(&self, custom: &Custom) -> bool {
        let schema = custom.value.get("schema").and_then(Value::as_str);
        custom.name == VALUE_FOLLOWS && schema == Some(&*self.schema)
    }

    fn begin(&mut self, here: bool) {
        self.here = here;
        self.text.clear();
        self.next = 0;
        self.shown = None;
    }

    fn more(&mut self, text: &str) -> Option<P> {
        if !self.here {
            return None;
        }
        if text.len() > self.max_bytes.saturating_sub(self.text.len()) {
            self.here = false;
            self.text = String::new();
            return None;
        }
        self.text.push_str(text);
        if self.text.len() < self.next {
            return None;
        }
        self.next = match self.text.len() {
            length @ ..SHORT => length + 1,
            length => length + length / SHARE,
        };
        let json = opened(&self.text);
        // Else it is prose, as "15 times 27 is", or short.
        if !json.starts_with(['{', '[', '"']) {
            return None;
        }
        let json = settled(json);
        let value = JsonValue::parse_with_config(json.as_bytes(), false, self.mode).ok()?;
        self.show(value_of(&value)?)
    }

    fn end(&mut self) -> Option<P> {
        if !std::mem::take(&mut self.here) {
            return None;
        }
        let value = serde_json::from_str(unfenced(&self.text)).ok()?;
        self.show(value)
    }

    /// What does not change the value, as whitespace and what is not JSON, does not show.
    fn show(&mut self, value: Value) -> Option<P> {
        if self.shown.as_ref() == Some(&value) {
            return None;
        }
        let shown = P::deserialize(&value).ok();
        self.shown = Some(value);
        shown
    }
}

impl<P> fmt::Debug for Partials<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partials")
            .field("schema", &self.schema)
            .field("bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}

/// `json` without a number at its end: `jiter` would take the 12 of 123 for a 12.
///
/// What looks like one in a string is left out, too, until more arrives.
fn settled(json: &str) -> &str {
    let before = json
        .trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'));
    match before.trim_end().chars().next_back() {
        None | Some(':' | ',' | '[') => before,
        Some(_) => json,
    }
}

/// `None` if a number is none that JSON has, as one beyond all floats.
fn value_of(json: &JsonValue<'_>) -> Option<Value> {
    Some(match json {
        JsonValue::Null => Value::Null,
        JsonValue::Bool(bool) => Value::Bool(*bool),
        JsonValue::Int(int) => Value::from(*int),
        JsonValue::Float(float) => Value::Number(Number::from_f64(*float)?),
        JsonValue::Str(text) => Value::from(text.as_ref()),
        JsonValue::Array(items) => Value::Array(items.iter().map(value_of).collect::<Option<_>>()?),
        JsonValue::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| Some((name.to_string(), value_of(value)?)));
            Value::Object(fields.collect::<Option<Map<_, _>>>()?)
        }
    })
}
