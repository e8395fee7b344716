//! The schema that a model is shown is the schema that is enforced, keyword by keyword.

use crate::common::{Log, one, paced};
use concentric_core::{Reply, ReplyKind, ToolStatus};
use concentric_tools::{
    Approval, NoArguments, Tool, Toolset, ToolsetError, blocking_tool, output, tool,
    tool_with_context,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::fmt::Debug;

/// One row: a keyword, arguments that are valid by it, and arguments that are not.
struct Row {
    keyword: &'static str,
    tools: Vec<Tool>,
    schema: Value,
    valid: &'static str,
    invalid: &'static str,
    is_valid_output: Box<dyn Fn(&str) -> bool>,
}

fn row<A>(keyword: &'static str, valid: &'static str, invalid: &'static str) -> Row
where
    A: DeserializeOwned + JsonSchema + Debug + Send + Sync + 'static,
{
    let by_type = tool("t", "", |_: A| async {});
    let typed = output::<A>("out");
    Row {
        keyword,
        schema: (*by_type.spec().input_schema).clone(),
        tools: vec![
            by_type,
            tool_with_context("t", "", |_: A, _| async {}),
            blocking_tool("t", "", |_: A| ()),
        ],
        valid,
        invalid,
        is_valid_output: Box::new(move |text| typed.of_text(text).is_ok()),
    }
}

macro_rules! rows {
    ($($keyword:literal $(#[$attribute:meta])* $type:ty => $valid:literal, $invalid:literal;)*) => {
        vec![$({
            #[derive(Debug, Deserialize, JsonSchema)]
            #[allow(dead_code)]
            struct Arguments {
                $(#[$attribute])*
                v: $type,
            }
            row::<Arguments>(
                $keyword,
                concat!(r#"{"v":"#, $valid, "}"),
                concat!(r#"{"v":"#, $invalid, "}"),
            )
        }),*]
    };
}

fn either(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [{"const": "a"}, {"type": "integer"}]})
}

fn table() -> Vec<Row> {
    #[derive(Debug, Deserialize, JsonSchema)]
    #[schemars(extend("additionalProperties" = false))]
    #[allow(dead_code)]
    struct Closed {
        v: u8,
    }
    #[derive(Debug, Deserialize, JsonSchema)]
    #[schemars(extend("required" = ["v"]))]
    #[allow(dead_code)]
    struct Required {
        v: Option<u8>,
    }
    #[derive(Debug, Deserialize, JsonSchema)]
    #[schemars(extend("minProperties" = 2))]
    #[allow(dead_code)]
    struct Two {
        v: Option<u8>,
    }
    #[derive(Debug, Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Derived {
        v: u8,
    }
    let mut rows = rows![
        "enum" #[schemars(extend("enum" = ["dev", "test"]))] String => r#""dev""#, r#""prod""#;
        "const" #[schemars(extend("const" = 5))] u8 => "5", "6";
        "oneOf" #[schemars(extend("oneOf" = [{"const": 1}, {"const": 2}]))] u8 => "2", "7";
        "anyOf by schema_with" #[schemars(schema_with = "either")] Value => r#""a""#, r#""b""#;
        "allOf" #[schemars(extend("allOf" = [{"minimum": 3}]))] u8 => "3", "2";
        "not" #[schemars(extend("not" = {"const": 3}))] u8 => "4", "3";
        "type" #[schemars(extend("type" = "integer"))] f64 => "1", "1.5";
        "type by with" #[schemars(with = "u8")] i64 => "60", "-60000";
        "minimum of the type" u8 => "0", "-1";
        "maximum of the type" #[schemars(extend("maximum" = 255))] u64 => "255", "256";
        "minimum" #[schemars(range(min = 3))] u32 => "3", "2";
        "exclusiveMaximum" #[schemars(extend("exclusiveMaximum" = 3))] u32 => "2", "3";
        "multipleOf" #[schemars(extend("multipleOf" = 2))] u32 => "4", "3";
        "minLength" #[schemars(length(min = 2))] String => r#""ab""#, r#""a""#;
        "pattern" #[schemars(regex(pattern = "^[a-z]$"))] String => r#""a""#, r#""A""#;
        "minItems" #[schemars(length(min = 1))] Vec<u8> => "[1]", "[]";
        "uniqueItems" #[schemars(extend("uniqueItems" = true))] Vec<u8> => "[1]", "[1,1]";
        "contains" #[schemars(extend("contains" = {"const": 1}))] Vec<u8> => "[2,1]", "[2]";
        "items" #[schemars(extend("items" = {"const": 1}))] Vec<u8> => "[1]", "[2]";
        "properties" Derived => r#"{"v":1}"#, r#"{"v":"x"}"#;
        "array for a struct" Derived => r#"{"v":1}"#, "[1]";
    ];
    rows.push(row::<Closed>(
        "additionalProperties",
        r#"{"v":1}"#,
        r#"{"v":1,"w":2}"#,
    ));
    rows.push(row::<Required>("required", r#"{"v":1}"#, "{}"));
    rows.push(row::<Two>(
        "minProperties",
        r#"{"v":1,"w":2}"#,
        r#"{"v":1}"#,
    ));
    rows
}

paced!(each_keyword_is_enforced_on_calls);
async fn each_keyword_is_enforced_on_calls() {
    for row in table() {
        for tool in row.tools {
            let tools = Toolset::new().tool(tool);
            tools.check().unwrap();
            let keyword = row.keyword;
            let valid = one(&tools, "t", row.valid).await;
            assert_eq!(valid.status, ToolStatus::Done, "{keyword}: {valid:?}");
            let invalid = one(&tools, "t", row.invalid).await;
            assert_eq!(invalid.status, ToolStatus::Failed, "{keyword}");
            let told = invalid.content.text();
            assert!(told.contains("The call was not run"), "{keyword}: {told}");
        }
    }
}

paced!(each_keyword_is_enforced_on_edits);
async fn each_keyword_is_enforced_on_edits() {
    for row in table() {
        let log = Log::default();
        let ran = log.clone();
        let spec = concentric_core::ToolSpec::new("t", "", row.schema.clone());
        let service = tower::service_fn(move |_: concentric_core::ToolCall| {
            ran.add("ran");
            async { Ok::<_, concentric_core::Error>(concentric_core::ToolOutcome::done("")) }
        });
        let mut all: Vec<_> = row.tools;
        all.push(Tool::new(spec, service));
        for tool in all {
            let tools = Toolset::new()
                .tool(tool)
                .gate(Approval::for_tools("t").replies([ReplyKind::Edit]));
            let scene = crate::kit::Scene::round(vec![("t", row.valid)]);
            let ran = scene.start(&tools).await;
            let edited: Value = serde_json::from_str(row.invalid).unwrap();
            let reply = Reply::approve_edited(ran.ask("call-0-0").id, edited);
            let ran = scene.resume(&tools, ran.state(), vec![reply]).await;
            let refused = ran.end.unwrap_err();
            assert_eq!(refused.code(), Some("malformed_reply"), "{}", row.keyword);
        }
        assert!(log.lines().is_empty(), "{}", row.keyword);
    }
}

#[test]
fn each_keyword_is_enforced_on_answers() {
    for row in table() {
        assert!((row.is_valid_output)(row.valid), "{}", row.keyword);
        assert!(!(row.is_valid_output)(row.invalid), "{}", row.keyword);
    }
}

paced!(a_format_is_an_annotation);
async fn a_format_is_an_annotation() {
    #[derive(Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Mail {
        #[schemars(email)]
        to: String,
    }
    let tools = Toolset::new().tool(tool("t", "", |_: Mail| async {}));
    let outcome = one(&tools, "t", r#"{"to":"nobody"}"#).await;
    assert_eq!(outcome.status, ToolStatus::Done);
}

paced!(a_whole_number_with_a_fraction_is_an_integer);
async fn a_whole_number_with_a_fraction_is_an_integer() {
    #[derive(Debug, Deserialize, JsonSchema)]
    struct Count {
        n: u8,
        of: Vec<i64>,
    }
    let tools = Toolset::new().tool(tool("t", "", |count: Count| async move {
        format!("{} {:?}", count.n, count.of)
    }));
    let outcome = one(&tools, "t", r#"{"n":3.0,"of":[-2.0,1]}"#).await;
    assert_eq!(outcome.content.text(), "3 [-2, 1]");
    let outcome = one(&tools, "t", r#"{"n":3.5,"of":[]}"#).await;
    assert_eq!(outcome.status, ToolStatus::Failed);
}

paced!(a_schema_that_cannot_be_enforced_fails_before_the_model_is_called);
async fn a_schema_that_cannot_be_enforced_fails_before_the_model_is_called() {
    #[derive(Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Ahead {
        #[schemars(regex(pattern = "(?=a)b"))]
        v: String,
    }
    let tools = Toolset::new().tool(tool("t", "", |_: Ahead| async {}));
    let error = tools.check().unwrap_err();
    assert!(
        matches!(error, ToolsetError::InvalidSchema { .. }),
        "{error}"
    );
    let model = crate::kit::Model::silent();
    let request = concentric_core::ChatRequest::user("hi");
    let failed = tower::ServiceExt::oneshot(model.agent(&tools), request).await;
    assert_eq!(
        failed.unwrap_err().kind(),
        concentric_core::ErrorKind::Configuration
    );
    assert!(model.requests().is_empty());
    // Neither is an answer of such a type believed.
    assert!(output::<Ahead>("out").of_text(r#"{"v":"b"}"#).is_err());
}

paced!(a_tool_without_arguments_takes_any_object);
async fn a_tool_without_arguments_takes_any_object() {
    let tools = Toolset::new().tool(tool("t", "", |NoArguments {}| async {}));
    for arguments in ["", "{}", r#"{"a":1}"#] {
        assert_eq!(one(&tools, "t", arguments).await.status, ToolStatus::Done);
    }
    assert_eq!(one(&tools, "t", "[]").await.status, ToolStatus::Failed);
}

// ---- answers ----

#[test]
fn a_value_is_read_out_of_any_spelling_of_a_fence() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Name {
        name: String,
    }
    let name = output::<Name>("name");
    let value = r#"{"name":"Ada"}"#;
    for text in [
        value.to_owned(),
        format!("\u{feff}{value}"),
        format!("```json\n{value}\n```"),
        format!("```JSON\n{value}\n```"),
        format!("```jsonc\r\n{value}\r\n```\n"),
        format!("```\n{value}\n```"),
        format!("``` json \n{value}\n```").replace("``` json", "```json"),
        format!("```json{value}```"),
        format!("```{value}```"),
        format!("\u{feff}```json\n\u{feff}{value}\n```"),
        format!("Here is the name:\n\n```json\n{value}\n```"),
        format!("Here it is:\n```\n{value}\n```\nAnything else?"),
    ] {
        assert_eq!(name.of_text(&text).unwrap().name, "Ada", "{text}");
    }
    let fenced = json!({"name": "```json\n{}\n```"}).to_string();
    assert_eq!(name.of_text(&fenced).unwrap().name, "```json\n{}\n```");
    let block = format!("```json\n{fenced}\n```");
    assert_eq!(name.of_text(&block).unwrap().name, "```json\n{}\n```");
    for text in [
        "",
        "```",
        "``````",
        "```json\n```",
        "Ada",
        "```json\n{\n```",
    ] {
        assert!(name.of_text(text).is_err(), "{text}");
    }
}

#[test]
fn a_whole_number_in_an_answer_may_have_a_fraction() {
    let number = output::<u8>("number");
    assert_eq!(number.of_text("1.0").unwrap(), 1);
    assert!(number.of_text("1.5").is_err());
    assert!(number.of_text("256.0").is_err());
}
