//! The schemas and names that go to OpenAI's own service, and to others.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

mod common;
mod openai;

use common::*;
use concentric_core::{ChatRequest, OutputSchema, ToolSpec};
use concentric_providers::{Capabilities, openai::Profile};
use openai::*;
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn schemas_are_as_the_service_takes_them_and_else_as_they_are() {
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
        // What some take without tools only.
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
            // That `q` may be missing can't be said strictly.
            (&loose, true, (&loose, false)),
        ] {
            let (schema, strict, parameters) = sent(profile, schema, strict).await;
            assert_eq!((&schema, strict), (expected.0, json!(expected.1)));
            assert_eq!(parameters, named);
        }
    }
    // Others have subsets of their own, in which objects are closed.
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
fn what_openai_takes_in_no_form_is_said_before() {
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
        "the schema of the tool `list`, which is of no object".to_owned(),
        "the schema of the tool `any`, which has `anyOf` at its top".to_owned(),
    ];
    for profile in [Profile::OPENAI, Profile::AZURE] {
        assert_eq!(check(profile, &request), refused);
    }
    assert!(check(Profile::TOGETHER, &request).is_empty());
    // Tools of the options' are sent instead.
    let options = request.options_mut();
    options.provider.insert("tools".into(), json!([]));
    assert_eq!(check(Profile::OPENAI, &request), refused[..1]);
}
