//! Plugins of agents.

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, ErrorKind, NoTools, Outcome, Plugin, ToolOutcome,
    agent::{Installer, WithTools},
    gate::{Verdict, gate_fn},
};
use concentric_test::{ScriptedModel, assert_fails};
use concentric_tools::{LazyTools, NoArguments, Skill, Skills, Toolset, output, tool};
use serde_json::json;
use tower::{Layer, ServiceExt, layer::layer_fn};

/// A gate of each tool call.
struct Denies;

impl Plugin for Denies {
    fn install(self, at: &mut Installer<'_>) {
        at.gate(gate_fn("denies", |_| Verdict::deny("not today")));
    }
}

/// A layer of each tool call.
struct Passes;

impl Plugin for Passes {
    fn install(self, at: &mut Installer<'_>) {
        at.tool_layer(layer_fn(|tool| tool));
    }
}

fn look() -> Toolset {
    Toolset::new().tool(tool("look", "", |NoArguments {}| async { "seen" }))
}

/// The error code of a run.
async fn code(agent: BoxModel) -> Option<String> {
    let error = match agent.oneshot(ChatRequest::user("hi")).await {
        Ok(answer) => assert_fails(answer.body).await.1,
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Configuration);
    error.code().map(str::to_owned)
}

fn answers() -> ScriptedModel {
    ScriptedModel::new().text("hi")
}

#[tokio::test]
async fn tools_without_a_place_for_a_plugin_fail_each_run() {
    let tools = || WithTools::new(NoTools, NoTools);
    let gated = AgentLayer::new(tools()).with(Denies).layer(answers());
    assert_eq!(code(gated).await.as_deref(), Some("plugin"));
    let layered = AgentLayer::new(tools()).with(Passes).layer(answers());
    assert_eq!(code(layered).await.as_deref(), Some("plugin"));
}

#[tokio::test]
async fn an_agent_without_tools_accepts_layers_and_gates() {
    let agent = AgentLayer::new(NoTools).with(Denies).with(Passes);
    let answer = agent
        .layer(answers())
        .oneshot(ChatRequest::user("hi"))
        .await;
    assert_eq!(answer.unwrap().text().await.unwrap(), "hi");
}

#[tokio::test]
async fn a_gate_of_a_plugin_decides_about_tool_calls() {
    let model = ScriptedModel::new().tool_call("look", json!({})).then();
    let agent = AgentLayer::new(look()).with(Denies).with(Passes);
    let agent = agent.layer(model.text("No."));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let answer = answer.collect().await.unwrap();
    let transcript = answer.transcript().unwrap();
    let results: Vec<_> = transcript
        .into_iter()
        .flat_map(|turn| turn.results())
        .collect();
    assert_eq!(results[0].outcome, ToolOutcome::denied("not today"));
}

#[tokio::test]
async fn plugins_that_change_tools_require_a_toolset() {
    let lazy = AgentLayer::new(NoTools).with(LazyTools::new("look"));
    assert_eq!(code(lazy.layer(answers())).await.as_deref(), Some("plugin"));
    let skills = AgentLayer::new(NoTools).with(Skills::new());
    assert_eq!(
        code(skills.layer(answers())).await.as_deref(),
        Some("plugin")
    );
}

#[tokio::test]
async fn invalid_skills_fail_each_run() {
    let skill = || Skill::new("one", "Does one thing.", "Do it.");
    let skills = Skills::new().skills([skill(), skill()]);
    let agent = AgentLayer::new(look()).with(skills).layer(answers());
    code(agent).await;
}

#[tokio::test]
async fn lazy_tools_as_a_plugin_hide_tools_until_they_are_found() {
    let model = ScriptedModel::new()
        .tool_call("find_tools", json!({"query": "look"}))
        .then()
        .text("Found.");
    let lazy = AgentLayer::new(look()).with(LazyTools::new("look"));
    let agent = lazy.layer(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "Found.");
    let offered = model.requests().into_iter().map(|request| {
        let names = request.tools.iter().map(|spec| spec.name.to_string());
        names.collect::<Vec<_>>()
    });
    let expected = [vec!["find_tools"], vec!["find_tools", "look"]];
    assert_eq!(offered.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_typed_answer_as_a_plugin_is_requested_again() {
    let model = ScriptedModel::new().text("none").then().text("7");
    let agent = AgentLayer::new(NoTools).with(output::<u8>("number"));
    let answer = agent
        .layer(model.clone())
        .oneshot(ChatRequest::user("hi"))
        .await;
    let answer = answer.unwrap().collect().await.unwrap();
    assert_eq!(answer.finish.outcome, Outcome::Completed);
    assert_eq!(output::<u8>("number").of_answer(&answer).unwrap(), 7);
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_plugin_reads_the_tools_of_earlier_plugins() {
    /// Checks the names of the tools.
    struct Reads(&'static [&'static str]);

    impl Plugin for Reads {
        fn install(self, at: &mut Installer<'_>) {
            let specs = at.specs();
            let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            assert_eq!(names, self.0);
        }
    }

    let agent = AgentLayer::new(look())
        .with(Reads(&["look"]))
        .with(LazyTools::new("look"))
        .with(Reads(&["look", "find_tools"]));
    drop(agent);
}
