use super::{VALUE_FOLLOWS, opened, unfenced};
use concentric_core::{CustomEvent, Event, PartKind, Str};
use jiter::{JsonValue, PartialMode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use std::{fmt, marker::PhantomData};

/// Parses the typed answer of a run while it is streamed.
///
/// Pass each event of the run to [`push`](Self::push). It returns the partial value each time the
/// value grows. Partial values are not validated: the schema and the type are checked when the
/// value is complete ([`Output::of_finish`](super::Output::of_finish)).
///
/// ```
/// use concentric_core::{CustomEvent, Event};
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
/// /// A partial folder.
/// #[derive(Deserialize)]
/// struct Sketch {
///     purpose: Option<String>,
///     files: Option<u32>,
/// }
///
/// let mut partials = output::<Folder>("folder").partials::<Sketch>();
/// // The layer emits this event before the value.
/// let follows = CustomEvent::new(VALUE_FOLLOWS, json!({"schema": "folder"}));
/// assert!(partials.push(&Event::Custom(Box::new(follows))).is_none());
///
/// let sketch = partials.push(&Event::text(r#"{"purpose": "te"#)).unwrap();
/// assert_eq!(sketch.purpose.as_deref(), Some("te"));
/// assert_eq!(sketch.files, None);
/// ```
///
/// # Events
///
/// | event | effect |
/// |---|---|
/// | [`VALUE_FOLLOWS`], for this schema | the text of this step is the value; the text of other steps is ignored |
/// | [`Event::TextDelta`], a text part | appends to the value |
/// | [`Event::Reset`], [`Event::StepStart`] | the value starts again, as when the model tries again |
/// | [`Event::StepFinish`], [`Event::Finish`] | the value is complete |
///
/// A byte order mark, a fence around the value and sentences around the fence are ignored, as by
/// [`Output::of_text`](super::Output::of_text). A string is returned as far as it has arrived,
/// unless [`whole_strings`](Self::whole_strings) is set; a number, `true`, `false` and `null` once
/// they are complete, and a field once it has a value. A value that is only a number, `true`,
/// `false` or `null`, and the text after an integer beyond an [`i64`], are returned at the end of
/// the step.
///
/// Invalid JSON is no error here: the value is returned as far as it was valid. A value that does
/// not decode as a `P` yet is not returned.
///
/// # Cost
///
/// Up to 4 KiB of text, the text is parsed again for each delta; after that, each time it has grown
/// by a sixteenth. A value of n bytes therefore costs at most as much as parsing 17 n bytes, and
/// another 8 MiB for the first 4 KiB if it arrives byte by byte. The last sixteenth of a long value
/// is returned when more arrives or the step ends. The parser keeps the text, up to
/// [`max_bytes`](Self::max_bytes), and the last value.
pub struct Partials<P> {
    schema: Str,
    mode: PartialMode,
    max_bytes: usize,
    // Whether the step is for the value.
    here: bool,
    text: String,
    // The length of the text at which it is parsed again.
    next: usize,
    shown: Option<Value>,
    of: PhantomData<fn() -> P>,
}

/// Up to `SHORT` bytes, a text is parsed whenever it grows; after that, when it grows by 1/`SHARE`.
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

    /// Omits a string until it is complete: for types that accept only some strings.
    #[must_use]
    pub const fn whole_strings(mut self) -> Self {
        self.mode = PartialMode::On;
        self
    }

    /// Limits the parsed text (bytes); the default is 1 MiB. After that no more of the value is
    /// returned; with 0, none of it.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Processes an event of the run, and returns the value if it has grown.
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
            // The step stays the same.
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

    fn follows(&self, custom: &CustomEvent) -> bool {
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
        // Otherwise it is prose that starts with a number ("15 times 27 is"), or too short to grow.
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

    /// Omits values that did not change, after whitespace or invalid JSON.
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

/// `json` without a number at its end, which may be incomplete: `jiter` would return 12 for the
/// start of 123.
///
/// A number-like end of a string is removed, too, until more text arrives.
fn settled(json: &str) -> &str {
    let before = json
        .trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'));
    match before.trim_end().chars().next_back() {
        None | Some(':' | ',' | '[') => before,
        Some(_) => json,
    }
}

/// `None` if a number cannot be represented, for example one beyond the range of `f64`.
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
