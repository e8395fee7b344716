//! Conversion of JSON Schemas for a model.

use super::super::family::Family;
use crate::schema::{Budget, Node, Object, Root};
use serde_json::Value;

/// The maximum nesting of a schema, including its references.
const DEPTH: usize = 64;

/// Converts `schema` for models of `family`.
/// Fails with a description of a property that cannot be expressed.
pub(super) fn adapt<'a>(
    schema: &'a Value,
    family: Family,
    budget: &mut Budget,
) -> Result<Node<'a>, &'static str> {
    if family.takes_json_schema() {
        // The service ignores unsupported keywords.
        return Ok(Node::Kept(schema));
    }
    let mut root = Root { schema, budget };
    rewrite(schema, &mut root, 0).map(Node::Object)
}

/// Converts `schema` to the service's subset of OpenAPI 3.0
/// (<https://ai.google.dev/api/caching#Schema>).
fn rewrite<'a>(
    schema: &'a Value,
    root: &mut Root<'a, '_>,
    depth: usize,
) -> Result<Object<'a>, &'static str> {
    if depth > DEPTH {
        return Err("a recursive or too deeply nested schema");
    }
    root.budget.entry()?;
    let mut out = Object::default();
    let Some(fields) = schema.as_object() else {
        return match schema {
            Value::Bool(false) => Err("the schema `false`"),
            _ => Ok(out),
        };
    };
    // Keywords that the subset does not contain.
    let mut described = Object::default();
    if let Some(reference) = fields.get("$ref") {
        let target = root.target(reference.as_str().unwrap_or_default())?;
        let target = target.ok_or("an unresolvable reference")?;
        out = rewrite(target, root, depth + 1)?;
    }
    for (name, value) in fields {
        let name = name.as_str();
        match name {
            "$ref" | "$defs" | "definitions" | "$schema" | "$id" | "$comment" | "description" => {}
            "type" => types(value, &mut out, &mut described, root.budget)?,
            "const" | "enum" => {
                let kept = root.budget.keep(value)?;
                let (values, kept) = match (name, value) {
                    ("enum", Value::Array(values)) => (values.as_slice(), kept),
                    _ => (std::slice::from_ref(value), Node::List(vec![kept])),
                };
                if values.iter().all(Value::is_string) {
                    root.budget.put(&mut out, "enum", kept)?;
                    let string = || Node::Text("string".into());
                    out.entry("type".into()).or_insert_with(string);
                } else {
                    // Only strings can be enumerated.
                    root.budget.put(&mut described, name, Node::Kept(value))?;
                }
            }
            "items" if value.is_object() => {
                let items = rewrite(value, root, depth + 1)?;
                root.budget.put(&mut out, name, Node::Object(items))?;
            }
            "properties" => {
                let mut properties = Object::default();
                for (name, value) in value.as_object().into_iter().flatten() {
                    let one = rewrite(value, root, depth + 1)?;
                    root.budget.put(&mut properties, name, Node::Object(one))?;
                }
                root.budget.put(&mut out, name, Node::Object(properties))?;
            }
            "anyOf" | "oneOf" => any_of(value, root, depth, &mut out)?,
            "allOf" => {
                for value in value.as_array().into_iter().flatten() {
                    let all = rewrite(value, root, depth + 1)?;
                    merge(&mut out, all, root.budget)?;
                }
            }
            "format" => {
                let known = ["float", "double", "int32", "int64", "enum", "date-time"];
                let is_known = value.as_str().is_some_and(|value| known.contains(&value));
                let place = if is_known { &mut out } else { &mut described };
                root.budget.put_kept(place, name, value)?;
            }
            "title" | "nullable" | "maxItems" | "minItems" | "required" | "minProperties"
            | "maxProperties" | "minLength" | "maxLength" | "pattern" | "example"
            | "propertyOrdering" | "default" | "minimum" | "maximum" => {
                root.budget.put_kept(&mut out, name, value)?;
            }
            _ => root.budget.put_kept(&mut described, name, value)?,
        }
    }
    require(&mut out, &mut described, root.budget)?;
    describe(fields.get("description"), described, &mut out, root.budget)?;
    if out.get("type").and_then(Node::as_str) == Some("array") {
        let anything = || Node::Object(Object::default());
        out.entry("items".into()).or_insert_with(anything);
    }
    Ok(out)
}

/// Converts a type or a list of types, in which `null` becomes `nullable`.
fn types<'a>(
    value: &'a Value,
    out: &mut Object<'a>,
    described: &mut Object<'a>,
    budget: &mut Budget,
) -> Result<(), &'static str> {
    let kept = budget.keep(value)?;
    let all = match value {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let (nulls, types): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|name| *name == "null");
    if !nulls.is_empty() {
        budget.put(out, "nullable", Node::Bool(true))?;
    }
    match &*types {
        [one] => budget.put(out, "type", Node::Kept(one)),
        [] => budget.put(described, "type", kept),
        several => {
            let mut list = Vec::new();
            for one in several {
                budget.entry()?;
                let mut alternative = Object::default();
                budget.put(&mut alternative, "type", Node::Kept(one))?;
                list.push(Node::Object(alternative));
            }
            budget.put(out, "anyOf", Node::List(list))
        }
    }
}

fn any_of<'a>(
    value: &'a Value,
    root: &mut Root<'a, '_>,
    depth: usize,
    out: &mut Object<'a>,
) -> Result<(), &'static str> {
    let mut all = Vec::new();
    for one in value.as_array().into_iter().flatten() {
        root.budget.entry()?;
        if one.get("type").is_some_and(|name| name == "null") {
            root.budget.put(out, "nullable", Node::Bool(true))?;
        } else {
            all.push(Node::Object(rewrite(one, root, depth + 1)?));
        }
    }
    if all.len() == 1
        && let Some(Node::Object(one)) = all.pop()
    {
        return merge(out, one, root.budget);
    }
    if out.contains_key("anyOf") {
        return Err("more than one `anyOf` for the same value");
    }
    root.budget.put(out, "anyOf", Node::List(all))
}

/// Merges `more` into `out`, so that both apply.
fn merge<'a>(
    out: &mut Object<'a>,
    more: Object<'a>,
    budget: &mut Budget,
) -> Result<(), &'static str> {
    for (name, value) in more {
        let Some(old) = out.get_mut(&name) else {
            out.insert(name, value);
            continue;
        };
        match (&*name, old, value) {
            ("properties", Node::Object(old), Node::Object(new)) => old.extend(new),
            ("required", old, new) => {
                let taken = std::mem::replace(old, Node::Bool(false));
                let lists = (budget.list(taken)?, budget.list(new)?);
                let (Ok(mut list), Ok(more)) = lists else {
                    return Err(APART);
                };
                list.extend(more);
                *old = Node::List(list);
            }
            (_, old, new) if old.is(&new) => {}
            ("description", old, new) => {
                let (Some(text), Some(more)) = (old.as_str(), new.as_str()) else {
                    return Err(APART);
                };
                let text = format!("{text} {more}");
                budget.json(&text)?;
                *old = Node::Text(text.into());
            }
            ("title" | "default", _, _) => {}
            _ => return Err(APART),
        }
    }
    Ok(())
}

const APART: &str = "schemas for the same value that cannot be merged";

/// Removes names of undefined properties from `required`, since the service rejects them.
fn require<'a>(
    out: &mut Object<'a>,
    described: &mut Object<'a>,
    budget: &mut Budget,
) -> Result<(), &'static str> {
    let Some(names) = out.shift_remove("required") else {
        return Ok(());
    };
    let Ok(names) = budget.list(names)? else {
        return Ok(());
    };
    let properties = out.get("properties").and_then(Node::as_object);
    let is_there = |name: &Node<'_>| {
        let name = name.as_str();
        properties.is_some_and(|all| name.is_some_and(|name| all.contains_key(name)))
    };
    let (there, elsewhere): (Vec<_>, Vec<_>) = names.into_iter().partition(is_there);
    for (place, names) in [(out, there), (described, elsewhere)] {
        if !names.is_empty() {
            budget.put(place, "required", Node::List(names))?;
        }
    }
    Ok(())
}

/// Adds the constraints that the subset does not contain to the description.
fn describe<'a>(
    own: Option<&'a Value>,
    described: Object<'a>,
    out: &mut Object<'a>,
    budget: &mut Budget,
) -> Result<(), &'static str> {
    // A referenced or merged schema may have its own description.
    let own = own.and_then(Value::as_str);
    let inner = out.get("description").and_then(Node::as_str);
    let described = match described.is_empty() {
        true => None,
        false => Some(
            serde_json::to_string(&Node::Object(described))
                .map_err(|_| "a value that cannot be serialized")?,
        ),
    };
    let described = described.map(|described| format!("(JSON Schema: {described})"));
    let texts = [own, inner, described.as_deref()];
    if own.is_none() && described.is_none() {
        return Ok(());
    }
    let texts: Vec<&str> = texts.into_iter().flatten().collect();
    let description = texts.join(" ");
    budget.json(&description)?;
    budget.put(out, "description", Node::Text(description.into()))
}
