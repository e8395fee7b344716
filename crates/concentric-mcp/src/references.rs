//! Limits the work that the references within a schema cause.
//!
//! A validator expands a reference wherever it applies, so that a few short definitions which refer
//! to each other twice take time that is exponential in their number.

use serde_json::Value;
use std::collections::HashMap;

/// The references that are expanded for one value.
const MAX_EXPANDED: u64 = 4096;
/// The references that lead to each other for one value; a validator recurses into them.
const MAX_CHAIN: usize = 16;

/// Checks the references of a schema, whose depth is limited.
///
/// # Errors
///
/// The reason why the schema is refused.
pub(crate) fn check(schema: &Value) -> Result<(), String> {
    let mut references = References {
        root: schema,
        anchors: HashMap::new(),
        counted: HashMap::new(),
    };
    references.find_anchors(schema)?;
    references.visit(schema)
}

/// What the references of a schema cause for one value.
#[derive(Clone, Copy, Default)]
struct Work {
    expanded: u64,
    chain: usize,
}

struct References<'a> {
    root: &'a Value,
    anchors: HashMap<&'a str, &'a Value>,
    /// By the address of the schema; `None` while it is counted.
    counted: HashMap<*const Value, Option<Work>>,
}

impl<'a> References<'a> {
    fn find_anchors(&mut self, schema: &'a Value) -> Result<(), String> {
        match schema {
            Value::Array(items) => items.iter().try_for_each(|item| self.find_anchors(item)),
            Value::Object(entries) => entries.iter().try_for_each(|(key, value)| {
                let name = match (key.as_str(), value) {
                    ("$anchor" | "$dynamicAnchor", Value::String(name)) => Some(name.as_str()),
                    // The base of the references below it would be another one.
                    ("$id", Value::String(id)) if !std::ptr::eq(schema, self.root) => {
                        let name = id.strip_prefix('#');
                        Some(name.ok_or("a part of it has an identifier of its own")?)
                    }
                    _ => None,
                };
                let earlier = name.and_then(|name| self.anchors.insert(name, schema));
                match earlier {
                    Some(earlier) if !std::ptr::eq(earlier, schema) => {
                        Err("it has two anchors of one name".to_owned())
                    }
                    _ => self.find_anchors(value),
                }
            }),
            _ => Ok(()),
        }
    }

    fn visit(&mut self, schema: &'a Value) -> Result<(), String> {
        match schema {
            Value::Array(items) => items.iter().try_for_each(|item| self.visit(item)),
            Value::Object(entries) => {
                self.count(schema, 0)?;
                entries.values().try_for_each(|value| self.visit(value))
            }
            _ => Ok(()),
        }
    }

    /// Counts what a schema and those that it applies to the same value expand.
    fn count(&mut self, schema: &'a Value, depth: usize) -> Result<Work, String> {
        let Value::Object(entries) = schema else {
            return Ok(Work::default());
        };
        let key = std::ptr::from_ref(schema);
        match self.counted.get(&key) {
            Some(Some(work)) => return Ok(*work),
            Some(None) => return Err("its references form a cycle".to_owned()),
            None => {}
        }
        if depth > MAX_CHAIN {
            return Err(too_long());
        }
        self.counted.insert(key, None);
        let mut work = Work::default();
        for (keyword, value) in entries {
            match (keyword.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => {
                    let target = self.target(to)?;
                    let target = self.count(target, depth + 1)?;
                    let (expanded, chain) = (target.expanded + 1, target.chain + 1);
                    work = work.and(Work { expanded, chain })?;
                }
                ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                    for schema in schemas {
                        work = work.and(self.count(schema, depth)?)?;
                    }
                }
                ("dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                    for schema in schemas.values() {
                        work = work.and(self.count(schema, depth)?)?;
                    }
                }
                ("not" | "if" | "then" | "else", schema) => {
                    work = work.and(self.count(schema, depth)?)?;
                }
                _ => {}
            }
        }
        self.counted.insert(key, Some(work));
        Ok(work)
    }

    /// The schema that a reference of the form `#...` leads to.
    fn target(&self, to: &str) -> Result<&'a Value, String> {
        let unknown = || "it refers to a definition that it does not have".to_owned();
        let fragment = to.strip_prefix('#').ok_or_else(unknown)?;
        let fragment = decoded(fragment).ok_or_else(unknown)?;
        let target = match fragment.is_empty() || fragment.starts_with('/') {
            true => self.root.pointer(&fragment),
            false => self.anchors.get(fragment.as_str()).copied(),
        };
        target.ok_or_else(unknown)
    }
}

impl Work {
    fn and(self, other: Self) -> Result<Self, String> {
        let work = Self {
            expanded: self.expanded + other.expanded,
            chain: self.chain.max(other.chain),
        };
        if work.expanded > MAX_EXPANDED {
            return Err(format!(
                "more than {MAX_EXPANDED} of its references apply to one value"
            ));
        }
        match work.chain > MAX_CHAIN {
            true => Err(too_long()),
            false => Ok(work),
        }
    }
}

fn too_long() -> String {
    format!("more than {MAX_CHAIN} of its references lead to each other")
}

/// Decodes the percent-encoded bytes of a fragment.
fn decoded(fragment: &str) -> Option<String> {
    let mut bytes = fragment.bytes();
    let mut decoded = Vec::with_capacity(fragment.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_that_multiply_are_refused() {
        // 2^13 at one value, within the longest chain.
        let mut definitions = serde_json::Map::new();
        for at in 0..13 {
            let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
            definitions.insert(format!("d{at}"), json!({"anyOf": [next, next]}));
        }
        definitions.insert("d13".to_owned(), json!({"type": "string"}));
        let schema = json!({"$defs": definitions});
        assert!(check(&schema).unwrap_err().contains("4096"));
    }

    #[test]
    fn long_chains_and_cycles_are_refused() {
        let mut definitions = serde_json::Map::new();
        for at in 0..100 {
            let next = json!({"$ref": format!("#/$defs/d{:02}", at + 1)});
            definitions.insert(format!("d{at:02}"), next);
        }
        definitions.insert("d100".to_owned(), json!(true));
        let schema = json!({"$defs": definitions});
        assert!(check(&schema).unwrap_err().contains("lead to each other"));
        for cycle in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"not": {"$ref": "#"}}]}),
            json!({"$anchor": "a", "if": {"$ref": "#a"}}),
            json!({"$defs": {"a b": {"$ref": "#/%24defs/a%20b"}}}),
        ] {
            assert!(check(&cycle).unwrap_err().contains("cycle"), "{cycle}");
        }
    }

    #[test]
    fn recursive_values_are_accepted() {
        let tree = json!({
            "$id": "https://example.com/tree",
            "$ref": "#/$defs/node",
            "$defs": {"node": {
                "$anchor": "node",
                "properties": {"not": {"$ref": "#node"}, "next": {"items": {"$ref": "#/$defs/node"}}},
            }},
        });
        assert_eq!(check(&tree), Ok(()));
    }

    #[test]
    fn references_must_lead_somewhere() {
        for to in ["#/$defs/none", "#none", "#/%zz"] {
            let schema = json!({"properties": {"a": {"$ref": to}}});
            assert!(check(&schema).unwrap_err().contains("does not have"));
        }
        let moved = json!({"items": {"$id": "other", "$ref": "#/x"}});
        assert!(check(&moved).is_err());
    }
}
