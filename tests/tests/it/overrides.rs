//! What one run has beyond its agent: each override at each place is applied, or fails the run.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, ChatRequest, Error, ErrorKind, Message, NoTools, Part,
    PartKind, Role, RunOverrides, ToolCall, ToolCallPart, ToolSpecs,
    agent::{StepDecision, StepDraft, StepGate, WithTools},
    hooks::Interest,
};
use concentric_layers::{Next, NextTool, from_fn, tool_from_fn};
use concentric_test::ScriptedModel;
use concentric_tools::{
    Approval, NoArguments, Tool, ToolLifecycle, Toolset, Verdict, agent_tool, gate_fn, tool,
};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tower::{Layer, ServiceExt};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Gate,
    StepGate,
    ModelLayer,
    ToolLayer,
    Tool,
    Shadow,
}

use Kind::{Gate, ModelLayer, Shadow, ToolLayer};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn tool(&self, name: &'static str, says: &'static str) -> Tool {
        let log = self.clone();
        tool(name, "", move |NoArguments {}| {
            log.add(says);
            async { "done" }
        })
    }
}

impl StepGate for Log {
    fn name(&self) -> &str {
        "log"
    }

    fn interest(&self) -> Interest {
        Interest::BEFORE_STEP
    }

    async fn before_step(&self, _: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.add("step");
        Ok(StepDecision::Continue)
    }
}

fn overrides(kind: Kind, log: &Log) -> RunOverrides {
    let (own, log) = (RunOverrides::new(), log.clone());
    match kind {
        Gate => own.gate(gate_fn("log", move |call: &ToolCall| {
            log.add(format!("gate {}", call.name()));
            Verdict::Pass
        })),
        Kind::StepGate => own.step_gate(log),
        ModelLayer => own.model_layer(from_fn(move |request: ChatRequest, mut next: Next| {
            log.add("model");
            async move { next.run(request).await }
        })),
        ToolLayer => own.tool_layer(tool_from_fn(move |call: ToolCall, mut next: NextTool| {
            log.add(format!("layer {}", call.name()));
            async move { next.run(call).await }
        })),
        Kind::Tool => own.tool(log.tool("extra", "extra")),
        Shadow => own.shadow(log.tool("work", "shadow")),
    }
}

/// A model that calls `name`, and then is done.
fn calls(name: &str) -> ScriptedModel {
    let model = ScriptedModel::new().tool_call(name, json!({"task": "go"}));
    model.then().text("done")
}

/// The tool that a run with an override of `kind` calls.
fn called(kind: Kind) -> &'static str {
    match kind {
        Kind::Tool => "extra",
        _ => "work",
    }
}

fn worker(kind: Kind, log: &Log) -> (Toolset, ScriptedModel) {
    let tools = Toolset::new().tool(log.tool("work", "work"));
    (tools, calls(called(kind)))
}

async fn run(agent: BoxModel, kind: Kind, log: &Log) -> Result<(), Error> {
    let request = ChatRequest::user("go").with_overrides(overrides(kind, log));
    let answer = agent.oneshot(request).await?;
    answer.collect().await.map(drop).map_err(Error::from)
}

/// The calls of `log` in a run at each place; `None` if the run fails.
async fn at_each_place(kind: Kind) -> Vec<(&'static str, Option<String>)> {
    let mut all = Vec::new();
    let places = [
        "static",
        "boxed",
        "plugin",
        "as a tool",
        "in the model's place",
        "no tools",
        "specs",
        "with tools",
        "lifecycle",
        "no agent",
    ];
    for place in places {
        let log = Log::default();
        let (tools, model) = worker(kind, &log);
        let ended = match place {
            "lifecycle" => lifecycle(tools, kind, &log).await,
            place => {
                let agent = match place {
                    "static" => BoxModel::new(AgentLayer::new(tools).layer(model)),
                    "boxed" => AgentLayer::new(tools).boxed().layer(model),
                    "plugin" => {
                        let steering = concentric_layers::Steering::new(1);
                        AgentLayer::new(tools).with(steering).layer(model)
                    }
                    "as a tool" => {
                        let inner = AgentLayer::new(tools).boxed().layer(model);
                        let tools = Toolset::new().tool(agent_tool("help", "", inner));
                        AgentLayer::new(tools).boxed().layer(calls("help"))
                    }
                    "in the model's place" => {
                        let inner = AgentLayer::new(tools).boxed().layer(model);
                        AgentLayer::new(Toolset::new()).boxed().layer(inner)
                    }
                    "no tools" => AgentLayer::new(NoTools).boxed().layer(model),
                    "specs" => {
                        let tools = WithTools::new(ToolSpecs::default(), NoTools);
                        AgentLayer::new(tools).boxed().layer(model)
                    }
                    "with tools" => {
                        let tools = WithTools::new(tools.clone(), tools);
                        AgentLayer::new(tools).boxed().layer(model)
                    }
                    _ => BoxModel::new(model),
                };
                run(agent, kind, &log).await
            }
        };
        let lines = log.0.lock().unwrap().join(", ");
        all.push((
            place,
            match ended {
                Ok(()) => Some(lines),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Configuration, "{place}: {error}");
                    assert_eq!(lines, "", "{place}");
                    None
                }
            },
        ));
    }
    all
}

async fn lifecycle(tools: Toolset, kind: Kind, log: &Log) -> Result<(), Error> {
    let own = overrides(kind, log);
    let mut lifecycle = ToolLifecycle::new(tools).with_overrides(own)?;
    let part = ToolCallPart::new(CallId::new("call_1"), called(kind), "{}");
    let part = Part::new(PartKind::ToolCall(part));
    let message = Message::new(Role::Assistant, vec![part]);
    lifecycle.execute_round(message).await.map(drop)
}

#[tokio::test]
async fn each_override_is_applied_at_each_place_or_fails_the_run() {
    let table = [
        (
            Gate,
            [
                Some("gate work, work"),
                Some("gate work, work"),
                Some("gate work, work"),
                Some("gate help, gate work, work"),
                Some("gate work, work"),
                Some(""),
                None,
                Some("gate work, work"),
                Some("gate work, work"),
                None,
            ],
        ),
        (
            Kind::StepGate,
            [
                Some("step, work, step"),
                Some("step, work, step"),
                Some("step, work, step"),
                Some("step, work, step"),
                Some("step, work"),
                Some("step, step"),
                Some("step, step"),
                Some("step, work, step"),
                None,
                None,
            ],
        ),
        (
            ModelLayer,
            [
                None,
                Some("model, work, model"),
                Some("model, work, model"),
                Some("model, work, model"),
                Some("model, work"),
                Some("model, model"),
                Some("model, model"),
                Some("model, work, model"),
                None,
                None,
            ],
        ),
        (
            ToolLayer,
            [
                Some("layer work, work"),
                Some("layer work, work"),
                Some("layer work, work"),
                Some("layer help, work"),
                Some("layer work, work"),
                Some(""),
                None,
                Some("layer work, work"),
                Some("layer work, work"),
                None,
            ],
        ),
        (
            Kind::Tool,
            [
                Some("extra"),
                Some("extra"),
                Some("extra"),
                Some(""),
                Some("extra"),
                None,
                None,
                None,
                Some("extra"),
                None,
            ],
        ),
        (
            Shadow,
            [
                Some("shadow"),
                Some("shadow"),
                Some("shadow"),
                Some("work"),
                // The tool would have the name of a tool of the agent inside.
                None,
                None,
                None,
                None,
                Some("shadow"),
                None,
            ],
        ),
    ];
    for (kind, expected) in table {
        let found = at_each_place(kind).await;
        for ((place, found), expected) in found.iter().zip(expected) {
            assert_eq!(found.as_deref(), expected, "{kind:?}, {place}");
        }
    }
}

#[tokio::test]
async fn a_tool_of_the_run_replaces_one_of_the_agent_only_as_a_shadow() {
    let log = Log::default();
    let (tools, model) = worker(Shadow, &log);
    let agent = AgentLayer::new(tools).layer(model);
    let own = RunOverrides::new().tool(log.tool("work", "own"));
    let request = ChatRequest::user("go").with_overrides(own);
    let error = agent.oneshot(request).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.message().contains("RunOverrides::shadow"), "{error}");
}

#[tokio::test]
async fn overrides_of_a_run_are_not_those_of_the_next() {
    let log = Log::default();
    let (tools, model) = worker(Gate, &log);
    let model = model
        .then()
        .tool_call("work", json!({}))
        .then()
        .text("done");
    let agent = BoxModel::new(AgentLayer::new(tools).layer(model));
    run(agent.clone(), Gate, &log).await.unwrap();
    let answer = agent.oneshot(ChatRequest::user("go")).await.unwrap();
    answer.collect().await.unwrap();
    assert_eq!(log.0.lock().unwrap().join(", "), "gate work, work, work");
}

// An agent's approval may not be loosened by one that another agent inherits to it.
#[tokio::test]
async fn only_the_run_loosens_the_approval_of_a_nested_agent() {
    for (by_run, outcome) in [(false, "Interrupted"), (true, "Completed")] {
        let log = Log::default();
        let (tools, model) = worker(Gate, &log);
        let tools = tools.gate(Approval::for_tools("work").runs_may_allow());
        let inner = AgentLayer::new(tools).layer(model);
        let tools = Toolset::new().tool(agent_tool("help", "", inner));
        let allow = || Approval::new().allow("work");
        let (tools, own) = match by_run {
            true => (tools, RunOverrides::new().gate(allow())),
            false => (tools.gate(allow()), RunOverrides::new()),
        };
        let agent = AgentLayer::new(tools).layer(calls("help"));
        let request = ChatRequest::user("go").with_overrides(own);
        let answer = agent
            .oneshot(request)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        assert_eq!(format!("{:?}", answer.finish.outcome), outcome);
    }
}
