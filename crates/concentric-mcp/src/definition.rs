//! Checks the definitions of a server's tools.

use crate::{limits::McpLimits, references, text};
use concentric_core::{Annotations, Str, ToolSpec, digest::Digest};
use rmcp::model;
use serde_json::Value;
use std::sync::Arc;

/// A tool of a server that is not offered, because its definition is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedTool {
    /// The name that the server gave it, without hidden characters.
    pub name: Str,
    /// The reason.
    pub reason: Str,
}

/// The longest name that all providers accept.
const MAX_NAME: usize = 64;

/// Converts a definition. Its annotations are the server's claims.
///
/// # Errors
///
/// The reason why the tool is refused.
pub(crate) fn convert(
    server: &str,
    tool: &model::Tool,
    limits: &McpLimits,
) -> Result<ToolSpec, String> {
    let input = schema(&tool.input_schema, limits).map_err(|why| format!("input schema: {why}"))?;
    if input.get("type").is_none_or(|kind| kind != "object") {
        return Err("input schema: its type is not `object`".to_owned());
    }
    let output = tool.output_schema.as_deref();
    let output = output.map(|output| schema(output, limits));
    let output = output
        .transpose()
        .map_err(|why| format!("output schema: {why}"))?;
    let description = text::visible(tool.description.as_deref().unwrap_or_default());
    let description = text::cut(description, limits.max_description_bytes);
    let mut spec = ToolSpec::new(name(server, &tool.name), description, input);
    spec.output_schema = output.map(Arc::new);
    spec.annotations = claimed(tool.annotations.as_ref());
    spec.groups = vec![server.into()];
    Ok(spec)
}

/// The name that a model receives: `{server}__{tool}`. A digest keeps a changed name unique.
fn name(server: &str, tool: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name = format!("{server}__{tool}");
    if !tool.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_allowed) {
        return name;
    }
    let digest = Digest::of_fields("concentric-mcp/tool-name", &[tool.as_bytes()]).to_string();
    let suffix = digest.get(..10).unwrap_or_default();
    let replaced = name.chars().map(|c| if is_allowed(c) { c } else { '_' });
    let kept: String = replaced.take(MAX_NAME - 1 - suffix.len()).collect();
    format!("{kept}_{suffix}")
}

fn claimed(hints: Option<&model::ToolAnnotations>) -> Annotations {
    let mut claimed = Annotations::default();
    let Some(hints) = hints else {
        return claimed;
    };
    let title = hints.title.as_deref().map(text::visible);
    claimed.title = title.map(|title| text::cut(title, 128).into());
    claimed.read_only = hints.read_only_hint.unwrap_or(claimed.read_only);
    claimed.destructive = hints.destructive_hint.unwrap_or(claimed.destructive);
    claimed.idempotent = hints.idempotent_hint.unwrap_or(claimed.idempotent);
    claimed.open_world = hints.open_world_hint.unwrap_or(claimed.open_world);
    claimed
}

const DRAFTS: [&str; 2] = [
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema",
];

/// Checks the size, the depth and the references of a schema, and removes hidden characters from its
/// texts.
fn schema(schema: &model::JsonObject, limits: &McpLimits) -> Result<Value, String> {
    let mut schema = Value::Object(schema.clone());
    let size = schema.to_string().len();
    if size > limits.max_schema_bytes {
        let max = limits.max_schema_bytes;
        return Err(format!(
            "it has {size} bytes, and at most {max} are allowed"
        ));
    }
    if let Some(draft) = schema.get("$schema") {
        let draft = draft.as_str().unwrap_or_default();
        if !DRAFTS.contains(&draft.trim_end_matches('#')) {
            return Err("its draft is neither 2020-12 nor draft-07".to_owned());
        }
    }
    check(&mut schema, limits.max_schema_depth)?;
    references::check(&schema)?;
    Ok(schema)
}

fn check(schema: &mut Value, depth: usize) -> Result<(), String> {
    match schema {
        Value::Array(items) => {
            let depth = deeper(depth)?;
            items.iter_mut().try_for_each(|item| check(item, depth))
        }
        Value::Object(entries) => {
            let depth = deeper(depth)?;
            for (key, value) in entries {
                match (key.as_str(), &mut *value) {
                    ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to))
                        if !to.starts_with('#') =>
                    {
                        return Err("it refers to another document".to_owned());
                    }
                    ("description" | "title" | "$comment", Value::String(shown)) => {
                        *shown = text::visible(shown);
                    }
                    _ => check(value, depth)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn deeper(depth: usize) -> Result<usize, String> {
    depth
        .checked_sub(1)
        .ok_or_else(|| "it is nested too deeply".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool(name: &str, schema: &Value) -> model::Tool {
        serde_json::from_value(json!({"name": name, "inputSchema": schema})).expect("a tool")
    }

    fn convert_schema(schema: &Value) -> Result<ToolSpec, String> {
        convert("s", &tool("t", schema), &McpLimits::default())
    }

    #[test]
    fn a_name_has_only_characters_that_providers_accept() {
        assert_eq!(name("github", "create_issue"), "github__create_issue");
        for odd in ["a.b", "", "a b", "ü", &"x".repeat(100)] {
            let name = name("github", odd);
            assert!(
                name.len() <= MAX_NAME && name.starts_with("github__"),
                "{name}"
            );
            assert!(
                name.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
            );
        }
        // Names that differ stay different.
        assert_ne!(name("s", "a.b"), name("s", "a b"));
        assert_ne!(
            name("s", &format!("{}1", "x".repeat(90))),
            name("s", &format!("{}2", "x".repeat(90)))
        );
    }

    #[test]
    fn a_schema_within_the_limits_is_accepted() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"type": "string", "description": "x\u{202e}y"}},
        });
        let spec = convert_schema(&schema).expect("a spec");
        assert_eq!(spec.input_schema["$defs"]["a"]["description"], "xy");
    }

    #[test]
    fn other_documents_are_not_referred_to() {
        for to in [
            "https://example.com/s.json",
            "file:///etc/passwd",
            "other.json",
            "other#/a",
        ] {
            let schema = json!({"type": "object", "properties": {"a": {"$ref": to}}});
            assert!(
                convert_schema(&schema)
                    .unwrap_err()
                    .contains("another document"),
                "{to}"
            );
        }
    }

    #[test]
    fn schemas_whose_references_multiply_are_refused() {
        let mut definitions = serde_json::Map::new();
        for at in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
            definitions.insert(format!("d{at}"), json!({"allOf": [next, next]}));
        }
        definitions.insert("d40".to_owned(), json!({}));
        let schema = json!({"type": "object", "$ref": "#/$defs/d0", "$defs": definitions});
        let why = convert_schema(&schema).unwrap_err();
        assert!(why.starts_with("input schema"), "{why}");
        let mut tool = tool("t", &json!({"type": "object"}));
        tool.output_schema = schema.as_object().cloned().map(Arc::new);
        let why = convert("s", &tool, &McpLimits::default()).unwrap_err();
        assert!(why.starts_with("output schema"), "{why}");
    }

    #[test]
    fn large_deep_and_foreign_schemas_are_refused() {
        let large = json!({"type": "object", "description": "x".repeat(70_000)});
        assert!(convert_schema(&large).unwrap_err().contains("bytes"));
        let deep = (0..40).fold(
            json!({"type": "string"}),
            |inner, _| json!({"items": inner}),
        );
        let deep = json!({"type": "object", "properties": {"a": deep}});
        assert!(convert_schema(&deep).unwrap_err().contains("deep"));
        let draft = json!({"$schema": "https://example.com/draft", "type": "object"});
        assert!(convert_schema(&draft).unwrap_err().contains("draft"));
        assert!(
            convert_schema(&json!({"type": "array"}))
                .unwrap_err()
                .contains("object")
        );
        assert!(convert_schema(&json!({})).unwrap_err().contains("object"));
    }

    #[test]
    fn claims_are_only_claims() {
        let mut tool = tool("t", &json!({"type": "object"}));
        tool.annotations = Some(model::ToolAnnotations::new().read_only(true));
        let spec = convert("s", &tool, &McpLimits::default()).expect("a spec");
        assert!(spec.annotations.read_only && spec.annotations.destructive);
    }
}
