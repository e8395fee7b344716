//! Conversion of tool schemas for the server.
//!
//! The server reads `type`, `description`, `enum`, `items`, `properties`, `required` and `anyOf` of
//! a property, rejects the schema `true`, and omits all other keywords from the prompt
//! (`api.ToolProperty`). Other keywords are converted where possible: references are replaced with
//! their targets, `oneOf` with `anyOf`, `const` with an `enum` of one value, and `allOf` with a
//! merged schema.

use crate::schema::{Budget, Node, Object, Root};
use serde_json::Value;

/// The maximum depth of nested references; a recursive schema is unconstrained below it.
const DEPTH: usize = 8;

/// The maximum nesting of a schema, including its references.
const LEVELS: usize = 128;

/// Converts the schema of a tool's arguments.
/// Fails with a description of a property that cannot be expressed.
pub(super) fn parameters<'a>(
    schema: &'a Value,
    budget: &mut Budget,
) -> Result<Node<'a>, &'static str> {
    if is_plain(schema) && schema.get("type").and_then(Value::as_str) == Some("object") {
        return Ok(Node::Kept(schema));
    }
    let mut root = Root { schema, budget };
    let mut object = rewrite(schema, &mut root, 0, 0)?;
    // The server accepts only a single type.
    object.insert("type".into(), Node::Text("object".into()));
    let has_properties = object.get("properties").is_some_and(|properties| {
        matches!(properties, Node::Object(_) | Node::Kept(Value::Object(_)))
    });
    if !has_properties {
        object.insert("properties".into(), Node::Object(Object::default()));
    }
    Ok(Node::Object(object))
}

/// Whether `schema` needs no conversion.
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

/// Converts a schema that is within `references` references and `level` other schemas.
fn rewrite<'a>(
    schema: &'a Value,
    root: &mut Root<'a, '_>,
    references: usize,
    level: usize,
) -> Result<Object<'a>, &'static str> {
    if level > LEVELS {
        return Err("more than 128 levels of nesting");
    }
    root.budget.entry()?;
    let mut out = Object::default();
    let Value::Object(object) = schema else {
        return Ok(out);
    };
    for (name, value) in object {
        match (name.as_str(), value) {
            ("$defs" | "definitions", _) => {}
            ("$ref", Value::String(target)) => {
                let target = root.target(target)?;
                if let Some(target) = target.filter(|_| references < DEPTH) {
                    let target = rewrite(target, root, references + 1, level + 1)?;
                    merge(&mut out, target, root.budget)?;
                }
            }
            ("allOf", Value::Array(all)) => {
                for one in all {
                    let one = rewrite(one, root, references, level + 1)?;
                    merge(&mut out, one, root.budget)?;
                }
            }
            ("oneOf" | "anyOf", Value::Array(all)) => {
                let all = all
                    .iter()
                    .map(|one| rewrite(one, root, references, level + 1).map(Node::Object));
                let all = Node::List(all.collect::<Result<_, _>>()?);
                merge_one(&mut out, "anyOf", all, root.budget)?;
            }
            ("const", value) => {
                let value = root.budget.keep(value)?;
                root.budget.put(&mut out, "enum", Node::List(vec![value]))?;
            }
            ("properties", Value::Object(properties)) => {
                let mut all = Object::default();
                for (name, one) in properties {
                    let one = rewrite(one, root, references, level + 1)?;
                    root.budget.put(&mut all, name, Node::Object(one))?;
                }
                merge_one(&mut out, "properties", Node::Object(all), root.budget)?;
            }
            ("items", value) => {
                let items = rewrite(value, root, references, level + 1)?;
                root.budget.put(&mut out, name, Node::Object(items))?;
            }
            ("required", value) => {
                let required = root.budget.keep(value)?;
                merge_one(&mut out, "required", required, root.budget)?;
            }
            _ => root.budget.put_kept(&mut out, name, value)?,
        }
    }
    Ok(out)
}

/// Merges `more` into a schema: properties and required names are combined, and alternatives of
/// both are kept.
fn merge<'a>(
    schema: &mut Object<'a>,
    more: Object<'a>,
    budget: &mut Budget,
) -> Result<(), &'static str> {
    for (name, value) in more {
        match schema.get_mut(&name) {
            None => {
                schema.insert(name, value);
            }
            Some(old) => join(old, &name, value, budget)?,
        }
    }
    Ok(())
}

fn merge_one<'a>(
    schema: &mut Object<'a>,
    name: &'static str,
    value: Node<'a>,
    budget: &mut Budget,
) -> Result<(), &'static str> {
    match schema.get_mut(name) {
        None => budget.put(schema, name, value),
        Some(old) => join(old, name, value, budget),
    }
}

fn join<'a>(
    old: &mut Node<'a>,
    name: &str,
    new: Node<'a>,
    budget: &mut Budget,
) -> Result<(), &'static str> {
    match (name, old, new) {
        ("properties", Node::Object(old), Node::Object(new)) => old.extend(new),
        ("required" | "anyOf", old, new) => {
            let taken = std::mem::replace(old, Node::Bool(false));
            *old = match (budget.list(taken)?, budget.list(new)?) {
                (Ok(mut list), Ok(more)) => {
                    list.extend(more);
                    Node::List(list)
                }
                (Ok(list), Err(_)) => Node::List(list),
                (Err(other), _) => other,
            };
        }
        _ => {}
    }
    Ok(())
}
