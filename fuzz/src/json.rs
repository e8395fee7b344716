use arbitrary::Arbitrary;
use serde_json::Value;

/// Any JSON, with keys that repeat, and characters that a path escapes.
#[derive(Arbitrary, Clone, Debug)]
pub enum Json {
    /// `null`.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Whole(i64),
    /// Any finite number.
    Number(f32),
    /// One of a few texts.
    Key(u8),
    /// Any text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object, by the numbers of its keys.
    Object(Vec<(u8, Json)>),
}

impl Json {
    /// The value; what is nested deeper than 100 levels is `null`.
    pub fn value(&self) -> Value {
        self.at(0)
    }

    fn at(&self, depth: usize) -> Value {
        match self {
            Self::List(_) | Self::Object(_) if depth > 100 => Value::Null,
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Whole(value) => Value::from(*value),
            Self::Number(value) => Value::from(*value),
            Self::Key(key) => Value::from(self::key(*key)),
            Self::Text(text) => Value::from(text.as_str()),
            Self::List(items) => items.iter().map(|item| item.at(depth + 1)).collect(),
            Self::Object(fields) => {
                let fields = fields.iter();
                let field = |(key, value): &(u8, Self)| (self::key(*key), value.at(depth + 1));
                Value::Object(fields.map(field).collect())
            }
        }
    }
}

/// A key of that number.
pub fn key(number: u8) -> String {
    const KEYS: [&str; 12] = [
        "", "a", "b", "~", "/", "~1", "~0", "a/b", "0", "-", "é", "$ref",
    ];
    match KEYS.get(usize::from(number % 16)) {
        Some(key) => (*key).to_owned(),
        None => format!("k{number}"),
    }
}
