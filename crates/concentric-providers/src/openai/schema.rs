//! Conversion of JSON Schemas for OpenAI's chat completions and Responses.
//!
//! With `strict`, the service enforces a schema, and accepts only a subset of JSON Schema
//! ("Structured Outputs", supported schemas). An equivalent schema in the subset is generated if
//! possible; all others are sent unchanged, without `strict`:
//!
//! | schema | in the subset |
//! |---|---|
//! | an object without `additionalProperties` | a closed object |
//! | an optional property that may be null | a required property |
//! | any other optional property | not possible |
//! | `oneOf` | `anyOf` |
//! | `$schema`, `$comment`, `examples`, `deprecated`, `readOnly`, `writeOnly`, a default of null, the format of a number | removed, since they do not restrict values |
//! | objects with arbitrary properties, `allOf`, `not`, `if`, string lengths, a reference with other keywords, more than 10 levels or 5,000 properties, more than 1 MiB when rewritten, all other keywords | not possible |
//!
//! The rules of other services for `strict` differ and are not fully documented; most require the
//! first three rules. Their output schemas are converted by these rules only, and sent unchanged
//! and without `strict` if that is not possible.

use crate::{
    Unsupported,
    capabilities::input_schema,
    history::NameRules,
    schema::{Budget, Node, Object, has_type, is_format, refused},
};
use concentric_core::{ChatRequest, OutputSchema};
use serde_json::{Map, Value};
use std::collections::HashSet;

const LEVELS: usize = 10;
const PROPERTIES: usize = 5000;

/// The rules of a service for schemas with `strict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subset {
    OpenAi,
    /// Objects must be closed, and all their properties required.
    Closed,
}

/// An output schema, and whether it is sent with `strict`. `in_subset` means that the service
/// accepts only OpenAI's subset with it.
pub(crate) fn output(output: &OutputSchema, in_subset: bool) -> (Node<'_>, bool) {
    let schema = &output.schema;
    let strict = output.strict.then(|| match in_subset {
        true => strict(schema),
        false => Writer::new(Subset::Closed)
            .rewrite(schema, 0)
            .map(Node::Object),
    });
    match strict.flatten() {
        Some(strict) => (strict, true),
        None => (Node::Kept(schema), false),
    }
}

/// Converts `schema` to the subset for `strict`, if possible.
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

/// Converts one schema.
struct Writer {
    subset: Subset,
    /// The number of properties so far.
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
                        // The level at which the definition is used is not known.
                        let def = Node::Object(self.rewrite(def, 1)?);
                        self.budget.put(&mut defs, name, def).ok()?;
                    }
                    Node::Object(defs)
                }
                "properties" => continue,
                "required" | "additionalProperties" if schema.contains_key("properties") => {
                    continue;
                }
                // Closing an object changes the meaning of these keywords.
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
        let is_typed = ["type", "$ref", "anyOf", "enum", "const"]
            .iter()
            .any(|name| out.contains_key(*name));
        let is_listed = !has_type(schema, "array") || out.contains_key("items");
        let is_alone = !out.contains_key("$ref") || out.len() == 1;
        (is_typed && is_listed && is_alone).then_some(out)
    }

    fn rewrite_all<'a>(&mut self, list: &'a Value, level: usize) -> Option<Node<'a>> {
        let list = list.as_array()?.iter();
        let list = list.map(|one| self.rewrite(one, level).map(Node::Object));
        list.collect::<Option<_>>().map(Node::List)
    }

    /// Closes an object, and makes all of its properties required.
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
            // A tool without arguments; at other levels, an object with arbitrary properties.
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

fn is_type(value: &Value) -> bool {
    const TYPES: &str = "string number integer boolean object array null";
    let is_known = |one: &Value| TYPES.split(' ').any(|known| one == known);
    match value {
        Value::Array(any) => !any.is_empty() && any.iter().all(is_known),
        one => is_known(one),
    }
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

/// Converts a tool's schema without `strict`: the service requires the type `object`, and
/// `properties` even if there are none.
pub(crate) fn parameters(schema: &Value) -> Node<'_> {
    schema
        .as_object()
        .map_or(Node::Kept(schema), Node::Completed)
}

/// Adds the names and schemas of `request` that the service rejects with and without `strict`. The
/// name of a tool may have at most `longest` characters.
pub(crate) fn check(request: &ChatRequest, longest: usize, unsupported: &mut Vec<Unsupported>) {
    let options = &*request.options;
    if let Some(output) = &options.output_schema
        && !NameRules::COMMON.fits(&output.name)
    {
        let what = format!("an output schema named `{}`", output.name);
        unsupported.push(Unsupported::new(what));
    }
    // The provider options replace the tools.
    if options.provider.contains_key("tools") {
        return;
    }
    let names = NameRules {
        length: longest,
        ..NameRules::COMMON
    };
    for spec in &request.tools {
        if !names.fits(&spec.name) {
            let what = format!("a tool named `{}`", spec.name);
            unsupported.push(Unsupported::new(what));
        }
        if let Some(why) = refused(&spec.input_schema, &["enum", "not"]) {
            unsupported.push(input_schema(spec, why));
        }
    }
}
