//! Schemas that are rewritten for a service.
//!
//! Unchanged parts are borrowed, and the output is limited: a schema may come from an untrusted
//! source, and a few kilobytes of references can expand to gigabytes.

use concentric_core::Str;
use indexmap::IndexMap;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};
use std::{borrow::Cow, io};

/// The maximum size of the rewritten schemas of one request, in bytes of JSON.
const WRITTEN: usize = 1024 * 1024;

/// The additional size of each schema, field and element, close to the size of the shortest ones,
/// so that the limit also bounds memory and work.
const ENTRY: usize = 16;

/// Describes a schema that exceeds the limit.
pub(crate) const TOO_LARGE: &str =
    "a size over the limit of 1 MiB after its references are replaced";

/// The remaining size for rewritten schemas.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

/// A schema or a part of one, in its rewritten form.
#[derive(Debug)]
pub(crate) enum Node<'a> {
    /// An unchanged value.
    Kept(&'a Value),
    /// The fields of an object, with `type` and `properties` added if they are missing.
    Completed(&'a Map<String, Value>),
    Bool(bool),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    Object(Object<'a>),
}

/// The root schema, which references point into.
pub(crate) struct Root<'a, 'b> {
    pub(crate) schema: &'a Value,
    pub(crate) budget: &'b mut Budget,
}

impl<'a> Root<'a, '_> {
    /// The target of a reference, if the root contains it.
    pub(crate) fn target(&mut self, reference: &str) -> Result<Option<&'a Value>, &'static str> {
        // The length of the reference bounds the cost of resolving it.
        self.budget.spend(reference.len())?;
        Ok(target(self.schema, reference))
    }
}

/// The part of `root` that `reference` points to.
pub(crate) fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// The formats of strings that OpenAI and Anthropic enforce.
pub(crate) fn is_format(format: &Value) -> bool {
    const FORMATS: &str = "date-time time date duration email hostname ipv4 ipv6 uuid";
    FORMATS.split(' ').any(|known| format == known)
}

/// Whether the type of a schema is or includes `name`.
pub(crate) fn has_type(schema: &Map<String, Value>, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::Array(any)) => any.iter().any(|one| one == name),
        one => one.is_some_and(|one| one == name),
    }
}

/// The property of a tool's schema that a service rejects, if there is one. `more` are rejected
/// keywords besides combinations of schemas.
pub(crate) fn refused(schema: &Value, more: &[&str]) -> Option<Str> {
    let Some(fields) = schema.as_object() else {
        return Some(Str::from_static("a schema that is not an object"));
    };
    if fields.get("type").is_some_and(|type_| type_ != "object") {
        return Some(Str::from_static("a type other than `object`"));
    }
    let mut keywords = ["anyOf", "oneOf", "allOf"].iter().chain(more);
    let at_top = keywords.find(|name| fields.contains_key(**name))?;
    Some(format!("`{at_top}` at the top level").into())
}

/// The fields of a schema.
pub(crate) type Object<'a> = IndexMap<Cow<'a, str>, Node<'a>>;

impl Budget {
    pub(crate) const fn new() -> Self {
        Self { left: WRITTEN }
    }

    /// Counts `bytes`. This and all other methods fail beyond the limit.
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), &'static str> {
        self.left = self.left.checked_sub(bytes).ok_or(TOO_LARGE)?;
        Ok(())
    }

    /// Counts a schema or an element of a list.
    pub(crate) fn entry(&mut self) -> Result<(), &'static str> {
        self.spend(ENTRY)
    }

    /// Counts the size of `json`. Serialization stops at the limit.
    pub(crate) fn json(&mut self, json: &(impl Serialize + ?Sized)) -> Result<(), &'static str> {
        serde_json::to_writer(self, json).map_err(|_| TOO_LARGE)
    }

    /// Adds `value` unchanged.
    pub(crate) fn keep<'a>(&mut self, value: &'a Value) -> Result<Node<'a>, &'static str> {
        self.json(value)?;
        Ok(Node::Kept(value))
    }

    /// Sets a field.
    pub(crate) fn put<'a>(
        &mut self,
        out: &mut Object<'a>,
        name: impl Into<Cow<'a, str>>,
        value: Node<'a>,
    ) -> Result<(), &'static str> {
        let name = name.into();
        self.entry()?;
        self.json(&*name)?;
        out.insert(name, value);
        Ok(())
    }

    /// Sets a field to an unchanged value.
    pub(crate) fn put_kept<'a>(
        &mut self,
        out: &mut Object<'a>,
        name: &'a str,
        value: &'a Value,
    ) -> Result<(), &'static str> {
        let value = self.keep(value)?;
        self.put(out, name, value)
    }

    /// Converts `node` to a list, or returns it if it is not one.
    pub(crate) fn list<'a>(
        &mut self,
        node: Node<'a>,
    ) -> Result<Result<Vec<Node<'a>>, Node<'a>>, &'static str> {
        Ok(match node {
            Node::List(list) => Ok(list),
            Node::Kept(Value::Array(list)) => {
                self.spend(list.len().saturating_mul(ENTRY))?;
                Ok(list.iter().map(Node::Kept).collect())
            }
            other => Err(other),
        })
    }
}

impl io::Write for &mut Budget {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.spend(bytes.len()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> Node<'a> {
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Kept(value) => value.as_str(),
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) const fn as_object(&self) -> Option<&Object<'a>> {
        match self {
            Self::Object(fields) => Some(fields),
            _ => None,
        }
    }

    /// Whether both serialize to equal JSON.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Kept(one), Self::Kept(other)) => one == other,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Bool(one), Self::Kept(other)) | (Self::Kept(other), Self::Bool(one)) => {
                other.as_bool() == Some(*one)
            }
            (Self::Text(text), other) | (other, Self::Text(text)) => other.as_str() == Some(text),
            (Self::List(one), Self::List(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is(other))
            }
            (Self::List(one), Self::Kept(Value::Array(other)))
            | (Self::Kept(Value::Array(other)), Self::List(one)) => {
                let other = other.iter().map(Self::Kept);
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is(&other))
            }
            (Self::Object(one), Self::Object(other)) => {
                let same = |(name, value): (&Cow<'_, str>, &Self)| {
                    other.get(name).is_some_and(|other| value.is(other))
                };
                one.len() == other.len() && one.iter().all(same)
            }
            _ => false,
        }
    }
}

impl Serialize for Node<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Kept(value) => value.serialize(serializer),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(list) => serializer.collect_seq(list),
            Self::Object(fields) => serializer.collect_map(fields),
            Self::Completed(fields) => {
                let mut map = serializer.serialize_map(None)?;
                for (name, value) in *fields {
                    map.serialize_entry(name, value)?;
                }
                if !fields.contains_key("type") {
                    map.serialize_entry("type", "object")?;
                }
                if !fields.contains_key("properties") {
                    map.serialize_entry("properties", &Map::new())?;
                }
                map.end()
            }
        }
    }
}
