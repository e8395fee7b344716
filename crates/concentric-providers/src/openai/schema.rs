//! JSON Schemas as OpenAI takes them, in chat completions as in Responses.
//!
//! With `strict`, the service holds the model to a schema, of which it takes a subset ("Structured
//! Outputs", supported schemas). A schema that says the same within it is rewritten so; all others
//! are sent as they are, without `strict`:
//!
//! | a schema | within the subset |
//! |---|---|
//! | an object that says nothing of other properties | takes no others |
//! | an optional property that may be null | is required |
//! | any other optional property | can't be said |
//! | `oneOf` | `anyOf` |
//! | `$schema`, `$comment`, `examples`, `deprecated`, `readOnly`, `writeOnly`, a default of null, the format of a number | left out: they restrict nothing |
//! | objects of any properties, `allOf`, `not`, `if`, lengths of text, a reference with anything beside it, more than 10 levels or 5,000 properties, all else | can't be said |
//!
//! What others take with `strict` is less known, and differs; but most want the first three of these.
//! So their output schemas are rewritten in these only, and where that can't be said, it is as it is,
//! without `strict`.

use crate::Unsupported;
use concentric_core::{ChatRequest, OutputSchema};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

const LEVELS: usize = 10;
const PROPERTIES: usize = 5000;

/// Which schemas a service takes with `strict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subset {
    OpenAi,
    /// Those whose objects are closed, and want all of their properties.
    Closed,
}

/// An output schema as it is sent to OpenAI, and whether it is with `strict`.
pub(crate) fn output(output: &OutputSchema) -> (Cow<'_, Value>, bool) {
    output_by(output, strict)
}

/// An output schema as it is sent to others, and whether it is with `strict`.
pub(crate) fn closed_output(output: &OutputSchema) -> (Cow<'_, Value>, bool) {
    output_by(output, |schema| rewrite(schema, Subset::Closed, 0, &mut 0))
}

fn output_by(
    output: &OutputSchema,
    strict: impl FnOnce(&Value) -> Option<Value>,
) -> (Cow<'_, Value>, bool) {
    match output.strict.then(|| strict(&output.schema)).flatten() {
        Some(strict) => (Cow::Owned(strict), true),
        None => (Cow::Borrowed(&output.schema), false),
    }
}

/// `schema` within the subset that `strict` takes, if it can be said in it.
pub(crate) fn strict(schema: &Value) -> Option<Value> {
    let root = schema.as_object()?;
    if root.get("type")? != "object" || !root.get("properties")?.is_object() {
        return None;
    }
    if ["anyOf", "oneOf", "enum", "const", "$ref"]
        .iter()
        .any(|name| root.contains_key(*name))
    {
        return None;
    }
    rewrite(schema, Subset::OpenAi, 0, &mut 0)
}

fn rewrite(schema: &Value, subset: Subset, level: usize, properties: &mut usize) -> Option<Value> {
    let schema = schema.as_object()?;
    let mut out = Map::new();
    for (name, value) in schema {
        let value = match name.as_str() {
            "items" => rewrite(value, subset, level + 1, properties)?,
            "anyOf" => rewrite_all(value, subset, level, properties)?,
            "oneOf" | "prefixItems" if subset == Subset::Closed => {
                rewrite_all(value, subset, level, properties)?
            }
            "oneOf" if !schema.contains_key("anyOf") => {
                let any = rewrite_all(value, subset, level, properties)?;
                out.insert("anyOf".to_owned(), any);
                continue;
            }
            "$defs" | "definitions" => {
                let mut defs = Map::new();
                for (name, def) in value.as_object()? {
                    // Where it is used is not known here.
                    defs.insert(name.clone(), rewrite(def, subset, 1, properties)?);
                }
                defs.into()
            }
            "properties" => continue,
            "required" | "additionalProperties" if schema.contains_key("properties") => continue,
            // What these say of an object is another thing when it is closed.
            "allOf"
            | "not"
            | "if"
            | "then"
            | "else"
            | "additionalProperties"
            | "patternProperties"
            | "unevaluatedProperties"
            | "dependentSchemas" => return None,
            _ if subset == Subset::Closed => value.clone(),
            "$schema" | "$comment" | "examples" | "deprecated" | "readOnly" | "writeOnly" => {
                continue;
            }
            "default" if value.is_null() => continue,
            "format" if has_type(schema, "integer") || has_type(schema, "number") => continue,
            "format" => is_format(value).then(|| value.clone())?,
            "type" => is_type(value).then(|| value.clone())?,
            "$ref" => value.as_str()?.starts_with('#').then(|| value.clone())?,
            "description" | "title" | "enum" | "const" | "pattern" | "minimum" | "maximum"
            | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" | "minItems" | "maxItems" => {
                value.clone()
            }
            _ => return None,
        };
        out.insert(name.clone(), value);
    }
    if let Some(own) = schema.get("properties") {
        object(
            schema,
            own.as_object()?,
            subset,
            level,
            properties,
            &mut out,
        )?;
    } else if has_type(schema, "object") {
        return None;
    }
    if subset == Subset::Closed {
        return Some(out.into());
    }
    let is_said = ["type", "$ref", "anyOf", "enum", "const"]
        .iter()
        .any(|name| out.contains_key(*name));
    let is_listed = !has_type(schema, "array") || out.contains_key("items");
    let is_alone = !out.contains_key("$ref") || out.len() == 1;
    (is_said && is_listed && is_alone).then_some(out.into())
}

fn rewrite_all(
    list: &Value,
    subset: Subset,
    level: usize,
    properties: &mut usize,
) -> Option<Value> {
    let list = list.as_array()?.iter();
    list.map(|one| rewrite(one, subset, level, properties))
        .collect()
}

/// Closes an object, and asks for all of its properties.
fn object(
    schema: &Map<String, Value>,
    own: &Map<String, Value>,
    subset: Subset,
    level: usize,
    count: &mut usize,
    out: &mut Map<String, Value>,
) -> Option<()> {
    *count += own.len();
    if level >= LEVELS || *count > PROPERTIES || !has_type(schema, "object") {
        return None;
    }
    match schema.get("additionalProperties") {
        Some(Value::Bool(false)) => {}
        // A tool without arguments; below, an object of any properties.
        None if level == 0 || !own.is_empty() => {}
        _ => return None,
    }
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    if required.is_some_and(|all| {
        all.iter()
            .any(|one| one.as_str().is_none_or(|name| !own.contains_key(name)))
    }) {
        return None;
    }
    let mut properties = Map::new();
    for (name, property) in own {
        if !is_required(name) && !may_be_null(property) {
            return None;
        }
        properties.insert(name.clone(), rewrite(property, subset, level + 1, count)?);
    }
    let names: Vec<&String> = own.keys().collect();
    out.insert("required".to_owned(), json!(names));
    out.insert("properties".to_owned(), properties.into());
    out.insert("additionalProperties".to_owned(), false.into());
    Some(())
}

fn has_type(schema: &Map<String, Value>, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(any)) => any.iter().any(|one| one == name),
        _ => false,
    }
}

fn is_type(value: &Value) -> bool {
    let known = |one: &Value| {
        matches!(
            one.as_str(),
            Some("string" | "number" | "integer" | "boolean" | "object" | "array" | "null")
        )
    };
    match value {
        Value::Array(any) => !any.is_empty() && any.iter().all(known),
        one => known(one),
    }
}

fn is_format(value: &Value) -> bool {
    matches!(
        value.as_str(),
        Some(
            "date-time"
                | "time"
                | "date"
                | "duration"
                | "email"
                | "hostname"
                | "ipv4"
                | "ipv6"
                | "uuid"
        )
    )
}

fn may_be_null(schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else {
        return false;
    };
    let null_in = |name: &str| {
        let list = schema.get(name).and_then(Value::as_array);
        list.is_some_and(|list| list.contains(&Value::Null))
    };
    let any_of = |name: &str| {
        let list = schema.get(name).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(may_be_null))
    };
    has_type(schema, "null") || null_in("enum") || any_of("anyOf") || any_of("oneOf")
}

/// A tool's schema without `strict`: the service wants to be told that it is of an object, and its
/// properties even where there are none.
pub(crate) fn parameters(schema: &Value) -> Cow<'_, Value> {
    match schema.as_object() {
        Some(fields) if fields.contains_key("type") && fields.contains_key("properties") => {
            Cow::Borrowed(schema)
        }
        Some(fields) => {
            let mut fields = fields.clone();
            fields.entry("type").or_insert_with(|| "object".into());
            fields.entry("properties").or_insert_with(|| json!({}));
            Cow::Owned(fields.into())
        }
        None => Cow::Borrowed(schema),
    }
}

/// Adds the names and the schemas of `request` that the service takes neither way. The name of a tool
/// may be `longest` long.
pub(crate) fn check(request: &ChatRequest, longest: usize, unsupported: &mut Vec<Unsupported>) {
    let options = &*request.options;
    if let Some(output) = &options.output_schema
        && !is_name(&output.name, 64)
    {
        let what = format!("an output schema named `{}`", output.name);
        unsupported.push(Unsupported::new(what));
    }
    // These are sent instead.
    if options.provider.contains_key("tools") {
        return;
    }
    for spec in &request.tools {
        if !is_name(&spec.name, longest) {
            let what = format!("a tool named `{}`", spec.name);
            unsupported.push(Unsupported::new(what));
        }
        if let Some(why) = refused(&spec.input_schema) {
            let what = format!("the schema of the tool `{}`, which {why}", spec.name);
            unsupported.push(Unsupported::new(what));
        }
    }
}

fn is_name(name: &str, longest: usize) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=longest).contains(&name.len()) && name.chars().all(known)
}

/// Why the service takes no such schema of a tool, strict or not.
fn refused(schema: &Value) -> Option<String> {
    let Some(fields) = schema.as_object() else {
        return Some("is of no object".to_owned());
    };
    if fields.get("type").is_some_and(|type_| type_ != "object") {
        return Some("is of no object".to_owned());
    }
    let at_top = ["anyOf", "oneOf", "allOf", "enum", "not"]
        .into_iter()
        .find(|name| fields.contains_key(*name))?;
    Some(format!("has `{at_top}` at its top"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_said_strictly_is_and_else_nothing() {
        let said = json!({
            "$schema": "x", "type": "object", "title": "T",
            "properties": {
                "a": {"type": "string", "description": "A."},
                "b": {"type": ["integer", "null"], "format": "uint8", "minimum": 0, "default": null},
                "c": {"type": "array", "items": {"$ref": "#/$defs/C"}},
                "d": {"oneOf": [{"const": "x", "type": "string"}, {"type": "null"}]},
            },
            "required": ["a", "c"],
            "$defs": {"C": {"type": "object", "properties": {"e": {"type": "boolean"}}, "required": ["e"]}},
        });
        let strict_said = json!({
            "type": "object", "title": "T",
            "properties": {
                "a": {"type": "string", "description": "A."},
                "b": {"type": ["integer", "null"], "minimum": 0},
                "c": {"type": "array", "items": {"$ref": "#/$defs/C"}},
                "d": {"anyOf": [{"const": "x", "type": "string"}, {"type": "null"}]},
            },
            "required": ["a", "b", "c", "d"],
            "additionalProperties": false,
            "$defs": {"C": {"type": "object", "properties": {"e": {"type": "boolean"}}, "required": ["e"], "additionalProperties": false}},
        });
        assert_eq!(strict(&said), Some(strict_said.clone()));
        assert_eq!(strict(&strict_said), Some(strict_said));
        assert!(strict(&json!({"type": "object", "properties": {}})).is_some());

        let of = |property: Value| json!({"type": "object", "properties": {"a": property}, "required": ["a"]});
        for schema in [
            json!(true),
            json!({"type": "object"}),
            json!({"type": "string"}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "properties": {}, "additionalProperties": true}),
            json!({"type": "object", "properties": {}, "required": ["a"]}),
            json!({"type": "object", "properties": {}, "anyOf": []}),
            of(json!(true)),
            of(json!({})),
            of(json!({"description": "Anything."})),
            of(json!({"type": "object"})),
            of(json!({"type": "object", "properties": {}})),
            of(json!({"type": "object", "additionalProperties": {"type": "string"}})),
            of(json!({"type": "array"})),
            of(json!({"type": "string", "minLength": 1})),
            of(json!({"type": "string", "format": "uri"})),
            of(json!({"type": "string", "default": "x"})),
            of(json!({"type": "text"})),
            of(json!({"allOf": [{"type": "string"}]})),
            of(json!({"$ref": "#/$defs/A", "description": "A."})),
            of(json!({"$ref": "https://a.test/x"})),
        ] {
            assert_eq!(strict(&schema), None, "{schema}");
        }
        let mut deep = json!({"type": "string"});
        for _ in 0..LEVELS {
            deep = of(deep);
        }
        assert!(strict(&deep).is_some());
        assert_eq!(strict(&of(deep)), None);
    }

    #[test]
    fn what_can_be_closed_is_and_stays_as_it_is_else() {
        let closed = |schema: &Value| {
            let output = OutputSchema::new("out", schema.clone());
            let (schema, strict) = closed_output(&output);
            strict.then(|| schema.into_owned())
        };
        let said = json!({
            "$schema": "x", "type": "object",
            "properties": {
                "a": {"type": "string", "minLength": 1, "format": "uri", "default": "x"},
                "b": {"type": ["integer", "null"], "format": "uint8"},
                "c": {"type": "array", "items": {"$ref": "#/$defs/C", "description": "C."}},
                "d": {"oneOf": [{"type": "object", "properties": {"e": {}}, "required": ["e"]}, {"type": "null"}]},
            },
            "required": ["a", "c"],
            "$defs": {"C": {"type": "object", "properties": {"f": {"type": "boolean"}}, "required": ["f"]}},
        });
        let mut expected = said.clone();
        expected["additionalProperties"] = false.into();
        expected["required"] = json!(["a", "b", "c", "d"]);
        expected["properties"]["d"]["oneOf"][0]["additionalProperties"] = false.into();
        expected["$defs"]["C"]["additionalProperties"] = false.into();
        assert_eq!(closed(&said), Some(expected.clone()));
        assert_eq!(closed(&expected), Some(expected));
        for schema in [
            json!({"type": "string", "minLength": 1}),
            json!({"enum": ["a", "b"]}),
            json!({"type": "array", "items": {"type": "string"}}),
        ] {
            assert_eq!(closed(&schema), Some(schema));
        }
        let of = |property: Value| json!({"type": "object", "properties": {"a": property}, "required": ["a"]});
        for schema in [
            json!({"type": "object"}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            json!({"type": "object", "properties": {}, "additionalProperties": true}),
            json!({"type": "object", "properties": {}, "patternProperties": {}}),
            of(json!({"type": "object"})),
            of(json!({"type": "object", "additionalProperties": {"type": "string"}})),
            of(json!({"allOf": [{"type": "object", "properties": {}}]})),
        ] {
            assert_eq!(closed(&schema), None, "{schema}");
        }
    }
}
