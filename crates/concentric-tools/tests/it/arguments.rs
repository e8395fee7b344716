//! What the model may write as arguments, and what it is told of the rest.

use crate::common::{one, paced, text};
use concentric_core::ToolStatus;
use concentric_tools::{NoArguments, Toolset, tool};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Filter {
    limit: u8,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Search {
    query: String,
    #[serde(default)]
    filters: Vec<Filter>,
}

/// A set of one tool, and how often it ran.
fn counted<A>() -> (Toolset, Arc<AtomicUsize>)
where
    A: serde::de::DeserializeOwned + JsonSchema + std::fmt::Debug + Send + 'static,
{
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let tool = tool("t", "", move |args: A| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { format!("{args:?}") }
    });
    (Toolset::new().tool(tool), ran)
}

async fn refused<A>(arguments: &str) -> String
where
    A: serde::de::DeserializeOwned + JsonSchema + std::fmt::Debug + Send + 'static,
{
    let (tools, ran) = counted::<A>();
    let outcome = one(&tools, "t", arguments).await;
    assert_eq!(outcome.status, ToolStatus::Failed, "{outcome:?}");
    assert_eq!(ran.load(Ordering::SeqCst), 0, "the tool ran");
    let text = outcome.content.text().into_owned();
    let start = "The call was not run. The arguments of `t` are invalid: ";
    text.strip_prefix(start).expect(&text).to_owned()
}

paced!(a_wrong_field_is_named_with_its_path_and_position);
async fn a_wrong_field_is_named_with_its_path_and_position() {
    assert_eq!(
        refused::<Search>(r#"{"query":"a","filters":[{"limit":1},{"limit":"ten"}]}"#).await,
        "at `/filters/1/limit`: \"ten\" is not of type \"integer\""
    );
    assert_eq!(
        refused::<Search>(r#"{"query":"a","filters":[{"limit":300}]}"#).await,
        "at `/filters/0/limit`: 300 is greater than the maximum of 255"
    );
    assert_eq!(
        refused::<Search>(r#"{"filters":[]}"#).await,
        "\"query\" is a required property"
    );
}

paced!(f028_arguments_that_are_not_json_are_refused_with_the_position);
async fn f028_arguments_that_are_not_json_are_refused_with_the_position() {
    assert_eq!(
        refused::<Search>("{query: 1}").await,
        "not JSON: key must be a string at line 1 column 2"
    );
    assert_eq!(
        refused::<Search>(r#"{"query":"a"}{"query":"b"}"#).await,
        "unexpected text after the JSON, at line 1 column 14"
    );
    for nan in ["NaN", "Infinity", "-Infinity", "1e999"] {
        refused::<Value>(&format!(r#"{{"a":{nan}}}"#)).await;
    }
}

paced!(f003_arguments_that_end_early_are_said_to_be_cut_short);
async fn f003_arguments_that_end_early_are_said_to_be_cut_short() {
    assert_eq!(
        refused::<Search>(r#"{"query":"a", "fil"#).await,
        "the JSON ends early, at line 1 column 18"
    );
}

paced!(f029_keys_that_stand_twice_are_refused_wherever_they_are);
async fn f029_keys_that_stand_twice_are_refused_wherever_they_are() {
    let told = refused::<Search>(r#"{"query":"a","query":"b"}"#).await;
    assert!(told.starts_with("duplicate key `query`"), "{told}");
    // serde itself looks at none of these.
    for arguments in [
        r#"{"query":"a","unknown":1,"unknown":2}"#,
        r#"{"query":"a","unknown":[{"b":{"c":1,"c":1}}]}"#,
        r#"{"query":"a","\u0071uery":"b"}"#,
        r#"{"query":"a","x":{"1":0,"2":0,"3":0,"4":0,"5":0,"6":0,"7":0,"8":0,"9":0,"9":0}}"#,
        r#"{"query":"a","x":{"1":0,"2":0,"3":0,"4":0,"5":0,"6":0,"7":0,"8":0,"9":0,"1":0}}"#,
    ] {
        let told = refused::<Search>(arguments).await;
        assert!(told.contains("duplicate key"), "{told}");
    }
    refused::<HashMap<String, Value>>(r#"{"a":1,"a":2}"#).await;
}

paced!(f029_deep_nesting_is_refused_even_where_nobody_looks);
async fn f029_deep_nesting_is_refused_even_where_nobody_looks() {
    for depth in [128, 10_000] {
        let deep = format!(
            r#"{{"query":"a","unknown":{}{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        );
        let told = refused::<Search>(&deep).await;
        assert!(told.starts_with("nested deeper than 127 levels"), "{told}");
    }
}

paced!(f030_no_arguments_mean_an_empty_object_if_that_is_allowed);
async fn f030_no_arguments_mean_an_empty_object_if_that_is_allowed() {
    let (tools, ran) = counted::<NoArguments>();
    for nothing in ["", " \n", "null", " null ", "{}"] {
        assert_eq!(one(&tools, "t", nothing).await.status, ToolStatus::Done);
    }
    assert_eq!(ran.load(Ordering::SeqCst), 5);
    assert!(
        refused::<Search>("")
            .await
            .contains("\"query\" is a required property")
    );
}

paced!(arguments_that_are_not_an_object_are_refused);
async fn arguments_that_are_not_an_object_are_refused() {
    // serde would take an array's items for a struct's fields.
    for arguments in [r#"["a",[]]"#, "7", r#""a""#, "true"] {
        assert_eq!(refused::<Search>(arguments).await, "not a JSON object");
    }
}

#[cfg(feature = "schema-validation")]
paced!(ranges_lengths_and_patterns_of_the_schema_are_enforced);
#[cfg(feature = "schema-validation")]
async fn ranges_lengths_and_patterns_of_the_schema_are_enforced() {
    // serde knows none of them.
    #[derive(Debug, Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Strict {
        #[schemars(range(min = 1, max = 10))]
        n: u32,
        #[schemars(length(min = 2))]
        name: String,
        #[schemars(regex(pattern = "^[a-z]+$"))]
        word: String,
    }
    let told = refused::<Strict>(r#"{"n":11,"name":"a","word":"A1"}"#).await;
    assert!(
        told.contains("at `/n`: 11 is greater than the maximum of 10"),
        "{told}"
    );
    assert!(told.contains("at `/name`:"), "{told}");
    assert!(told.contains("at `/word`:"), "{told}");
    let (tools, _) = counted::<Strict>();
    let outcome = one(&tools, "t", r#"{"n":10,"name":"ab","word":"a"}"#).await;
    assert_eq!(outcome.status, ToolStatus::Done);
}

paced!(unknown_fields_are_as_the_type_says);
async fn unknown_fields_are_as_the_type_says() {
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Closed {
        a: u8,
    }
    let told = refused::<Closed>(r#"{"a":1,"b":2}"#).await;
    assert!(told.contains("'b' was unexpected"), "{told}");
    let (tools, _) = counted::<Filter>();
    assert_eq!(
        one(&tools, "t", r#"{"limit":1,"b":2}"#).await.status,
        ToolStatus::Done
    );
}

paced!(a_choice_between_objects_is_an_object);
async fn a_choice_between_objects_is_an_object() {
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    #[allow(dead_code)]
    enum Shape {
        Circle { radius: f64 },
        Square { side: f64 },
    }
    let (tools, _) = counted::<Shape>();
    assert_eq!(tools.check(), Ok(()));
    assert_eq!(
        text(&tools, "t", r#"{"kind":"circle","radius":1}"#).await,
        "Circle { radius: 1.0 }"
    );
    refused::<Shape>(r#"{"kind":"line"}"#).await;
}

paced!(a_value_of_any_type_is_still_an_object);
async fn a_value_of_any_type_is_still_an_object() {
    let (tools, _) = counted::<Value>();
    assert_eq!(
        one(&tools, "t", r#"{"a":1}"#).await.status,
        ToolStatus::Done
    );
    assert_eq!(refused::<Value>("[1]").await, "not a JSON object");
}

paced!(a_keyword_added_by_hand_is_enforced);
async fn a_keyword_added_by_hand_is_enforced() {
    #[derive(Debug, Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct One {
        #[schemars(extend("const" = 1))]
        n: u32,
    }
    refused::<One>(r#"{"n":2}"#).await;
}

paced!(huge_arguments_are_refused);
async fn huge_arguments_are_refused() {
    let tools = Toolset::new().tool(tool("t", "", |_: Search| async {}).max_argument_bytes(20));
    assert_eq!(
        one(&tools, "t", r#"{"query":"12345678"}"#).await.status,
        ToolStatus::Done
    );
    assert_eq!(
        one(&tools, "t", r#"{"query":"123456789"}"#).await.status,
        ToolStatus::Failed
    );
    let long = format!(r#"{{"query":1,"{}":1}}"#, "x".repeat(100_000));
    assert!(refused::<Search>(&long).await.len() < 3000);
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\"\\\\é]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-zé\"]{0,3}", inner, 0..12)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn accepts(arguments: &str) -> bool {
    let tools = Toolset::new().tool(tool("t", "", |_: HashMap<String, Value>| async {}));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(one(&tools, "t", arguments)).status == ToolStatus::Done
}

proptest! {
    #[test]
    fn every_object_is_accepted_and_no_prefix_of_it(value in json_value(), cut in any::<prop::sample::Index>()) {
        let text = json!({ "value": value }).to_string();
        prop_assert!(accepts(&text));
        let mut end = 1 + cut.index(text.len() - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        prop_assert!(!accepts(&text[..end]));
    }

    #[test]
    fn whatever_the_bytes_nothing_panics(text in "\\PC{0,40}") {
        let accepted = accepts(&text);
        let object = serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object());
        let nothing = ["", "null"].contains(&text.trim());
        prop_assert!(!accepted || object || nothing);
    }
}
