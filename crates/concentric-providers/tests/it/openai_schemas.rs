//! Schemas and names for OpenAI's own service, and for others.

use crate::common::*;
use crate::openai::*;
use concentric_core::{ChatRequest, OutputSchema, ToolSpec};
use concentric_providers::{Capabilities, openai::Profile};
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn schemas_are_converted_or_sent_unchanged() {
    let open =
        json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]});
    let mut closed = open.clone();
    closed["additionalProperties"] = json!(false);
    let loose = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let bare = json!({"type": "object"});
    let named = json!({"type": "object", "properties": {}});
    let sent = async |profile: Profile, schema: &Value, strict: bool| {
        let mut request = ChatRequest::user("hi");
        let spec = ToolSpec::new("t", "", bare.clone());
        request.tools.push(Arc::new(spec));
        let mut output = OutputSchema::new("out", schema.clone());
        output.strict = strict;
        request.options_mut().output_schema = Some(output);
        // Some services support it only without tools.
        let layer = of(profile).capabilities(Capabilities::all());
        let (_, mut body) = try_sent_by(&layer, request).await.unwrap();
        let mut format = body["response_format"]["json_schema"].take();
        (
            format["schema"].take(),
            format["strict"].take(),
            body["tools"][0]["function"]["parameters"].take(),
        )
    };
    for profile in [Profile::OPENAI, Profile::AZURE] {
        for (schema, strict, expected) in [
            (&open, true, (&closed, true)),
            (&open, false, (&open, false)),
            // The strict subset cannot express an optional `q`.
            (&loose, true, (&loose, false)),
        ] {
            let (schema, strict, parameters) = sent(profile, schema, strict).await;
            assert_eq!((&schema, strict), (expected.0, json!(expected.1)));
            assert_eq!(parameters, named);
        }
    }
    // Other services have different subsets, in which objects are closed.
    for profile in [
        Profile::GROQ,
        Profile::CEREBRAS,
        Profile::OPENROUTER,
        Profile::generic("mine"),
    ] {
        for (schema, strict, expected) in [
            (&open, true, (&closed, true)),
            (&closed, true, (&closed, true)),
            (&open, false, (&open, false)),
            (&loose, true, (&loose, false)),
        ] {
            let (schema, strict, parameters) = sent(profile, schema, strict).await;
            assert_eq!((&schema, strict), (expected.0, json!(expected.1)));
            assert_eq!(parameters, bare);
        }
    }
}

#[test]
fn schemas_without_a_valid_form_are_rejected() {
    let mut request = ChatRequest::user("hi");
    let schema = json!({"type": "object", "properties": {}});
    request.options_mut().output_schema = Some(OutputSchema::new("Vec<T>", schema));
    let long = "t".repeat(65);
    for (name, schema) in [
        ("ok", json!({})),
        ("bad name", json!({})),
        (&*long, json!({})),
        ("list", json!({"type": "array"})),
        ("any", json!({"type": "object", "anyOf": []})),
    ] {
        let spec = ToolSpec::new(name.to_owned(), "", schema);
        request.tools.push(Arc::new(spec));
    }
    let check = |profile, request: &ChatRequest| -> Vec<String> {
        let refused = of(profile).check(request);
        refused.iter().map(ToString::to_string).collect()
    };
    let refused = [
        "an output schema named `Vec<T>`".to_owned(),
        "a tool named `bad name`".to_owned(),
        format!("a tool named `{long}`"),
        "the input schema of tool `list`: a type other than `object`".to_owned(),
        "the input schema of tool `any`: `anyOf` at the top level".to_owned(),
    ];
    for profile in [Profile::OPENAI, Profile::AZURE] {
        assert_eq!(check(profile, &request), refused);
    }
    assert!(check(Profile::TOGETHER, &request).is_empty());
    // Tools in the provider options replace those of the request.
    let options = request.options_mut();
    options.provider.insert("tools".into(), json!([]));
    assert_eq!(check(Profile::OPENAI, &request), refused[..1]);
}
