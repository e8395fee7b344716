//! Stacks from configuration.

use crate::histories::{assistant, round};
use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Error, ErrorKind, Event, NoTools, Outcome, Transcript, Turn,
    agent::Installer, describe::describe,
};
use concentric_layers::{
    InFlightLimitLayer, RequestDefaultsLayer,
    config::{MAX_LAYERS, Registry},
    on_end,
};
use concentric_test::ScriptedModel;
use concentric_tools::{NoArguments, Toolset, tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
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
            one("budget", json!({"limits": {"model_call": 1}})),
            "layers[1].options.limits.model_call",
            "model_call",
        ),
        (
            one("rate-limit", json!({"requests": 1, "per_seconds": 0})),
            "layers[1].options",
            "per_seconds",
        ),
        (
            one("guard", json!({"rules": []})),
            "layers[1].options",
            "rules",
        ),
        (
            one(
                "guard",
                json!({"rules": ["email"], "block": ["email"], "flag": ["email"]}),
            ),
            "layers[1].options",
            "`email` is in `block` and in `flag`",
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
fn numbers_that_are_not_finite_are_refused() {
    for number in ["inf", "-inf", "nan"] {
        let text = format!(
            "[[layers]]\nuse = \"agent\"\n[[layers]]\nuse = \"rate-limit\"\n\
             options = {{ requests = 1, per_seconds = 1.0, wait_seconds = {number} }}\n"
        );
        let error = Registry::builtin().toml(&text, NoTools).unwrap_err();
        assert!(error.message().contains("`inf` and `nan`"), "{error}");
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

/// Runs the same request twice through an agent with one configured layer inside the loop.
async fn twice(name: &str, options: Value, model: &ScriptedModel) -> [Result<String, Error>; 2] {
    let agent = Registry::builtin().build(one(name, options), NoTools);
    let agent: BoxModel = agent.unwrap().layer(model.clone());
    let ask = async || {
        let request = ChatRequest::user("I am ann@example.com, T-7");
        agent.clone().oneshot(request).await?.text().await
    };
    [ask().await, ask().await]
}

#[tokio::test]
async fn calls_are_configured() {
    let down = || ScriptedModel::new().error(Error::new(ErrorKind::Server, "down"));
    let hi = || ScriptedModel::new().text("hi");

    let model = down().then().text("hi").repeat();
    let options = json!({"attempts": 2, "backoff_seconds": [0, 0.5], "max_retry_after_seconds": 1});
    let answers = twice("retry", options, &model).await;
    assert_eq!((answers[0].as_deref().unwrap(), model.calls()), ("hi", 3));

    let model = down().repeat();
    let options = json!({
        "name": "m", "consecutive": 1, "window_seconds": 60, "minimum_calls": 9, "probes": 2,
        "open_for_seconds": 0.5, "longest_open_seconds": 1,
        "slow": {"first_content_seconds": 9, "rate": 0.5},
    });
    let answers = twice("circuit-breaker", options, &model).await;
    let code = answers[1].as_ref().unwrap_err().code();
    assert_eq!((code, model.calls()), (Some("circuit_open"), 1));

    let model = hi().repeat();
    let options = json!({
        "requests": 1, "input_tokens": 1_000, "output_tokens": 1_000, "per_seconds": 3_600,
        "wait_seconds": 0, "queue": 1, "follow_provider": false, "ignore_cached_input": true,
    });
    let answers = twice("rate-limit", options, &model).await;
    let kind = answers[1].as_ref().unwrap_err().kind();
    assert_eq!((kind, model.calls()), (ErrorKind::RateLimited, 1));

    for (options, calls) in [
        (json!({"scope": "shared"}), 1),
        (
            json!({"scope": "shared", "ttl_seconds": 9, "tool_calls": true}),
            1,
        ),
        (json!({"scope": "run"}), 2),
        (json!({"scope": "thread"}), 2),
        (json!({"scope": "tenant"}), 2),
        (json!({"scope": "shared", "ttl_seconds": 0}), 2),
        (json!({"scope": "shared", "max_bytes": 1}), 2),
        (json!({"scope": "shared", "total_bytes": 0}), 2),
    ] {
        let model = hi().repeat();
        drop(twice("response-cache", options.clone(), &model).await);
        assert_eq!(model.calls(), calls, "{options}");
    }
}

#[tokio::test]
async fn the_content_of_calls_is_configured() {
    let model = ScriptedModel::new()
        .text("I am bob@example.com, T-8")
        .repeat();
    let mut options = json!({
        "rules": ["secrets", "email"],
        "patterns": [{"name": "ticket", "pattern": "T-[0-9]", "replace": "a ticket"}],
        "input": ["user", "system"],
        "output": ["text"],
        "limit": 1_024,
    });
    let answers = twice("guard", options.clone(), &model).await;
    assert_eq!(answers[0].as_deref().unwrap(), "I am [email], a ticket");
    let sent = model
        .request(0)
        .transcript
        .last()
        .unwrap()
        .as_message()
        .text();
    assert_eq!(sent, "I am [email], a ticket");
    options["input"] = json!([]);
    options["flag"] = json!(["email"]);
    options["block"] = json!(["ticket"]);
    let answers = twice("guard", options.clone(), &model).await;
    assert_eq!(
        answers[0].as_ref().unwrap_err().kind(),
        ErrorKind::ContentFilter
    );
    options["block_with"] = json!("No.");
    let answers = twice("guard", options, &model).await;
    assert!(answers[0].as_deref().unwrap().ends_with("No."));
    let sent = model
        .request(2)
        .transcript
        .last()
        .unwrap()
        .as_message()
        .text();
    assert_eq!(sent, "I am ann@example.com, T-7");

    let options = json!({
        "documents": [{"id": "a", "text": "Be brief."}, {"id": "b", "text": "Be kind."}],
        "reference": true,
        "max_bytes": 1_024,
    });
    let model = ScriptedModel::new().text("hi").repeat();
    twice("static-memory", options, &model).await[0]
        .as_ref()
        .unwrap();
    let system = model.request(0).system.text();
    assert!(
        system.contains("Be brief.") && system.contains("Be kind."),
        "{system}"
    );
    assert!(system.contains("reference material"), "{system}");
}

/// The conversation that a model receives of ten exchanges and a round with a long result.
async fn sent(name: &str, options: Value) -> String {
    let model = ScriptedModel::new().text("hi");
    let agent = Registry::builtin().build(one(name, options), NoTools);
    let agent: BoxModel = agent.unwrap().layer(model.clone());
    let mut all: Transcript = (0..10)
        .flat_map(|n| [Turn::user(format!("{n}?")), assistant("Yes.")])
        .collect();
    all.push(round("look", &["x".repeat(400).as_str()]));
    all.extend([assistant("Seen."), Turn::user("Now?")]);
    let answer = agent.oneshot(ChatRequest::new(all)).await.unwrap();
    answer.collect().await.unwrap();
    serde_json::to_string(&model.request(0).transcript).unwrap()
}

#[tokio::test]
async fn the_length_of_conversations_is_configured() {
    for (by, limit) in [("turns", 10), ("messages", 11), ("tokens", 110)] {
        let options = json!({
            "by": by, "limit": limit, "head": 1, "marker": "(left out)",
            "drop_reasoning": 1, "drop_media": 1,
        });
        let sent = sent("trim", options).await;
        let has = ["0?", "(left out)", "1?", "Now?"].map(|text| sent.contains(text));
        assert_eq!(has, [true, true, false, true], "{by}");
    }
    let long = "x".repeat(400);
    for (options, is_cleared) in [
        (json!({}), false),
        (
            json!({"trigger": 50, "keep": 0, "placeholder": "gone", "inputs": true}),
            true,
        ),
        (
            json!({"trigger": 50, "keep": 0, "placeholder": "gone", "except": ["look"]}),
            false,
        ),
        (
            json!({"trigger": 50, "keep": 0, "clear_at_least": 1_000}),
            false,
        ),
        (json!({"trigger": 50, "keep": 1}), false),
    ] {
        let sent = sent("clear-results", options.clone()).await;
        assert_eq!(sent.contains(&long), !is_cleared, "{options}");
        assert_eq!(sent.contains("gone"), is_cleared, "{options}");
    }
}

#[tokio::test]
async fn the_layers_of_tools_are_configured() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let look = tool("look", "", move |NoArguments {}| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { "seen" }
    });
    let tools = Toolset::new().tool(look);
    let cache = json!({
        "scope": "run", "tools": ["look"], "ttl_seconds": 60, "entries": 9, "max_bytes": 99,
    });
    let document = json!({"layers": [
        {"use": "tool-cache", "options": cache},
        {"use": "otel", "options": {"content": 9}},
        {"use": "agent"},
        {"use": "otel"},
    ]});
    let look = || ScriptedModel::new().tool_call("look", json!({})).then();
    let model = look().tool_call("look", json!({})).then().text("hi");
    let agent = Registry::builtin().build(document, tools).unwrap();
    let agent: BoxModel = agent.layer(model);
    let described = agent.describe();
    let layers = |name: &str| described.matches(name).count();
    assert_eq!(layers("OtelService"), 2, "{described}");
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "hi");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn an_error_of_a_layer_names_its_options() {
    for (document, key, part) in [
        (one("guard", json!({"rules": ["emial"]})), "", "`emial`"),
        (
            one("guard", json!({"rules": ["pii"], "block": ["aws"]})),
            "",
            "`aws`",
        ),
        (
            one(
                "guard",
                json!({"patterns": [{"name": "a", "pattern": "("}]}),
            ),
            "",
            "`a`",
        ),
        (
            one("guard", json!({"output": ["texts"]})),
            ".output[0]",
            "texts",
        ),
        (one("rate-limit", json!({})), "", "required"),
        (
            one("rate-limit", json!({"requests": 1, "per_seconds": -1})),
            ".per_seconds",
            "-1",
        ),
        (one("response-cache", json!({})), "", "scope"),
        (
            one("response-cache", json!({"scope": "all"})),
            ".scope",
            "all",
        ),
        (
            one("tool-cache", json!({"scope": "run", "ttl_seconds": "1s"})),
            ".ttl_seconds",
            "1s",
        ),
        (
            one(
                "circuit-breaker",
                json!({"name": "m", "failure_rate": 0.5, "consecutive": 1}),
            ),
            "",
            "exclude each other",
        ),
        (
            one("circuit-breaker", json!({"name": "m", "failure_rate": 2})),
            ".failure_rate",
            "2",
        ),
        (one("retry", json!({"attempts": 0})), ".attempts", "0"),
        (
            one("retry", json!({"attempts": 1, "backoff_seconds": [1]})),
            ".backoff_seconds",
            "1",
        ),
        (
            one("trim", json!({"by": "bytes", "limit": 1})),
            ".by",
            "bytes",
        ),
        (one("trim", json!({"by": "turns"})), "", "limit"),
        (
            one(
                "static-memory",
                json!({"documents": [{"id": "a", "text": ""}, {"id": "a", "text": ""}]}),
            ),
            "",
            "two documents `a`",
        ),
    ] {
        let text = error(document);
        let key = format!("`layers[1].options{key}`: ");
        assert!(text.starts_with(&key) && text.contains(part), "{text}");
    }
}
