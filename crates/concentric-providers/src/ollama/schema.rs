//! The schemas of tools, as the server reads them.
//!
//! It reads a property's `type`, `description`, `enum`, `items`, `properties`, `required` and
//! `anyOf`, refuses a schema that is `true`, and leaves all else out of what the model is told
//! (`api.ToolProperty`). What can be said in these words is said in them: references are replaced
//! by what they refer to, `oneOf` is `anyOf`, `const` an `enum` of one, `allOf` one schema.

use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// How deep references are followed; a schema that holds itself is left open there.
const DEPTH: usize = 8;

/// The most schemas that there may then be in it.
const SCHEMAS: usize = 16 * 1024;

/// The schema of a tool's arguments.
///
/// # Errors
///
/// What of it can't be said to the server.
pub(super) fn parameters(schema: &Value) -> Result<Cow<'_, Value>, &'static str> {
    if is_plain(schema) && schema.get("type").and_then(Value::as_str) == Some("object") {
        return Ok(Cow::Borrowed(schema));
    }
    let mut root = Root {
        schema,
        left: SCHEMAS,
    };
    let mut object = match rewrite(schema, &mut root, 0)? {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    // The server takes one word only.
    object.insert("type".to_owned(), json!("object"));
    if !object.get("properties").is_some_and(Value::is_object) {
        object.insert("properties".to_owned(), json!({}));
    }
    Ok(Cow::Owned(Value::Object(object)))
}

/// What a schema stands in, and refers to.
struct Root<'a> {
    schema: &'a Value,
    /// How many more schemas may be written.
    left: usize,
}

/// Whether nothing in it needs other words.
fn is_plain(schema: &Value) -> bool {
    let Value::Object(object) = schema else {
        return false;
    };
    object.iter().all(|(name, value)| match name.as_str() {
        "$ref" | "$defs" | "definitions" | "oneOf" | "allOf" | "const" => false,
        "properties" => value
            .as_object()
            .is_some_and(|properties| properties.values().all(is_plain)),
        "anyOf" => value
            .as_array()
            .is_some_and(|schemas| schemas.iter().all(is_plain)),
        "items" => is_plain(value),
        _ => true,
    })
}

fn rewrite(schema: &Value, root: &mut Root<'_>, depth: usize) -> Result<Value, &'static str> {
    root.left = root.left.checked_sub(1).ok_or("it is too large")?;
    let Value::Object(object) = schema else {
        return Ok(json!({}));
    };
    let mut out = Map::new();
    for (name, value) in object {
        match (name.as_str(), value) {
            ("$defs" | "definitions", _) => {}
            ("$ref", Value::String(target)) => {
                let pointer = target.strip_prefix('#');
                let target = pointer.and_then(|pointer| root.schema.pointer(pointer));
                if let Some(target) = target.filter(|_| depth < DEPTH) {
                    merge(&mut out, rewrite(target, root, depth + 1)?);
                }
            }
            ("allOf", Value::Array(all)) => {
                for one in all {
                    merge(&mut out, rewrite(one, root, depth)?);
                }
            }
            ("oneOf" | "anyOf", Value::Array(all)) => {
                let all = all.iter().map(|one| rewrite(one, root, depth));
                let all = all.collect::<Result<Vec<_>, _>>()?;
                merge(&mut out, json!({ "anyOf": all }));
            }
            ("const", value) => {
                out.insert("enum".to_owned(), json!([value]));
            }
            ("properties", Value::Object(properties)) => {
                let properties = properties
                    .iter()
                    .map(|(name, one)| rewrite(one, root, depth).map(|one| (name.clone(), one)));
                let properties = properties.collect::<Result<Map<_, _>, _>>()?;
                merge(&mut out, json!({ "properties": properties }));
            }
            ("items", value) => {
                out.insert(name.clone(), rewrite(value, root, depth)?);
            }
            ("required", value) => merge(&mut out, json!({ "required": value })),
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(Value::Object(out))
}

/// Adds `more` to a schema: what both say of an object's properties holds together, and of
/// alternatives there are as many as both have.
fn merge(schema: &mut Map<String, Value>, more: Value) {
    let Value::Object(more) = more else {
        return;
    };
    for (name, value) in more {
        match (name.as_str(), schema.get_mut(&name), value) {
            ("properties", Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
            ("required" | "anyOf", Some(Value::Array(old)), Value::Array(new)) => old.extend(new),
            (_, Some(_), _) => {}
            (_, None, value) => {
                schema.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parameters;
    use serde_json::{Map, json};
    use std::borrow::Cow;

    #[test]
    fn what_the_server_reads_is_left_alone() {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"type": ["string", "null"], "minLength": 1}},
            "required": ["a"],
        });
        assert!(matches!(parameters(&schema), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn what_it_does_not_read_is_said_otherwise() {
        let schema = json!({
            "properties": {
                "unit": {"description": "Which.", "$ref": "#/$defs/Unit"},
                "way": {"oneOf": [{"const": "up"}, {"const": "down"}]},
                "any": true,
                "list": {"type": "array", "items": {"$ref": "#/$defs/Unit"}},
                "both": {"allOf": [
                    {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
                    {"properties": {"y": {"type": "number"}}, "required": ["y"]},
                ]},
            },
            "$defs": {"Unit": {"type": "string", "enum": ["c", "f"]}},
        });
        assert_eq!(
            *parameters(&schema).expect("a schema"),
            json!({
                "type": "object",
                "properties": {
                    "unit": {"description": "Which.", "type": "string", "enum": ["c", "f"]},
                    "way": {"anyOf": [{"enum": ["up"]}, {"enum": ["down"]}]},
                    "any": {},
                    "list": {"type": "array", "items": {"type": "string", "enum": ["c", "f"]}},
                    "both": {
                        "type": "object",
                        "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                        "required": ["x", "y"],
                    },
                },
            })
        );
    }

    #[test]
    fn a_schema_that_holds_itself_ends() {
        let schema = json!({
            "type": "object",
            "properties": {"node": {"$ref": "#/$defs/Node"}},
            "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
        });
        let text = parameters(&schema).expect("a schema").to_string();
        assert_eq!(text.matches("next").count(), super::DEPTH);
        assert!(!text.contains("$ref"));
        assert_eq!(
            *parameters(&json!(true)).expect("a schema"),
            json!({"type": "object", "properties": {}})
        );
    }

    #[test]
    fn a_schema_that_holds_itself_often_is_refused() {
        let node = |count: u32| {
            let properties = (0..count).map(|at| (at.to_string(), json!({"$ref": "#"})));
            json!({"type": "object", "properties": properties.collect::<Map<_, _>>()})
        };
        assert!(parameters(&node(2)).is_ok());
        // 10⁸ in full.
        assert!(parameters(&node(10)).is_err());
    }
}
