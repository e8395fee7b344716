//! Stacks from configuration.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, ErrorKind, Event, NoTools, Outcome, agent::Installer,
    describe::describe,
};
use concentric_layers::{
    InFlightLimitLayer, RequestDefaultsLayer,
    config::{MAX_LAYERS, Registry},
    on_end,
};
use concentric_test::ScriptedModel;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tower::{Layer, ServiceBuilder, ServiceExt};

const TOML: &str = r#"
    [[layers]]
    use = "defaults"
    options = { model = "m-1", system = "Be brief.", max_output_tokens = 9 }

    [[layers]]
    use = "agent"
    options.step_limit = 1

    [[layers]]
    use = "in-flight"
    options.max = 4
"#;

fn same() -> Value {
    json!({"layers": [
        {"use": "defaults",
         "options": {"model": "m-1", "system": "Be brief.", "max_output_tokens": 9}},
        {"use": "agent", "options": {"step_limit": 1}},
        {"use": "in-flight", "options": {"max": 4}},
    ]})
}

fn error(document: Value) -> String {
    let error = Registry::builtin().build(document, NoTools).unwrap_err();
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Configuration, Some("config"))
    );
    error.message().to_owned()
}

#[allow(clippy::needless_pass_by_value, reason = "called with literals")]
fn one(name: &str, options: Value) -> Value {
    json!({"layers": [{"use": "agent"}, {"use": name, "options": options}]})
}

#[tokio::test]
async fn s088_a_configured_stack_is_the_hand_built_one() {
    let model = ScriptedModel::new();
    let by_hand = ServiceBuilder::new()
        .layer(RequestDefaultsLayer::new())
        .layer(AgentLayer::new(NoTools))
        .layer(InFlightLimitLayer::new(4))
        .service(model.clone());
    let registry = Registry::builtin();
    let json = same().to_string();
    for agent in [registry.toml(TOML, NoTools), registry.json(&json, NoTools)] {
        let agent = agent.unwrap().layer(model.clone());
        assert_eq!(agent.describe(), describe(&by_hand));
    }

    let model = ScriptedModel::new().tool_call("none", json!({}));
    let agent = registry.toml(TOML, NoTools).unwrap();
    let agent = agent.layer(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let answer = answer.collect().await.unwrap();
    assert_eq!(answer.finish.outcome, Outcome::StepLimit);
    let request = &model.requests()[0];
    assert_eq!(request.options.model.as_deref(), Some("m-1"));
    assert_eq!(request.options.max_output_tokens, Some(9));
    assert_eq!(request.system.iter().count(), 1);
}

#[test]
fn an_error_names_the_key() {
    for (document, key, part) in [
        (json!([]), "", "an object"),
        (json!({"layer": []}), "layer", "unknown"),
        (json!({}), "layers", "required"),
        (json!({"layers": {}}), "layers", "list"),
        (json!({"layers": []}), "layers", "no layer is the `agent`"),
        (json!({"layers": [{}]}), "layers[0].use", "required"),
        (
            json!({"layers": [{"use": "agent", "at": 1}]}),
            "layers[0].at",
            "unknown",
        ),
        (json!({"layers": [3]}), "layers[0]", "an object"),
        (one("agent", json!({})), "layers[1].use", "more than one"),
        (one("in-flght", json!({})), "layers[1].use", "`in-flight`"),
        (one("in-flight", json!({})), "layers[1].options", "max"),
        (
            one("in-flight", json!({"max": "4"})),
            "layers[1].options.max",
            "\"4\"",
        ),
        (
            one("in-flight", json!({"max": -1})),
            "layers[1].options.max",
            "-1",
        ),
        (
            one("in-flight", json!({"max": 1, "mx": 1})),
            "layers[1].options",
            "mx",
        ),
        (
            one("defaults", json!({"max_output_tokens": 0})),
            "layers[1].options.max_output_tokens",
            "0",
        ),
        (
            one("commit", json!({"at": "never"})),
            "layers[1].options.at",
            "never",
        ),
        (
            one("budget", json!({"limits": {"money": -1}})),
            "layers[1].options.limits.money",
            "-1",
        ),
        (
            json!({"layers": [{"use": "agent", "options": {"step_limit": 0}}]}),
            "layers[0].options.step_limit",
            "0",
        ),
    ] {
        let text = error(document);
        let at = text
            .strip_prefix('`')
            .map_or("", |text| text.split('`').next().unwrap());
        assert_eq!(at, key, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_document_that_cannot_be_parsed_is_an_error_without_a_key() {
    let registry = Registry::builtin();
    let (toml, json) = (
        registry.toml("[[layers", NoTools),
        registry.json("{", NoTools),
    );
    for error in [toml, json] {
        let error = error.unwrap_err();
        assert!(
            error
                .message()
                .starts_with("the configuration can't be parsed")
        );
        assert_eq!(error.code(), Some("config"));
    }
}

#[test]
fn as_many_layers_as_the_maximum_are_built_and_one_more_is_refused() {
    let layers = |n: usize| {
        let mut layers = vec![json!({"use": "commit", "options": {"at": "whole"}}); n - 1];
        layers.push(json!({"use": "agent"}));
        Registry::builtin().build(json!({"layers": layers}), NoTools)
    };
    let agent = layers(MAX_LAYERS).unwrap();
    let described = agent.layer(ScriptedModel::new()).describe();
    assert_eq!(described.lines().count(), MAX_LAYERS + 2);
    let error = layers(MAX_LAYERS + 1).unwrap_err();
    assert_eq!(error.message(), "`layers`: 65 layers are more than 64");
}

#[derive(Deserialize, JsonSchema)]
struct Refuses {
    why: String,
}

#[test]
fn an_error_of_a_constructor_names_the_options() {
    let registry = Registry::new().layer("own", |options: Refuses| match options.why.as_str() {
        "" => Ok(on_end(|_| {})),
        why => Err(why.into()),
    });
    let build = |why: &str| {
        let own = json!({"use": "own", "options": {"why": why}});
        registry.build(json!({"layers": [own, {"use": "agent"}]}), NoTools)
    };
    let error = build("too late").unwrap_err();
    assert_eq!(error.message(), "`layers[0].options`: too late");
    let agent = build("").unwrap();
    let described = agent.layer(ScriptedModel::new()).describe();
    assert!(
        described.starts_with("run       OnEnd\nrun       Agent"),
        "{described}"
    );
}

#[tokio::test]
async fn a_plugin_is_installed_once_per_stack() {
    let registry = Registry::builtin().plugin("watch", |_: Value| {
        Ok(|at: &mut Installer<'_>| {
            at.model_layer(concentric_layers::map_events(|event: &mut Event| {
                if let Event::TextDelta(text) = event {
                    *text = "seen".into();
                }
            }));
        })
    });
    let document = json!({"layers": [{"use": "watch"}, {"use": "agent"}]});
    for _ in 0..2 {
        let agent = registry.build(document.clone(), NoTools).unwrap();
        let agent: BoxModel = agent.layer(ScriptedModel::new().text("hi"));
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "seen");
    }
}

#[test]
fn the_schema_of_the_document_accepts_what_is_built() {
    let schema = Registry::builtin().schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(&same()));
    assert!(!validator.is_valid(&one("in-flight", json!({"max": "4"}))));
    assert!(!validator.is_valid(&one("unknown", json!({}))));
}
