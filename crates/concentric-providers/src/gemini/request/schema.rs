//! JSON Schemas, as a model takes them.

use super::super::family::Family;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The deepest that a schema may be, with all that it refers to in the place of what does.
const DEPTH: usize = 64;

/// The most schemas that there may then be in it.
const SCHEMAS: usize = 16 * 1024;

/// `schema` for models of `family`.
///
/// # Errors
///
/// What of it can't be said to them.
pub(super) fn adapt(schema: &Value, family: Family) -> Result<Cow<'_, Value>, &'static str> {
    if family.takes_json_schema() {
        // What it does not know of JSON Schema it reads over.
        return Ok(Cow::Borrowed(schema));
    }
    let mut root = Root {
        schema,
        left: SCHEMAS,
    };
    rewrite(schema, &mut root, 0).map(Cow::Owned)
}

/// What a schema stands in, and refers to.
struct Root<'a> {
    schema: &'a Value,
    /// How many more schemas may be written.
    left: usize,
}

/// `schema`, which stands in `root`, in the service's subset of OpenAPI 3.0
/// (<https://ai.google.dev/api/caching#Schema>).
fn rewrite(schema: &Value, root: &mut Root<'_>, depth: usize) -> Result<Value, &'static str> {
    if depth > DEPTH {
        return Err("it is too deep, or refers to itself");
    }
    root.left = root.left.checked_sub(1).ok_or("it is too large")?;
    let Some(fields) = schema.as_object() else {
        return match schema {
            Value::Bool(false) => Err("nothing fits `false`"),
            _ => Ok(Value::Object(Map::new())),
        };
    };
    let mut out = Map::new();
    // What is not in the subset.
    let mut told = Map::new();
    if let Some(reference) = fields.get("$ref") {
        let pointer = reference.as_str().and_then(|r| r.strip_prefix('#'));
        let target = pointer.and_then(|pointer| root.schema.pointer(pointer));
        let target = target.ok_or("it refers to what is not in it")?;
        if let Value::Object(target) = rewrite(target, root, depth + 1)? {
            out = target;
        }
    }
    for (name, value) in fields {
        let name = name.as_str();
        match name {
            "$ref" | "$defs" | "definitions" | "$schema" | "$id" | "$comment" | "description" => {}
            "type" => types(value, &mut out, &mut told),
            "const" | "enum" => {
                let values = match (name, value) {
                    ("enum", Value::Array(values)) => values.as_slice(),
                    _ => std::slice::from_ref(value),
                };
                if values.iter().all(Value::is_string) {
                    out.insert("enum".to_owned(), values.into());
                    out.entry("type").or_insert_with(|| "string".into());
                } else {
                    // Only texts can be enumerated.
                    told.insert(name.to_owned(), value.clone());
                }
            }
            "items" if value.is_object() => {
                out.insert(name.to_owned(), rewrite(value, root, depth + 1)?);
            }
            "properties" => {
                let mut properties = Map::new();
                for (name, value) in value.as_object().into_iter().flatten() {
                    properties.insert(name.clone(), rewrite(value, root, depth + 1)?);
                }
                out.insert(name.to_owned(), properties.into());
            }
            "anyOf" | "oneOf" => any_of(value, root, depth, &mut out)?,
            "allOf" => {
                for value in value.as_array().into_iter().flatten() {
                    if let Value::Object(all) = rewrite(value, root, depth + 1)? {
                        merge(&mut out, all)?;
                    }
                }
            }
            "format" => {
                let known = ["float", "double", "int32", "int64", "enum", "date-time"];
                let is_known = value.as_str().is_some_and(|value| known.contains(&value));
                let place = if is_known { &mut out } else { &mut told };
                place.insert(name.to_owned(), value.clone());
            }
            "title" | "nullable" | "maxItems" | "minItems" | "required" | "minProperties"
            | "maxProperties" | "minLength" | "maxLength" | "pattern" | "example"
            | "propertyOrdering" | "default" | "minimum" | "maximum" => {
                out.insert(name.to_owned(), value.clone());
            }
            _ => {
                told.insert(name.to_owned(), value.clone());
            }
        }
    }
    require(&mut out, &mut told);
    describe(fields.get("description"), &told, &mut out);
    if out.get("type").and_then(Value::as_str) == Some("array") {
        out.entry("items").or_insert_with(|| Map::new().into());
    }
    Ok(out.into())
}

/// A type, or several, of which `null` is one that a schema may also be.
fn types(value: &Value, out: &mut Map<String, Value>, told: &mut Map<String, Value>) {
    let all: Vec<&Value> = match value {
        Value::Array(all) => all.iter().collect(),
        one => vec![one],
    };
    let (nulls, types): (Vec<&Value>, Vec<&Value>) =
        all.into_iter().partition(|name| *name == "null");
    if !nulls.is_empty() {
        out.insert("nullable".to_owned(), true.into());
    }
    match &*types {
        [one] => {
            out.insert("type".to_owned(), (*one).clone());
        }
        [] => {
            told.insert("type".to_owned(), value.clone());
        }
        several => {
            let several = several.iter().map(|one| serde_json::json!({ "type": one }));
            out.insert("anyOf".to_owned(), several.collect());
        }
    }
}

fn any_of(
    value: &Value,
    root: &mut Root<'_>,
    depth: usize,
    out: &mut Map<String, Value>,
) -> Result<(), &'static str> {
    let mut all = Vec::new();
    for one in value.as_array().into_iter().flatten() {
        if one.get("type").is_some_and(|name| name == "null") {
            out.insert("nullable".to_owned(), true.into());
        } else {
            all.push(rewrite(one, root, depth + 1)?);
        }
    }
    if all.len() == 1
        && let Some(Value::Object(one)) = all.pop()
    {
        return merge(out, one);
    }
    if out.insert("anyOf".to_owned(), all.into()).is_some() {
        return Err("two alternatives at one place");
    }
    Ok(())
}

/// Adds `more` to `out`; both are to hold.
fn merge(out: &mut Map<String, Value>, more: Map<String, Value>) -> Result<(), &'static str> {
    for (name, value) in more {
        match (out.get_mut(&name), value) {
            (None, value) => {
                out.insert(name, value);
            }
            (Some(Value::Object(old)), Value::Object(new)) if name == "properties" => {
                old.extend(new);
            }
            (Some(Value::Array(old)), Value::Array(new)) if name == "required" => {
                old.extend(new);
            }
            (Some(old), new) if *old == new => {}
            (Some(Value::String(old)), Value::String(new)) if name == "description" => {
                old.push(' ');
                old.push_str(&new);
            }
            (Some(_), _) if matches!(name.as_str(), "title" | "default") => {}
            _ => return Err("two schemas at one place that can't be joined"),
        }
    }
    Ok(())
}

/// Sees that what is required is there, as the service wants it.
fn require(out: &mut Map<String, Value>, told: &mut Map<String, Value>) {
    let Some(Value::Array(names)) = out.remove("required") else {
        return;
    };
    let properties = out.get("properties").and_then(Value::as_object);
    let is_there = |name: &Value| {
        let name = name.as_str();
        properties.is_some_and(|all| name.is_some_and(|name| all.contains_key(name)))
    };
    let (there, elsewhere): (Vec<Value>, Vec<Value>) = names.into_iter().partition(is_there);
    for (place, names) in [(out, there), (told, elsewhere)] {
        if !names.is_empty() {
            place.insert("required".to_owned(), names.into());
        }
    }
}

/// Says in the description what the subset has no word for.
fn describe(own: Option<&Value>, told: &Map<String, Value>, out: &mut Map<String, Value>) {
    // What it refers to, or is joined of, may have one of its own.
    let texts = [own, out.get("description")];
    let texts = texts.into_iter().flatten().filter_map(Value::as_str);
    let mut texts: Vec<String> = texts.map(str::to_owned).collect();
    if !told.is_empty() {
        texts.push(format!("(JSON Schema: {})", Value::from(told.clone())));
    }
    if !texts.is_empty() {
        out.insert("description".to_owned(), texts.join(" ").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_new_model_is_sent_the_schema_as_it_is() {
        let schema = json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": ["object", "null"]});
        let adapted = adapt(&schema, Family::of("gemini-2.5-flash"));
        assert_eq!(adapted.expect("a schema").as_ref(), &schema);
    }

    #[test]
    fn an_old_model_is_sent_what_it_knows() {
        let cases = [
            (
                json!({"$schema": "x", "type": "object", "properties": {
                    "a": {"type": ["string", "null"], "description": "An a.", "format": "uuid"},
                    "b": {"$ref": "#/$defs/b"},
                    "c": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "d": {"const": "x"},
                    "e": {"oneOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]},
                    "f": {"type": ["string", "integer"]},
                    "g": {"type": "array"},
                    "h": {"type": "integer", "enum": [1, 2]},
                }, "required": ["a"], "additionalProperties": false,
                "$defs": {"b": {"type": "object", "properties": {"x": true}}}}),
                json!({"type": "object", "description": "(JSON Schema: {\"additionalProperties\":false})",
                "properties": {
                    "a": {"type": "string", "nullable": true, "description": "An a. (JSON Schema: {\"format\":\"uuid\"})"},
                    "b": {"type": "object", "properties": {"x": {}}},
                    "c": {"type": "integer", "nullable": true},
                    "d": {"type": "string", "enum": ["x"]},
                    "e": {"anyOf": [{"type": "string"}, {"type": "number", "description": "(JSON Schema: {\"exclusiveMinimum\":0})"}]},
                    "f": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                    "g": {"type": "array", "items": {}},
                    "h": {"type": "integer", "description": "(JSON Schema: {\"enum\":[1,2]})"},
                }, "required": ["a"]}),
            ),
            (
                json!({"type": "object", "properties": {"a": {}}, "required": ["a", "b"]}),
                json!({"type": "object", "properties": {"a": {}}, "required": ["a"],
                    "description": "(JSON Schema: {\"required\":[\"b\"]})"}),
            ),
            (
                json!({"description": "A.", "allOf": [{"description": "B.", "minimum": 1, "multipleOf": 2}]}),
                json!({"description": "A. B. (JSON Schema: {\"multipleOf\":2})", "minimum": 1}),
            ),
            (
                json!({"allOf": [
                    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
                ]}),
                json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "required": ["a", "b"]}),
            ),
        ];
        for (schema, expected) in cases {
            let adapted = adapt(&schema, Family::of("gemini-2.0-flash")).expect("a schema");
            assert_eq!(adapted.as_ref(), &expected);
        }
    }

    #[test]
    fn what_an_old_model_can_not_be_told_is_refused() {
        let refused = [
            json!({"$ref": "#"}),
            json!({"$ref": "https://a.test"}),
            json!({"properties": {"a": false}}),
            json!({"allOf": [{"type": "string"}, {"type": "number"}]}),
        ];
        for schema in refused {
            assert!(
                adapt(&schema, Family::of("gemini-2.0-flash")).is_err(),
                "{schema}"
            );
        }
        // Twice as large with each definition.
        let mut large = json!({"$ref": "#/$defs/0", "$defs": {"40": {"type": "string"}}});
        for at in 0..40 {
            let next = json!({"$ref": format!("#/$defs/{}", at + 1)});
            large["$defs"][at.to_string()] = json!({"properties": {"a": next, "b": next}});
        }
        assert!(adapt(&large, Family::of("gemini-2.0-flash")).is_err());
    }
}
