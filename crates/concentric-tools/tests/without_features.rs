//! Tools in a build without features. A target of its own, which `.ci/features` builds apart from the workspace.
#![cfg(not(feature = "schema-validation"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use concentric_core::{Error, ToolCall, ToolOutcome, ToolSpec};
use concentric_tools::{Tool, Toolset, ToolsetError};
use serde_json::json;
use tower::service_fn;

#[test]
fn a_schema_that_needs_the_validator_is_refused_without_it() {
    let ok = service_fn(|_: ToolCall| async { Ok::<_, Error>(ToolOutcome::done("ok")) });
    for (schema, keyword) in [
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {}}}), "$ref"),
        (json!({"properties": {"a": {"pattern": "b"}}}), "pattern"),
        (json!({"items": {"anyOf": [{"not": {}}]}}), "not"),
        (
            json!({"additionalProperties": {"uniqueItems": true}}),
            "uniqueItems",
        ),
        (json!({"enum": [[1]]}), "enum"),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "minimum": 1}),
            "$schema",
        ),
        (json!({"minimum": 9_007_199_254_740_992_u64}), "minimum"),
        (json!({"type": 7}), "type"),
        (json!({"unknown": 7}), "unknown"),
    ] {
        let tools = Toolset::new().tool(Tool::new(ToolSpec::new("t", "", schema), ok));
        let error = tools.check().unwrap_err();
        assert!(matches!(error, ToolsetError::InvalidSchema { .. }));
        let why = format!("`{keyword}` cannot be enforced without the feature `schema-validation`");
        assert!(error.to_string().contains(&why), "{error}");
    }
}
