//! JSON Schemas as the service takes them.

use concentric_core::Str;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};
use std::collections::HashSet;

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
pub(super) fn output(schema: &Value) -> Result<Value, Str> {
    if is_recursive(schema, schema, &mut Vec::new(), &mut HashSet::new()) {
        return Err(Str::from_static("a definition that refers to itself"));
    }
    closed(schema)
}

/// Whether what is being looked `into`, as part of what the names of `within` stand for, refers to
/// one of them.
fn is_recursive<'a>(
    into: &'a Value,
    root: &'a Value,
    within: &mut Vec<&'a str>,
    done: &mut HashSet<&'a str>,
) -> bool {
    let fields = match into {
        Value::Array(items) => {
            return items
                .iter()
                .any(|item| is_recursive(item, root, within, done));
        }
        Value::Object(fields) => fields,
        _ => return false,
    };
    if let Some(name) = fields.get("$ref").and_then(Value::as_str)
        && let Some(path) = name.strip_prefix('#')
    {
        if path.is_empty() || within.contains(&name) {
            return true;
        }
        if done.insert(name)
            && let Some(named) = root.pointer(path)
        {
            within.push(name);
            let recursive = is_recursive(named, root, within, done);
            within.pop();
            if recursive {
                return true;
            }
        }
    }
    fields
        .values()
        .any(|value| is_recursive(value, root, within, done))
}

fn closed(schema: &Value) -> Result<Value, Str> {
    let Value::Object(fields) = schema else {
        return Err(Str::from_static("a place where anything may be"));
    };
    let mut out = Map::new();
    let mut asked = Vec::new();
    for (name, value) in fields {
        match name.as_str() {
            "$defs" | "definitions" | "properties" => {
                out.insert(name.clone(), output_map(value)?);
            }
            "items" => {
                out.insert(name.clone(), closed(value)?);
            }
            "anyOf" | "allOf" => {
                out.insert(name.clone(), output_list(value)?);
            }
            "oneOf" => {
                out.insert("anyOf".to_owned(), output_list(value)?);
            }
            "type" | "enum" | "const" | "default" | "$ref" | "required" | "title"
            | "description" => {
                out.insert(name.clone(), value.clone());
            }
            "format" if is_known_format(value) => {
                out.insert(name.clone(), value.clone());
            }
            "minItems" if matches!(value.as_u64(), Some(0 | 1)) => {
                out.insert(name.clone(), value.clone());
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
            _ => asked.push(format!("{name}: {value}")),
        }
    }
    let is_object = out.contains_key("properties")
        || out.get("type").is_some_and(|type_| match type_ {
            Value::Array(types) => types.iter().any(|type_| type_ == "object"),
            type_ => type_ == "object",
        });
    if is_object {
        let open = fields
            .get("additionalProperties")
            .is_none_or(|more| *more != false);
        if open
            && out
                .get("properties")
                .is_none_or(|p| *p == Value::Object(Map::new()))
        {
            return Err(Str::from_static("an object of any properties"));
        }
        out.insert("additionalProperties".to_owned(), false.into());
    }
    if !asked.is_empty() {
        // The same whether or not maps keep the order of their fields.
        asked.sort_unstable();
        let asked = format!("{{{}}}", asked.join(", "));
        let description = match out.get("description").and_then(Value::as_str) {
            Some(description) => format!("{description}\n\n{asked}"),
            None => asked,
        };
        out.insert("description".to_owned(), description.into());
    }
    Ok(out.into())
}

fn output_map(schemas: &Value) -> Result<Value, Str> {
    let schemas = schemas.as_object().into_iter().flatten();
    let schemas = schemas.map(|(name, schema)| Ok((name.clone(), closed(schema)?)));
    schemas.collect::<Result<Map<_, _>, _>>().map(Value::Object)
}

fn output_list(schemas: &Value) -> Result<Value, Str> {
    let schemas = schemas.as_array().into_iter().flatten();
    schemas
        .map(closed)
        .collect::<Result<Vec<_>, _>>()
        .map(Value::Array)
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
