//! JSON Schemas as the service takes them.

use crate::schema::{Budget, Node, Object};
use concentric_core::Str;
use indexmap::IndexMap;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};
use std::{collections::HashMap, ptr};

/// The schema of a tool's arguments, which must say that they are an object.
pub(super) struct Input<'a>(pub(super) &'a Value);

impl Serialize for Input<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let fields = self.0.as_object();
        if fields.is_none_or(|fields| !fields.contains_key("type")) {
            map.serialize_entry("type", "object")?;
        }
        for (name, value) in fields.into_iter().flatten() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// What the service refuses of the schema of a tool's arguments.
pub(super) fn refused_input(schema: &Value) -> Option<Str> {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Bool(true) | Value::Null => return None,
        _ => return Some(Str::from_static("one that is no object")),
    };
    if fields.get("type").is_some_and(|type_| type_ != "object") {
        return Some(Str::from_static("one of something else than an object"));
    }
    let choice = ["anyOf", "oneOf", "allOf"]
        .into_iter()
        .find(|name| fields.contains_key(*name));
    if let Some(name) = choice {
        return Some(format!("`{name}` at its top").into());
    }
    let properties = fields.get("properties").and_then(Value::as_object);
    let mut names = properties.into_iter().flat_map(Map::keys);
    let odd = names.find(|name| {
        let known = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        !(1..=64).contains(&name.len()) || !name.chars().all(known)
    });
    odd.map(|name| format!("the property `{name}`").into())
}

/// The schema of an answer, in the part of JSON Schema that the service enforces.
///
/// Objects are closed. What can only be asked for, as the range of a number, becomes part of the
/// description. `Err` is what can't be said at all.
pub(super) fn output(schema: &Value) -> Result<Node<'_>, Str> {
    if is_recursive(schema) {
        return Err(Str::from_static("a definition that refers to itself"));
    }
    closed(schema, &mut Budget::new()).map(Node::Object)
}

/// Whether a part of `root` refers to what it is within.
///
/// Each part is looked at once, and without recursion: a chain of references may be as long as its
/// author likes.
fn is_recursive(root: &Value) -> bool {
    enum Step<'a> {
        Into(&'a Value),
        Outof(*const Value),
    }

    // What is referred to, and whether the search is still within it.
    let mut targets: HashMap<*const Value, Option<bool>> = HashMap::new();
    let mut parts = vec![root];
    while let Some(part) = parts.pop() {
        if let Some(target) = target(part, root) {
            targets.insert(target, None);
        }
        parts.extend(inner(part));
    }
    let mut steps = vec![Step::Into(root)];
    while let Some(step) = steps.pop() {
        let part = match step {
            Step::Into(part) => part,
            Step::Outof(part) => {
                targets.insert(part, Some(false));
                continue;
            }
        };
        if let Some(within) = targets.get_mut(&ptr::from_ref(part)) {
            match within {
                Some(true) => return true,
                Some(false) => continue,
                None => *within = Some(true),
            }
            steps.push(Step::Outof(part));
        }
        steps.extend(inner(part).map(Step::Into));
        steps.extend(target(part, root).map(Step::Into));
    }
    false
}

/// What `part` refers to.
fn target<'a>(part: &Value, root: &'a Value) -> Option<&'a Value> {
    let path = part.get("$ref")?.as_str()?.strip_prefix('#')?;
    root.pointer(path)
}

/// What is in `part`, and may have something in it.
fn inner(part: &Value) -> impl Iterator<Item = &Value> {
    let (items, fields) = match part {
        Value::Array(items) => (Some(items), None),
        Value::Object(fields) => (None, Some(fields)),
        _ => (None, None),
    };
    let all = items.into_iter().flatten();
    let all = all.chain(fields.into_iter().flat_map(Map::values));
    all.filter(|value| value.is_array() || value.is_object())
}

fn closed<'a>(schema: &'a Value, budget: &mut Budget) -> Result<Object<'a>, Str> {
    let Value::Object(fields) = schema else {
        return Err(Str::from_static("a place where anything may be"));
    };
    budget.entry()?;
    let mut out = Object::default();
    let mut asked = Vec::new();
    for (name, value) in fields {
        match name.as_str() {
            "$defs" | "definitions" | "properties" => {
                let mut all = Object::default();
                for (name, one) in value.as_object().into_iter().flatten() {
                    let one = Node::Object(closed(one, budget)?);
                    budget.put(&mut all, name, one)?;
                }
                budget.put(&mut out, name, Node::Object(all))?;
            }
            "items" => {
                let items = Node::Object(closed(value, budget)?);
                budget.put(&mut out, name, items)?;
            }
            "anyOf" | "allOf" | "oneOf" => {
                let all = value.as_array().into_iter().flatten();
                let all = all.map(|one| closed(one, budget).map(Node::Object));
                let all = Node::List(all.collect::<Result<_, _>>()?);
                let name = if name == "oneOf" { "anyOf" } else { name };
                budget.put(&mut out, name, all)?;
            }
            "type" | "enum" | "const" | "default" | "$ref" | "required" | "title"
            | "description" => budget.put_kept(&mut out, name, value)?,
            "format" if is_known_format(value) => budget.put_kept(&mut out, name, value)?,
            "minItems" if matches!(value.as_u64(), Some(0 | 1)) => {
                budget.put_kept(&mut out, name, value)?;
            }
            // They say nothing of the answer.
            "$schema" | "$id" | "$comment" | "additionalProperties" => {}
            "not"
            | "if"
            | "then"
            | "else"
            | "patternProperties"
            | "propertyNames"
            | "prefixItems"
            | "contains"
            | "dependentSchemas"
            | "dependentRequired"
            | "unevaluatedProperties"
            | "unevaluatedItems" => {
                return Err(format!("`{name}`").into());
            }
            _ => {
                budget.entry()?;
                budget.spend(name.len())?;
                budget.json(value)?;
                asked.push(format!("{name}: {value}"));
            }
        }
    }
    let is_object = out.contains_key("properties")
        || fields.get("type").is_some_and(|type_| match type_ {
            Value::Array(types) => types.iter().any(|type_| type_ == "object"),
            type_ => type_ == "object",
        });
    if is_object {
        let open = fields
            .get("additionalProperties")
            .is_none_or(|more| *more != false);
        let properties = out.get("properties").and_then(Node::as_object);
        if open && properties.is_none_or(IndexMap::is_empty) {
            return Err(Str::from_static("an object of any properties"));
        }
        budget.put(&mut out, "additionalProperties", Node::Bool(false))?;
    }
    if !asked.is_empty() {
        // The same whether or not maps keep the order of their fields.
        asked.sort_unstable();
        let asked = format!("{{{}}}", asked.join(", "));
        let description = match out.get("description").and_then(Node::as_str) {
            Some(description) => format!("{description}\n\n{asked}"),
            None => asked,
        };
        budget.json(&description)?;
        budget.put(&mut out, "description", Node::Text(description.into()))?;
    }
    Ok(out)
}

fn is_known_format(format: &Value) -> bool {
    const KNOWN: [&str; 10] = [
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "uri",
        "uuid",
    ];
    format
        .as_str()
        .is_some_and(|format| KNOWN.contains(&format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn output(schema: &Value) -> Result<Value, Str> {
        let node = super::output(schema)?;
        Ok(serde_json::to_value(node).expect("JSON"))
    }

    #[test]
    fn an_answers_schema_keeps_what_is_enforced_and_asks_for_the_rest() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "age": {"type": "integer", "minimum": 1, "description": "In years."},
                "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 2},
                "when": {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            },
            "required": ["age"],
            "$defs": {"tag": {"type": "string", "pattern": "^a", "format": "odd"}},
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "age": {"type": "integer", "description": "In years.\n\n{minimum: 1}"},
                "tags": {
                    "type": "array",
                    "items": {"$ref": "#/$defs/tag"},
                    "description": "{minItems: 2}",
                },
                "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            },
            "required": ["age"],
            "additionalProperties": false,
            "$defs": {"tag": {
                "type": "string",
                "description": "{format: \"odd\", pattern: \"^a\"}",
            }},
        });
        assert_eq!(output(&schema), Ok(expected));
        for (schema, what) in [
            (json!(true), "anything"),
            (json!({"type": "object"}), "any properties"),
            (json!({"type": "array", "items": {"not": {}}}), "not"),
            (
                json!({"type": "array", "items": {"$ref": "#"}}),
                "refers to itself",
            ),
            (
                json!({"$ref": "#/$defs/a", "$defs": {
                    "a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/a"}},
                }}),
                "refers to itself",
            ),
        ] {
            assert!(
                output(&schema).is_err_and(|refused| refused.contains(what)),
                "{schema}"
            );
        }
    }

    #[test]
    fn a_tools_schema_is_of_an_object() {
        let written = |schema: Value| serde_json::to_value(Input(&schema)).ok();
        assert_eq!(written(json!(true)), Some(json!({"type": "object"})));
        let properties = json!({"properties": {"a": {}}});
        let expected = json!({"type": "object", "properties": {"a": {}}});
        assert_eq!(written(properties), Some(expected));

        assert_eq!(
            refused_input(&json!({"type": "object", "properties": {"a.b-c": {}}})),
            None
        );
        for schema in [
            json!({"type": "string"}),
            json!({"type": "object", "anyOf": []}),
            json!({"properties": {"a b": {}}}),
            json!(false),
        ] {
            assert!(refused_input(&schema).is_some(), "{schema}");
        }
    }
}
