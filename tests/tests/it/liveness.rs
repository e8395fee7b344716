//! Agents in agents whose models and tools are ready at once, a tick later, or emit an event first:
//! none of them spins, and the consumer sees at once what is emitted.

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, Context, CustomEvent, Event, Finish,
    Interrupt, InterruptId, Outcome, Reply,
};
use concentric_layers::{CommitLayer, Emit, Transform, TransformLayer};
use concentric_test::{PACE, Pace, ScriptedModel, ScriptedTools, watched};
use concentric_tools::{Approval, NoArguments, Toolset, agent_tool, tool_with_context};
use futures_util::StreamExt;
use serde_json::json;
use std::time::Duration;
use tower::{Layer, ServiceExt};

/// Longer than a test may take: what is waited for so long is not waited for.
const NEVER: Duration = Duration::from_secs(3_600);

/// Where the agent with the tool stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    InModelsPlace,
    InModelsPlaceTwice,
    AsTool,
    AsToolInModelsPlace,
    UnderEvents,
}

const SHAPES: [Shape; 6] = [
    Shape::Plain,
    Shape::InModelsPlace,
    Shape::InModelsPlaceTwice,
    Shape::AsTool,
    Shape::AsToolInModelsPlace,
    Shape::UnderEvents,
];

fn around(inner: BoxModel) -> BoxModel {
    BoxModel::new(AgentLayer::new(Toolset::new()).layer(inner))
}

fn as_tool(inner: BoxModel, pace: Pace) -> BoxModel {
    let tools = Toolset::new().tool(agent_tool("helper", "", inner));
    BoxModel::new(AgentLayer::new(tools).layer(calls("helper", pace)))
}

/// A model that calls `name`, and then is done.
fn calls(name: &'static str, pace: Pace) -> ScriptedModel {
    ScriptedModel::new()
        .paced(pace)
        .text("Well. ")
        .tool_call(name, json!({ "task": "go" }))
        .then()
        .text("Done.")
}

impl Shape {
    fn of(self, tools: Toolset, pace: Pace) -> BoxModel {
        let agent = BoxModel::new(AgentLayer::new(tools).layer(calls("act", pace)));
        match self {
            Self::Plain => agent,
            Self::InModelsPlace => around(agent),
            Self::InModelsPlaceTwice => around(around(agent)),
            Self::AsTool => as_tool(agent, pace),
            Self::AsToolInModelsPlace => around(as_tool(agent, pace)),
            Self::UnderEvents => {
                let agent = TransformLayer::new(|_: &ChatRequest| Passes).layer(agent);
                around(BoxModel::new(CommitLayer::first_event().layer(agent)))
            }
        }
    }
}

/// A transform that lets all events through.
struct Passes;

impl Transform for Passes {
    fn event(&mut self, event: Event) -> Emit {
        Emit::One(event)
    }
}

/// What a consumer saw of a run.
struct Seen {
    // The names of custom events, of inner runs as well.
    customs: Vec<String>,
    text: String,
    finish: Finish,
}

fn innermost(event: &Event) -> &Event {
    match event {
        Event::SubAgent(inner) => innermost(&inner.event),
        event => event,
    }
}

/// Reads a run to its end, and answers each live question with `reply` when it is seen.
async fn drive(agent: BoxModel, context: Context, reply: impl Fn(InterruptId) -> Reply) -> Seen {
    let request = ChatRequest::user("Go.").with_context(context.clone());
    let mut body = agent.oneshot(request).await.unwrap().body;
    let (mut customs, mut text) = (Vec::new(), String::new());
    loop {
        match body.next().await.unwrap().unwrap() {
            Event::Finish(finish) => {
                return Seen {
                    customs,
                    text,
                    finish: *finish,
                };
            }
            Event::TextDelta(delta) => text.push_str(&delta),
            event => {
                let Event::Custom(custom) = innermost(&event) else {
                    continue;
                };
                if custom.name == "interrupt" {
                    let asked: Interrupt = serde_json::from_value(custom.value.clone()).unwrap();
                    context.reply(reply(asked.id)).unwrap();
                }
                if custom.name != PACE {
                    customs.push(custom.name.to_string());
                }
            }
        }
    }
}

fn note() -> Event {
    Event::Custom(Box::new(CustomEvent::new("note", json!(1))))
}

/// Runs `tools` in each shape, at each pace; the consumer must see exactly `customs`.
fn at_each_place_and_pace(tools: impl Fn(&Context, Pace) -> Toolset, customs: &[&str]) {
    for shape in SHAPES {
        for pace in Pace::ALL {
            let context = Context::new();
            let agent = shape.of(tools(&context, pace), pace);
            let seen = watched(drive(agent, context, Reply::approve));
            assert_eq!(
                seen.finish.outcome,
                Outcome::Completed,
                "{shape:?} {pace:?}"
            );
            assert_eq!(seen.customs, customs, "{shape:?} {pace:?}");
            assert!(seen.text.ends_with("Done."), "{shape:?} {pace:?}");
        }
    }
}

#[test]
fn a_tool_that_emits_and_waits_does_not_stop_its_run() {
    at_each_place_and_pace(
        |_, pace| {
            let act = move |NoArguments {}, context: Context| async move {
                context.emit(note()).unwrap();
                pace.pass(&context).await;
                context.send(note()).await.unwrap();
                pace.pass(&context).await;
                "acted"
            };
            Toolset::new().tool(tool_with_context("act", "", act))
        },
        &["note", "note"],
    );
}

#[test]
fn a_tool_that_sends_more_than_fits_waits_for_the_reader() {
    let notes = vec!["note"; 1_500];
    at_each_place_and_pace(
        |_, pace| {
            let act = move |NoArguments {}, context: Context| async move {
                pace.pass(&context).await;
                for _ in 0..1_500 {
                    context.send(note()).await.unwrap();
                }
                "acted"
            };
            Toolset::new().tool(tool_with_context("act", "", act))
        },
        &notes,
    );
}

#[test]
fn a_question_of_a_tool_is_seen_while_it_waits() {
    at_each_place_and_pace(
        |_, pace| {
            let act = move |NoArguments {}, context: Context| async move {
                pace.pass(&context).await;
                let id = InterruptId::new(context.new_id("ask_"));
                let ask = Interrupt::new(id, "tool_call");
                context.ask(ask, NEVER).await.unwrap();
                pace.pass(&context).await;
                "acted"
            };
            Toolset::new().tool(tool_with_context("act", "", act))
        },
        &["interrupt"],
    );
}

#[test]
fn a_live_approval_is_seen_while_it_waits() {
    at_each_place_and_pace(
        |context, pace| {
            let act = move |NoArguments {}, context: Context| async move {
                pace.pass(&context).await;
                "acted"
            };
            Toolset::new()
                .tool(tool_with_context("act", "", act))
                .gate(Approval::for_tools("act").live(context.live(), NEVER))
        },
        &["interrupt"],
    );
}

#[test]
fn parallel_tools_that_emit_and_wait_all_end() {
    for pace in Pace::ALL {
        let seen = watched(async move {
            let tools = ScriptedTools::new()
                .paced(pace)
                .tool("act", move |call| async move {
                    call.context.send(note()).await.unwrap();
                    pace.pass(&call.context).await;
                    concentric_core::ToolOutcome::done("acted")
                });
            let model = ScriptedModel::new().paced(pace);
            let model = (0..8).fold(model, |model, _| model.tool_call("act", json!({})));
            let agent = AgentLayer::new(tools).layer(model.then().text("Done."));
            drive(around(BoxModel::new(agent)), Context::new(), Reply::approve).await
        });
        assert_eq!(seen.customs.len(), 8, "{pace:?}");
        assert_eq!(seen.text, "Done.");
    }
}

#[test]
fn an_inner_agent_that_waits_is_cancelled_with_the_run() {
    for pace in Pace::ALL {
        for shape in SHAPES {
            let outcome = watched(async move {
                let context = Context::new();
                let act = move |NoArguments {}, context: Context| async move {
                    context.emit(note()).unwrap();
                    pace.pass(&context).await;
                    context.emit(note()).unwrap();
                    std::future::pending::<&str>().await
                };
                let tools = Toolset::new().tool(tool_with_context("act", "", act));
                let request = ChatRequest::user("Go.").with_context(context.clone());
                let response = shape.of(tools, pace).oneshot(request).await.unwrap();
                let mut body = response.body;
                let mut notes = 0;
                loop {
                    let event = body.next().await.unwrap().unwrap();
                    match innermost(&event) {
                        Event::Custom(custom) if custom.name == "note" => {
                            notes += 1;
                            if notes == 2 {
                                context.cancel(CancelReason::User);
                            }
                        }
                        _ => {}
                    }
                    if let Event::Finish(finish) = event {
                        return finish.outcome;
                    }
                }
            });
            let reason = CancelReason::User;
            assert_eq!(outcome, Outcome::Aborted { reason }, "{shape:?} {pace:?}");
        }
    }
}
