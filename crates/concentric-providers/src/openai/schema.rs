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
//! | objects of any properties, `allOf`, `not`, `if`, lengths of text, a reference with anything beside it, more than 10 levels or 5,000 properties, more than 1 MiB when rewritten, all else | can't be said |
//!
//! What others take with `strict` is less known, and differs; but most want the first three of these.
//! So their output schemas are rewritten in these only, and where that can't be said, it is as it is,
//! without `strict`.

use crate::{
    Unsupported,
    schema::{Budget, Node, Object},
};
use concentric_core::{ChatRequest, OutputSchema};
use serde_json::{Map, Value};
use std::collections::HashSet;

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
pub(crate) fn output(output: &OutputSchema) -> (Node<'_>, bool) {
    output_by(output, strict)
}

/// An output schema as it is sent to others, and whether it is with `strict`.
pub(crate) fn closed_output(output: &OutputSchema) -> (Node<'_>, bool) {
    output_by(output, |schema| {
        Writer::new(Subset::Closed)
            .rewrite(schema, 0)
            .map(Node::Object)
    })
}

fn output_by<'a>(
    output: &'a OutputSchema,
    strict: impl FnOnce(&'a Value) -> Option<Node<'a>>,
) -> (Node<'a>, bool) {
    match output.strict.then(|| strict(&output.schema)).flatten() {
        Some(strict) => (strict, true),
        None => (Node::Kept(&output.schema), false),
    }
}

/// `schema` within the subset that `strict` takes, if it can be said in it.
pub(crate) fn strict(schema: &Value) -> Option<Node<'_>> {
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
    let strict = Writer::new(Subset::OpenAi).rewrite(schema, 0)?;
    Some(Node::Object(strict))
}

/// Rewrites one schema.
struct Writer {
    subset: Subset,
    /// How many properties there are so far.
    properties: usize,
    budget: Budget,
}

impl Writer {
    const fn new(subset: Subset) -> Self {
        Self {
            subset,
            properties: 0,
            budget: Budget::new(),
        }
    }

    fn rewrite<'a>(&mut self, schema: &'a Value, level: usize) -> Option<Object<'a>> {
        let schema = schema.as_object()?;
        let subset = self.subset;
        self.budget.entry().ok()?;
        let mut out = Object::default();
        for (name, value) in schema {
            let value = match name.as_str() {
                "items" => Node::Object(self.rewrite(value, level + 1)?),
                "anyOf" => self.rewrite_all(value, level)?,
                "oneOf" | "prefixItems" if subset == Subset::Closed => {
                    self.rewrite_all(value, level)?
                }
                "oneOf" if !schema.contains_key("anyOf") => {
                    let any = self.rewrite_all(value, level)?;
                    self.budget.put(&mut out, "anyOf", any).ok()?;
                    continue;
                }
                "$defs" | "definitions" => {
                    let mut defs = Object::default();
                    for (name, def) in value.as_object()? {
                        // Where it is used is not known here.
                        let def = Node::Object(self.rewrite(def, 1)?);
                        self.budget.put(&mut defs, name, def).ok()?;
                    }
                    Node::Object(defs)
                }
                "properties" => continue,
                "required" | "additionalProperties" if schema.contains_key("properties") => {
                    continue;
                }
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
                _ if subset == Subset::Closed => self.budget.keep(value).ok()?,
                "$schema" | "$comment" | "examples" | "deprecated" | "readOnly" | "writeOnly" => {
                    continue;
                }
                "default" if value.is_null() => continue,
                "format" if has_type(schema, "integer") || has_type(schema, "number") => continue,
                "format" if !is_format(value) => return None,
                "type" if !is_type(value) => return None,
                "$ref" if !value.as_str()?.starts_with('#') => return None,
                "format" | "type" | "$ref" | "description" | "title" | "enum" | "const"
                | "pattern" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
                | "multipleOf" | "minItems" | "maxItems" => self.budget.keep(value).ok()?,
                _ => return None,
            };
            self.budget.put(&mut out, name, value).ok()?;
        }
        if let Some(own) = schema.get("properties") {
            self.object(schema, own.as_object()?, level, &mut out)?;
        } else if has_type(schema, "object") {
            return None;
        }
        if subset == Subset::Closed {
            return Some(out);
        }
        let is_said = ["type", "$ref", "anyOf", "enum", "const"]
            .iter()
            .any(|name| out.contains_key(*name));
        let is_listed = !has_type(schema, "array") || out.contains_key("items");
        let is_alone = !out.contains_key("$ref") || out.len() == 1;
        (is_said && is_listed && is_alone).then_some(out)
    }

    fn rewrite_all<'a>(&mut self, list: &'a Value, level: usize) -> Option<Node<'a>> {
        let list = list.as_array()?.iter();
        let list = list.map(|one| self.rewrite(one, level).map(Node::Object));
        list.collect::<Option<_>>().map(Node::List)
    }

    /// Closes an object, and asks for all of its properties.
    fn object<'a>(
        &mut self,
        schema: &'a Map<String, Value>,
        own: &'a Map<String, Value>,
        level: usize,
        out: &mut Object<'a>,
    ) -> Option<()> {
        self.properties += own.len();
        if level >= LEVELS || self.properties > PROPERTIES || !has_type(schema, "object") {
            return None;
        }
        match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => {}
            // A tool without arguments; below, an object of any properties.
            None if level == 0 || !own.is_empty() => {}
            _ => return None,
        }
        let mut required = HashSet::new();
        let listed = schema.get("required").and_then(Value::as_array);
        for name in listed.into_iter().flatten() {
            let name = name.as_str().filter(|name| own.contains_key(*name))?;
            required.insert(name);
        }
        let mut properties = Object::default();
        let mut names = Vec::with_capacity(own.len());
        for (name, property) in own {
            if !required.contains(name.as_str()) && !may_be_null(property) {
                return None;
            }
            let property = Node::Object(self.rewrite(property, level + 1)?);
            self.budget.put(&mut properties, name, property).ok()?;
            self.budget.entry().ok()?;
            self.budget.json(name).ok()?;
            names.push(Node::Text(name.into()));
        }
        out.insert("required".into(), Node::List(names));
        out.insert("properties".into(), Node::Object(properties));
        out.insert("additionalProperties".into(), Node::Bool(false));
        Some(())
    }
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
pub(crate) fn parameters(schema: &Value) -> Node<'_> {
    schema
        .as_object()
        .map_or(Node::Kept(schema), Node::Completed)
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
    use serde_json::json;

    fn strict(schema: &Value) -> Option<Value> {
        super::strict(schema).map(|node| serde_json::to_value(node).expect("JSON"))
    }

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
            strict.then(|| serde_json::to_value(schema).expect("JSON"))
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
