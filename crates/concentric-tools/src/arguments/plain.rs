//! JSON Schemas of the keywords that derived types have, enforced without a compiled validator.

use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

/// The draft of a schema, also of one without `$schema`.
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Bounds below this are exact as an `f64`, and no other integer is rounded to one of them.
const MAX_BOUND: f64 = 9_007_199_254_740_992.0;

/// A schema of draft 2020-12 that uses only the keywords below.
#[derive(Debug)]
pub(super) struct Plain(Vec<Rule>);

#[derive(Debug)]
enum Rule {
    Type(Vec<Kind>),
    Enum(Vec<Value>),
    Const(Value),
    Minimum(Value),
    Maximum(Value),
    MinLength(u64),
    MaxLength(u64),
    MinItems(u64),
    MaxItems(u64),
    Required(Vec<String>),
    Properties {
        known: BTreeMap<String, Plain>,
        /// Of all other properties; `None` if there may be no other.
        rest: Option<Box<Plain>>,
    },
    Items(Plain),
    AnyOf(Vec<Plain>),
    OneOf(Vec<Plain>),
}

/// An array or an object whose parts were read.
#[derive(Clone, Copy)]
pub(super) enum Shape<'a> {
    /// The number of items.
    Array(u64),
    /// Whether there is a property of a name.
    Object(&'a dyn Fn(&str) -> bool),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Array,
    Boolean,
    Integer,
    Null,
    Number,
    Object,
    String,
}

impl Plain {
    /// Reads a schema.
    ///
    /// # Errors
    ///
    /// The keyword that is not supported here, or has an unusual value.
    pub(super) fn new(schema: &Value) -> Result<Self, String> {
        let Value::Object(schema) = schema else {
            return match schema {
                Value::Bool(true) => Ok(Self(Vec::new())),
                _ => Err(schema.to_string()),
            };
        };
        let mut rules = Vec::new();
        for (keyword, value) in schema {
            let rule = match keyword.as_str() {
                "$schema" if value == DRAFT => continue,
                // Annotations; `format` is one in this draft.
                "title" | "description" | "format" | "$comment" if value.is_string() => continue,
                "deprecated" | "readOnly" | "writeOnly" if value.is_boolean() => continue,
                "examples" if value.is_array() => continue,
                "default" => continue,
                // Read together with `properties`.
                "additionalProperties" if schema.contains_key("properties") => continue,
                "additionalProperties" | "properties" => properties(schema)?,
                "type" => kinds(value).map(Rule::Type),
                "enum" => variants(value).map(Rule::Enum),
                "const" if is_scalar(value) => Some(Rule::Const(value.clone())),
                "minimum" => bound(value).map(Rule::Minimum),
                "maximum" => bound(value).map(Rule::Maximum),
                "minLength" => value.as_u64().map(Rule::MinLength),
                "maxLength" => value.as_u64().map(Rule::MaxLength),
                "minItems" => value.as_u64().map(Rule::MinItems),
                "maxItems" => value.as_u64().map(Rule::MaxItems),
                "required" => texts(value).map(Rule::Required),
                "items" => Some(Rule::Items(Self::new(value)?)),
                "anyOf" => choices(value)?.map(Rule::AnyOf),
                "oneOf" => choices(value)?.map(Rule::OneOf),
                _ => None,
            };
            rules.push(rule.ok_or_else(|| keyword.clone())?);
        }
        Ok(Self(rules))
    }

    pub(super) fn is_valid(&self, value: &Value) -> bool {
        self.0.iter().all(|rule| rule.is_valid(value))
    }

    pub(super) fn is_valid_text(&self, text: &str) -> bool {
        self.0.iter().all(|rule| match rule {
            Rule::Type(kinds) => kinds.contains(&Kind::String),
            // Few texts have a rule other than their type.
            rule => rule.is_valid(&Value::from(text)),
        })
    }

    /// Whether an array or an object is valid if its items or properties are. A rule that compares
    /// whole values accepts none.
    pub(super) fn accepts(&self, shape: Shape<'_>) -> bool {
        self.0.iter().all(|rule| match (rule, shape) {
            (Rule::Type(kinds), Shape::Array(_)) => kinds.contains(&Kind::Array),
            (Rule::Type(kinds), Shape::Object(_)) => kinds.contains(&Kind::Object),
            (Rule::MinItems(min), Shape::Array(len)) => len >= *min,
            (Rule::MaxItems(max), Shape::Array(len)) => len <= *max,
            (Rule::Required(keys), Shape::Object(has)) => keys.iter().all(|key| has(key)),
            (Rule::Enum(_) | Rule::Const(_) | Rule::AnyOf(_) | Rule::OneOf(_), _) => false,
            _ => true,
        })
    }

    /// The schema of the items of an array, if there is one.
    pub(super) fn items(&self) -> Option<&Self> {
        self.0.iter().find_map(|rule| match rule {
            Rule::Items(items) => Some(items),
            _ => None,
        })
    }

    /// The schema of a property; `None` if there may be no property of this name.
    pub(super) fn property(&self, key: &str) -> Option<&Self> {
        static ANY: Plain = Plain(Vec::new());
        let properties = self.0.iter().find_map(|rule| match rule {
            Rule::Properties { known, rest } => Some((known, rest)),
            _ => None,
        });
        match properties {
            Some((known, rest)) => known.get(key).or(rest.as_deref()),
            None => Some(&ANY),
        }
    }

    /// Reports each error with the JSON Pointer of its position, until `report` returns false.
    pub(super) fn errors(
        &self,
        value: &Value,
        path: &str,
        report: &mut impl FnMut(&str, Violation<'_>) -> bool,
    ) -> bool {
        let mut failed = self.0.iter().filter(|rule| !rule.is_valid(value));
        failed.all(|rule| match (rule, value) {
            (Rule::Items(items), Value::Array(all)) => {
                let mut all = all.iter().enumerate();
                all.all(|(at, value)| items.errors(value, &format!("{path}/{at}"), report))
            }
            (Rule::Properties { known, rest }, Value::Object(all)) => {
                let inside = all.iter().all(|(key, value)| {
                    let schema = known.get(key).or(rest.as_deref());
                    schema.is_none_or(|schema| {
                        let key = key.replace('~', "~0").replace('/', "~1");
                        schema.errors(value, &format!("{path}/{key}"), report)
                    })
                });
                let unknown = rest.is_none() && all.keys().any(|key| !known.contains_key(key));
                inside && (!unknown || report(path, Violation { rule, value }))
            }
            _ => report(path, Violation { rule, value }),
        })
    }
}

impl Rule {
    fn is_valid(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Type(kinds), _) => kinds.iter().any(|kind| kind.is_of(value)),
            (Self::Enum(variants), _) => variants.iter().any(|variant| equal(variant, value)),
            (Self::Const(constant), _) => equal(constant, value),
            (Self::Minimum(bound), Value::Number(_)) => value.as_f64() >= bound.as_f64(),
            (Self::Maximum(bound), Value::Number(_)) => value
                .as_f64()
                .is_some_and(|value| Some(value) <= bound.as_f64()),
            (Self::MinLength(min), Value::String(text)) => text.chars().count() as u64 >= *min,
            (Self::MaxLength(max), Value::String(text)) => text.chars().count() as u64 <= *max,
            (Self::MinItems(min), Value::Array(items)) => items.len() as u64 >= *min,
            (Self::MaxItems(max), Value::Array(items)) => items.len() as u64 <= *max,
            (Self::Required(keys), Value::Object(all)) => {
                keys.iter().all(|key| all.contains_key(key))
            }
            (Self::Properties { known, rest }, Value::Object(all)) => {
                all.iter().all(|(key, value)| {
                    let schema = known.get(key).or(rest.as_deref());
                    schema.is_some_and(|schema| schema.is_valid(value))
                })
            }
            (Self::Items(schema), Value::Array(items)) => {
                items.iter().all(|item| schema.is_valid(item))
            }
            (Self::AnyOf(choices), _) => choices.iter().any(|choice| choice.is_valid(value)),
            (Self::OneOf(choices), _) => fitting(choices, value) == 1,
            // The keyword is about values of another type.
            _ => true,
        }
    }
}

/// The number of `choices` that accept a value.
fn fitting(choices: &[Plain], value: &Value) -> usize {
    choices
        .iter()
        .filter(|choice| choice.is_valid(value))
        .count()
}

impl Kind {
    fn is_of(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Array, Value::Array(_))
            | (Self::Boolean, Value::Bool(_))
            | (Self::Null, Value::Null)
            | (Self::Number, Value::Number(_))
            | (Self::Object, Value::Object(_))
            | (Self::String, Value::String(_)) => true,
            (Self::Integer, Value::Number(number)) => {
                number.is_i64()
                    || number.is_u64()
                    || number.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            _ => false,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Null => "null",
            Self::Number => "number",
            Self::Object => "object",
            Self::String => "string",
        }
    }
}

fn kind(name: &Value) -> Option<Kind> {
    Some(match name.as_str()? {
        "array" => Kind::Array,
        "boolean" => Kind::Boolean,
        "integer" => Kind::Integer,
        "null" => Kind::Null,
        "number" => Kind::Number,
        "object" => Kind::Object,
        "string" => Kind::String,
        _ => return None,
    })
}

fn kinds(value: &Value) -> Option<Vec<Kind>> {
    match value {
        Value::Array(names) if !names.is_empty() => names.iter().map(kind).collect(),
        name => Some(vec![kind(name)?]),
    }
}

/// Whether a constant can be compared by [`equal`].
fn is_scalar(value: &Value) -> bool {
    match value {
        Value::Number(_) => bound(value).is_some(),
        value => !value.is_array() && !value.is_object(),
    }
}

/// Whether a value equals a scalar constant; for JSON Schema, `1.0` equals `1`.
fn equal(constant: &Value, value: &Value) -> bool {
    match (constant, value) {
        (Value::Number(constant), Value::Number(value)) => constant.as_f64() == value.as_f64(),
        _ => constant == value,
    }
}

fn variants(value: &Value) -> Option<Vec<Value>> {
    let variants = value.as_array()?;
    (!variants.is_empty() && variants.iter().all(is_scalar)).then(|| variants.clone())
}

fn bound(value: &Value) -> Option<Value> {
    let is_exact = value.as_f64()?.abs() < MAX_BOUND;
    is_exact.then(|| value.clone())
}

fn texts(value: &Value) -> Option<Vec<String>> {
    let texts = value.as_array()?.iter();
    texts.map(|text| text.as_str().map(str::to_owned)).collect()
}

fn choices(value: &Value) -> Result<Option<Vec<Plain>>, String> {
    match value.as_array() {
        Some(choices) if !choices.is_empty() => {
            let choices: Result<_, _> = choices.iter().map(Plain::new).collect();
            choices.map(Some)
        }
        _ => Ok(None),
    }
}

/// The requirements of `properties` and `additionalProperties` together.
fn properties(schema: &Map<String, Value>) -> Result<Option<Rule>, String> {
    let mut known = BTreeMap::new();
    if let Some(named) = schema.get("properties") {
        let Some(named) = named.as_object() else {
            return Ok(None);
        };
        for (key, value) in named {
            known.insert(key.clone(), Plain::new(value)?);
        }
    }
    let rest = match schema.get("additionalProperties") {
        Some(Value::Bool(false)) => None,
        Some(rest) => Some(Box::new(Plain::new(rest)?)),
        None => Some(Box::new(Plain(Vec::new()))),
    };
    Ok(Some(Rule::Properties { known, rest }))
}

/// A rule that a value violates.
pub(super) struct Violation<'a> {
    rule: &'a Rule,
    value: &'a Value,
}

impl Display for Violation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.rule {
            Rule::Type(kinds) => {
                let s = if kinds.len() == 1 { "" } else { "s" };
                write!(f, "{value} is not of type{s} ")?;
                listed(f, kinds.iter().map(|kind| format!("\"{}\"", kind.name())))
            }
            Rule::Enum(variants) => {
                write!(f, "{value} is not one of ")?;
                listed(f, variants.iter())
            }
            Rule::Const(constant) => write!(f, "{constant} was expected"),
            Rule::Minimum(bound) => write!(f, "{value} is less than the minimum of {bound}"),
            Rule::Maximum(bound) => write!(f, "{value} is greater than the maximum of {bound}"),
            Rule::MinLength(1) => write!(f, "{value} is shorter than 1 character"),
            Rule::MinLength(min) => write!(f, "{value} is shorter than {min} characters"),
            Rule::MaxLength(1) => write!(f, "{value} is longer than 1 character"),
            Rule::MaxLength(max) => write!(f, "{value} is longer than {max} characters"),
            Rule::MinItems(1) => write!(f, "{value} has less than 1 item"),
            Rule::MinItems(min) => write!(f, "{value} has less than {min} items"),
            Rule::MaxItems(1) => write!(f, "{value} has more than 1 item"),
            Rule::MaxItems(max) => write!(f, "{value} has more than {max} items"),
            Rule::Required(keys) => {
                let missing = keys.iter().filter(|key| value.get(key.as_str()).is_none());
                let missing: Vec<_> = missing.map(|key| Value::from(key.as_str())).collect();
                let verb = if missing.len() == 1 {
                    "is a required property"
                } else {
                    "are required properties"
                };
                listed(f, missing.iter())?;
                write!(f, " {verb}")
            }
            Rule::Properties { known, .. } => {
                let all = value.as_object().into_iter().flat_map(Map::keys);
                let unknown: Vec<_> = all.filter(|key| !known.contains_key(*key)).collect();
                let verb = if unknown.len() == 1 { "was" } else { "were" };
                f.write_str("Additional properties are not allowed (")?;
                listed(f, unknown.iter().map(|key| format!("'{key}'")))?;
                write!(f, " {verb} unexpected)")
            }
            Rule::Items(_) => write!(f, "{value} has an item that is not valid"),
            Rule::AnyOf(_) => write!(f, "{value} matches none of the schemas of `anyOf`"),
            Rule::OneOf(choices) => match fitting(choices, value) {
                0 => write!(f, "{value} matches none of the schemas of `oneOf`"),
                _ => write!(f, "{value} matches more than one of the schemas of `oneOf`"),
            },
        }
    }
}

fn listed(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = impl Display>) -> fmt::Result {
    for (at, item) in items.enumerate() {
        if at > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}
