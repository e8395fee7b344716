//! Conversion of the schemas of tools and outputs, as they are sent.

use crate::common::*;
use concentric_core::{ChatRequest, ChatResponse, Error, OutputSchema, ToolSpec};
use concentric_providers::{
    AnthropicLayer, ApiKey, GeminiLayer, OllamaLayer, OpenAiLayer, openai::Profile,
};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tower::{Layer, Service};

/// The value at `pointer` of the body that is sent for `request`.
async fn sent<L, B>(layer: &L, request: ChatRequest, pointer: &str) -> Result<Value, Error>
where
    L: Layer<Http>,
    L::Service: Service<ChatRequest, Response = ChatResponse<B>, Error = Error>,
{
    let (_, body) = try_sent_by(layer, request).await?;
    Ok(body.pointer(pointer).cloned().unwrap_or_default())
}

fn with_tool(schema: &Value) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    let spec = ToolSpec::new("t", "", schema.clone());
    request.tools.push(Arc::new(spec));
    request
}

fn with_output(schema: &Value) -> ChatRequest {
    let mut request = ChatRequest::user("hi");
    let mut output = OutputSchema::new("out", schema.clone());
    output.strict = true;
    request.options_mut().output_schema = Some(output);
    request
}

/// The output schema that is sent with `strict` to the service of `profile`, if any.
async fn strict_by(profile: Profile, schema: &Value) -> Option<Value> {
    let layer = OpenAiLayer::profile(profile, "m", Some(ApiKey::new("key")));
    let layer = layer.base_url("https://a.test/v1");
    let output = sent(&layer, with_output(schema), "/response_format/json_schema").await;
    let mut output = output.expect("an output schema");
    (output["strict"] == true).then(|| output["schema"].take())
}

async fn strict(schema: &Value) -> Option<Value> {
    strict_by(Profile::OPENAI, schema).await
}

#[tokio::test]
async fn a_schema_is_strict_only_within_the_subset() {
    let schema = json!({
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
    let converted = json!({
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
    assert_eq!(strict(&schema).await, Some(converted.clone()));
    assert_eq!(strict(&converted).await, Some(converted));
    assert!(
        strict(&json!({"type": "object", "properties": {}}))
            .await
            .is_some()
    );

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
        assert_eq!(strict(&schema).await, None, "{schema}");
    }
    let mut deep = json!({"type": "string"});
    for _ in 0..10 {
        deep = of(deep);
    }
    assert!(strict(&deep).await.is_some());
    assert_eq!(strict(&of(deep)).await, None);
}

#[tokio::test]
async fn a_schema_is_closed_or_stays_unchanged() {
    let closed = async |schema: &Value| strict_by(Profile::generic("mine"), schema).await;
    let schema = json!({
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
    let mut expected = schema.clone();
    expected["additionalProperties"] = false.into();
    expected["required"] = json!(["a", "b", "c", "d"]);
    expected["properties"]["d"]["oneOf"][0]["additionalProperties"] = false.into();
    expected["$defs"]["C"]["additionalProperties"] = false.into();
    assert_eq!(closed(&schema).await, Some(expected.clone()));
    assert_eq!(closed(&expected).await, Some(expected));
    for schema in [
        json!({"type": "string", "minLength": 1}),
        json!({"enum": ["a", "b"]}),
        json!({"type": "array", "items": {"type": "string"}}),
    ] {
        assert_eq!(closed(&schema).await, Some(schema));
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
        assert_eq!(closed(&schema).await, None, "{schema}");
    }
}

async fn anthropic_output(schema: &Value) -> Result<Value, Error> {
    let layer = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("key"));
    sent(&layer, with_output(schema), "/output_config/format/schema").await
}

#[tokio::test]
async fn an_output_schema_describes_unenforced_constraints() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 1, "description": "In years."},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 2},
            "when": {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        },
        "required": ["age"],
        "$defs": {"tag": {"type": "string", "pattern": "^a", "format": "odd"}},
    });
    let expected = json!({
        "type": "object",
        "properties": {
            "age": {"type": "integer", "description": "In years.\n\n{minimum: 1}"},
            "tags": {
                "type": "array",
                "items": {"$ref": "#/$defs/tag"},
                "description": "{minItems: 2}",
            },
            "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        },
        "required": ["age"],
        "additionalProperties": false,
        "$defs": {"tag": {
            "type": "string",
            "description": "{format: \"odd\", pattern: \"^a\"}",
        }},
    });
    assert_eq!(anthropic_output(&schema).await.expect("a schema"), expected);
    for (schema, what) in [
        (json!(true), "unconstrained"),
        (json!({"type": "object"}), "arbitrary properties"),
        (json!({"type": "array", "items": {"not": {}}}), "`not`"),
        (
            json!({"type": "array", "items": {"$ref": "#"}}),
            "recursive",
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {
                "a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]},
                "b": {"type": "array", "items": {"$ref": "#/$defs/a"}},
            }}),
            "recursive",
        ),
    ] {
        assert!(
            anthropic_output(&schema)
                .await
                .is_err_and(|error| error.message().contains(what)),
            "{schema}"
        );
    }
}

#[tokio::test]
async fn an_input_schema_has_the_type_object() {
    let written = async |schema: Value| {
        let layer = AnthropicLayer::new("claude-opus-4-8", ApiKey::new("key"));
        sent(&layer, with_tool(&schema), "/tools/0/input_schema")
            .await
            .ok()
    };
    assert_eq!(written(json!(true)).await, Some(json!({"type": "object"})));
    let properties = json!({"properties": {"a": {}}});
    let expected = json!({"type": "object", "properties": {"a": {}}});
    assert_eq!(written(properties).await, Some(expected));

    assert!(
        written(json!({"type": "object", "properties": {"a.b-c": {}}}))
            .await
            .is_some()
    );
    for schema in [
        json!({"type": "string"}),
        json!({"type": "object", "anyOf": []}),
        json!({"properties": {"a b": {}}}),
        json!(false),
    ] {
        assert!(written(schema.clone()).await.is_none(), "{schema}");
    }
}

async fn adapt(schema: &Value, model: &str) -> Result<Value, Error> {
    let layer = GeminiLayer::new(model, ApiKey::new("key"));
    let config = sent(&layer, with_output(schema), "/generationConfig").await?;
    let new = config.get("responseJsonSchema");
    Ok(new.unwrap_or(&config["responseSchema"]).clone())
}

#[tokio::test]
async fn a_new_model_receives_the_unchanged_schema() {
    let schema = json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": ["object", "null"]});
    let adapted = adapt(&schema, "gemini-2.5-flash").await;
    assert_eq!(adapted.expect("a schema"), schema);
}

#[tokio::test]
async fn an_old_model_receives_a_converted_schema() {
    let cases = [
        (
            json!({"$schema": "x", "type": "object", "properties": {
                "a": {"type": ["string", "null"], "description": "An a.", "format": "uuid"},
                "b": {"$ref": "#/$defs/b"},
                "c": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "d": {"const": "x"},
                "e": {"oneOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]},
                "f": {"type": ["string", "integer"]},
                "g": {"type": "array"},
                "h": {"type": "integer", "enum": [1, 2]},
            }, "required": ["a"], "additionalProperties": false,
            "$defs": {"b": {"type": "object", "properties": {"x": true}}}}),
            json!({"type": "object", "description": "(JSON Schema: {\"additionalProperties\":false})",
            "properties": {
                "a": {"type": "string", "nullable": true, "description": "An a. (JSON Schema: {\"format\":\"uuid\"})"},
                "b": {"type": "object", "properties": {"x": {}}},
                "c": {"type": "integer", "nullable": true},
                "d": {"type": "string", "enum": ["x"]},
                "e": {"anyOf": [{"type": "string"}, {"type": "number", "description": "(JSON Schema: {\"exclusiveMinimum\":0})"}]},
                "f": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "g": {"type": "array", "items": {}},
                "h": {"type": "integer", "description": "(JSON Schema: {\"enum\":[1,2]})"},
            }, "required": ["a"]}),
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "required": ["a", "b"]}),
            json!({"type": "object", "properties": {"a": {}}, "required": ["a"],
                "description": "(JSON Schema: {\"required\":[\"b\"]})"}),
        ),
        (
            json!({"description": "A.", "allOf": [{"description": "B.", "minimum": 1, "multipleOf": 2}]}),
            json!({"description": "A. B. (JSON Schema: {\"multipleOf\":2})", "minimum": 1}),
        ),
        (
            json!({"allOf": [
                {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
            ]}),
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "required": ["a", "b"]}),
        ),
    ];
    for (schema, expected) in cases {
        let adapted = adapt(&schema, "gemini-2.0-flash").await.expect("a schema");
        assert_eq!(adapted, expected);
    }
}

#[tokio::test]
async fn an_inexpressible_schema_is_rejected_for_an_old_model() {
    let refused = [
        json!({"$ref": "#"}),
        json!({"$ref": "https://a.test"}),
        json!({"properties": {"a": false}}),
        json!({"allOf": [{"type": "string"}, {"type": "number"}]}),
    ];
    for schema in refused {
        assert!(
            adapt(&schema, "gemini-2.0-flash").await.is_err(),
            "{schema}"
        );
    }
    // The size doubles with each definition.
    let mut large = json!({"$ref": "#/$defs/0", "$defs": {"40": {"type": "string"}}});
    for at in 0..40 {
        let next = json!({"$ref": format!("#/$defs/{}", at + 1)});
        large["$defs"][at.to_string()] = json!({"properties": {"a": next, "b": next}});
    }
    assert!(adapt(&large, "gemini-2.0-flash").await.is_err());
}

async fn parameters(schema: &Value) -> Result<Value, Error> {
    let pointer = "/tools/0/function/parameters";
    sent(&OllamaLayer::new("qwen3"), with_tool(schema), pointer).await
}

#[tokio::test]
async fn a_supported_schema_is_unchanged() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": ["string", "null"], "minLength": 1}},
        "required": ["a"],
    });
    assert_eq!(parameters(&schema).await.expect("a schema"), schema);
}

#[tokio::test]
async fn unsupported_keywords_are_converted() {
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
        parameters(&schema).await.expect("a schema"),
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

#[tokio::test]
async fn a_recursive_schema_is_cut_off() {
    let schema = json!({
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    });
    let text = parameters(&schema).await.expect("a schema").to_string();
    assert_eq!(text.matches("next").count(), 8);
    assert!(!text.contains("$ref"));
    assert_eq!(
        parameters(&json!(true)).await.expect("a schema"),
        json!({"type": "object", "properties": {}})
    );
}

#[tokio::test]
async fn an_exponential_recursive_schema_is_rejected() {
    let node = |count: u32| {
        let properties = (0..count).map(|at| (at.to_string(), json!({"$ref": "#"})));
        json!({"type": "object", "properties": properties.collect::<Map<_, _>>()})
    };
    assert!(parameters(&node(2)).await.is_ok());
    // 10⁸ schemas when expanded.
    assert!(parameters(&node(10)).await.is_err());
}
