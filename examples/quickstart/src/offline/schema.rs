//! The parameters in a tool's JSON Schema.

use super::question::stems;
use concentric::ToolSpec;
use serde_json::Value;

/// A parameter of a tool.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) required: bool,
    pub(super) kind: Kind,
    pub(super) default: Option<Value>,
    /// The stems of the name.
    pub(super) name_stems: Vec<String>,
    /// The stems of the description.
    pub(super) stems: Vec<String>,
}

/// The kind of value that a parameter takes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// The path of a file or folder.
    Path,
    /// A URL.
    Url,
    /// A name of a person or a thing.
    Name,
    /// Any other text.
    Text,
    /// A number, and whether it must be an integer.
    Number { whole: bool },
    /// A boolean.
    Bool,
    /// One of several values.
    Choice(Vec<Value>),
    /// A list of values.
    List(Box<Self>),
    /// A value that this model cannot produce.
    Other,
}

/// Returns the parameters of a tool.
pub(super) fn parameters(spec: &ToolSpec) -> Vec<Parameter> {
    let root = &*spec.input_schema;
    let required = required(root);
    let Some(properties) = root.get("properties").and_then(Value::as_object) else {
        return Vec::new();
    };
    properties
        .iter()
        .map(|(name, schema)| {
            let described = |schema: &Value| {
                schema
                    .get("description")
                    .and_then(Value::as_str)
                    .map(stems)
                    .unwrap_or_default()
            };
            let name_stems = stems(name);
            let stems = described(schema);
            Parameter {
                required: required.contains(&name.as_str()),
                kind: kind(resolve(root, schema), root, &name_stems, &stems),
                default: schema.get("default").filter(|v| !v.is_null()).cloned(),
                name: name.clone(),
                name_stems,
                stems,
            }
        })
        .collect()
}

/// Returns the names of the required properties.
pub(super) fn required(schema: &Value) -> Vec<&str> {
    let names = schema.get("required").and_then(Value::as_array);
    names
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Follows references within the schema, and skips `null` alternatives.
pub(super) fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    // References may be cyclic.
    for _ in 0..8 {
        let reference = schema.get("$ref").and_then(Value::as_str);
        if let Some(target) = reference.and_then(|r| root.pointer(r.strip_prefix('#')?)) {
            schema = target;
            continue;
        }
        let variants = ["anyOf", "oneOf", "allOf"]
            .iter()
            .find_map(|k| schema.get(k)?.as_array());
        let mut some = variants
            .into_iter()
            .flatten()
            .filter(|v| type_of(v) != Some("null"));
        match (some.next(), some.next()) {
            (Some(only), None) => schema = only,
            _ => break,
        }
    }
    schema
}

pub(super) fn type_of(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(name) => Some(name),
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null"),
        _ => None,
    }
}

fn kind(schema: &Value, root: &Value, name: &[String], description: &[String]) -> Kind {
    if let Some(choices) = choices(schema) {
        return Kind::Choice(choices);
    }
    let named = |words: &[&str]| words.iter().any(|w| name.iter().any(|n| n == w));
    let described = |words: &[&str]| words.iter().any(|w| description.iter().any(|n| n == w));
    match type_of(schema) {
        Some("string") if named(&["url", "uri", "link"]) => Kind::Url,
        Some("string") if named(&["path", "file", "filename", "folder", "directory", "dir"]) => {
            Kind::Path
        }
        Some("string")
            if named(&[
                "name", "city", "place", "location", "country", "person", "user", "to",
            ]) =>
        {
            Kind::Name
        }
        Some("string") if named(&["text", "query", "pattern", "term", "content", "message"]) => {
            Kind::Text
        }
        Some("string") if described(&["path", "folder"]) => Kind::Path,
        Some("string") => Kind::Text,
        Some("integer") => Kind::Number { whole: true },
        Some("number") => Kind::Number { whole: false },
        Some("boolean") => Kind::Bool,
        Some("array") => match schema.get("items") {
            Some(items) => Kind::List(Box::new(kind(
                resolve(root, items),
                root,
                name,
                description,
            ))),
            None => Kind::Other,
        },
        _ => Kind::Other,
    }
}

/// Returns the values of an enumeration, in any of its forms.
pub(super) fn choices(schema: &Value) -> Option<Vec<Value>> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Some(values.iter().filter(|v| !v.is_null()).cloned().collect());
    }
    if let Some(value) = schema.get("const") {
        return Some(vec![value.clone()]);
    }
    let variants = schema
        .get("oneOf")
        .or_else(|| schema.get("anyOf"))?
        .as_array()?;
    variants
        .iter()
        .map(|variant| variant.get("const").cloned())
        .collect()
}
