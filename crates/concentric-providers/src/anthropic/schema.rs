//! Conversion of JSON Schemas for the service.

use crate::schema::{self, Budget, Node, Object, has_type, is_format};
use concentric_core::Str;
use indexmap::IndexMap;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};
use std::{collections::HashMap, ptr};

/// The schema of a tool's arguments, which must have the type `object`.
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

/// The unsupported property of a schema of a tool's arguments.
pub(super) fn refused_input(schema: &Value) -> Option<Str> {
    if matches!(schema, Value::Bool(true) | Value::Null) {
        return None;
    }
    if let Some(refused) = schema::refused(schema, &[]) {
        return Some(refused);
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut names = properties.into_iter().flat_map(Map::keys);
    let odd = names.find(|name| {
        let known = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        !(1..=64).contains(&name.len()) || !name.chars().all(known)
    });
    odd.map(|name| format!("the property name `{name}`").into())
}

/// Converts an output schema to the subset of JSON Schema that the service enforces.
///
/// Objects are closed. Constraints that the service does not enforce, such as the range of a
/// number, are added to the description. `Err` describes a property that cannot be expressed.
pub(super) fn output(schema: &Value) -> Result<Node<'_>, Str> {
    if is_recursive(schema) {
        return Err(Str::from_static("a recursive definition"));
    }
    closed(schema, &mut Budget::new()).map(Node::Object)
}

/// Whether a part of `root` refers to an enclosing part.
///
/// Each part is visited once, without recursion, since a chain of references may be arbitrarily
/// long.
fn is_recursive(root: &Value) -> bool {
    enum Step<'a> {
        Into(&'a Value),
        Outof(*const Value),
    }

    // The referenced parts, and whether the search is within them.
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

/// The target of a reference in `part`.
fn target<'a>(part: &Value, root: &'a Value) -> Option<&'a Value> {
    schema::target(root, part.get("$ref")?.as_str()?)
}

/// The children of `part` that may have children.
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
        return Err(Str::from_static("an unconstrained value"));
    };
    budget.entry()?;
    let mut out = Object::default();
    let mut unenforced = Vec::new();
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
            "format" if is_format(value) || value == "uri" => {
                budget.put_kept(&mut out, name, value)?
            }
            "minItems" if matches!(value.as_u64(), Some(0 | 1)) => {
                budget.put_kept(&mut out, name, value)?;
            }
            // Keywords without effect on the response.
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
                unenforced.push(format!("{name}: {value}"));
            }
        }
    }
    let is_object = out.contains_key("properties") || has_type(fields, "object");
    if is_object {
        let open = fields
            .get("additionalProperties")
            .is_none_or(|more| *more != false);
        let properties = out.get("properties").and_then(Node::as_object);
        if open && properties.is_none_or(IndexMap::is_empty) {
            return Err(Str::from_static("an object with arbitrary properties"));
        }
        budget.put(&mut out, "additionalProperties", Node::Bool(false))?;
    }
    if !unenforced.is_empty() {
        // Sorted, so that the result does not depend on the order of fields in maps.
        unenforced.sort_unstable();
        let unenforced = format!("{{{}}}", unenforced.join(", "));
        let description = match out.get("description").and_then(Node::as_str) {
            Some(description) => format!("{description}\n\n{unenforced}"),
            None => unenforced,
        };
        budget.json(&description)?;
        budget.put(&mut out, "description", Node::Text(description.into()))?;
    }
    Ok(out)
}
