//! The agent: one source for all drivers. Its model decides by the transcript, so that any process continues with it.

use crate::world::World;
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Context, Error, ErrorKind, Event,
    FinishReason, Role, ToolCallPart, Usage,
    store::Ledger,
    trace::{Trace, TraceEntry},
};
use concentric_layers::{DurableLayer, DurableTools};
use concentric_tools::{Approval, Tool, ToolError, Toolset, tool_with_context};
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{ServiceBuilder, service_fn};

/// The thread of a context.
fn thread(context: &Context) -> String {
    context.thread_id().unwrap().to_string()
}

/// The rounds of a script: `look+pay;send` has two.
fn rounds(script: &str) -> Vec<Vec<String>> {
    let rounds = script.split(';').filter(|round| !round.is_empty());
    rounds
        .map(|round| round.split('+').map(str::to_owned).collect())
        .collect()
}

/// A model that follows the script in the user's last message: rounds of tool calls, then a text. A round `error`
/// fails, `long` takes 6 seconds, `wide` has a text of 64 KiB.
fn model(world: World) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let world = world.clone();
        async move {
            let thread = thread(&request.context);
            let script = request.transcript.user_message().unwrap().text();
            let said = request.transcript.rev();
            let said = said.take_while(|turn| turn.as_message().role != Role::User);
            let step = said
                .filter(|turn| turn.as_message().role == Role::Assistant)
                .count();
            world.log(&thread, &format!("model {step}"));
            world.point(&thread, &format!("model-{step}:begin"));
            let round = rounds(&script).into_iter().nth(step);
            if round.as_ref().is_some_and(|round| round[0] == "error") {
                return Err(Error::new(
                    ErrorKind::InvalidRequest,
                    "canary-of-a-provider: the request is bad",
                ));
            }
            let is_long = round.as_ref().is_some_and(|round| round[0] == "long");
            let mut events = vec![Event::text(format!("step {step}"))];
            if round.as_ref().is_some_and(|round| round[0] == "wide") {
                events.push(Event::text("w".repeat(64 << 10)));
            }
            let reason = match &round {
                Some(round) => {
                    events.extend(round.iter().enumerate().map(|(at, name)| {
                        let id = format!("{name}_{step}_{at}");
                        let name = match name.as_str() {
                            "long" | "wide" => "look",
                            name => name,
                        };
                        let arguments = json!({ "what": id }).to_string();
                        let part =
                            ToolCallPart::new(CallId::new(id.as_str()), name, arguments.as_str());
                        Event::tool_call(part)
                    }));
                    FinishReason::ToolCalls
                }
                None => FinishReason::Stop,
            };
            events.push(Event::finish(reason, Usage::new(10, 2)));
            let body = stream::iter(events).then(move |event| {
                let (world, thread) = (world.clone(), thread.clone());
                async move {
                    if event.is_finish() {
                        if is_long {
                            tokio::time::sleep(Duration::from_secs(6)).await;
                        }
                        world.point(&thread, &format!("model-{step}:end"));
                    } else {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        world.point(&thread, &format!("model-{step}:middle"));
                    }
                    Ok(event)
                }
            });
            Ok::<_, Error>(ChatResponse::new(body.boxed()))
        }
    }))
}

#[derive(Deserialize, JsonSchema)]
struct What {
    what: String,
}

fn tool(world: &World, name: &'static str) -> Tool {
    let world = world.clone();
    let work = move |What { what }, context: Context| {
        let world = world.clone();
        async move { work(&world, name, &what, &context).await }
    };
    let tool = tool_with_context(name, "Does it.", work);
    match name {
        "look" | "slow" | "stuck" => tool.read_only(),
        "pay" | "refund" => tool.keyed(),
        _ => tool,
    }
}

async fn work(
    world: &World,
    name: &str,
    what: &str,
    context: &Context,
) -> Result<String, ToolError> {
    let thread = thread(context);
    let key = context.idempotency_key().unwrap();
    world.log(&thread, &format!("tool {what}"));
    world.point(&thread, &format!("{what}:begin"));
    // Others of the round get their turn.
    tokio::task::yield_now().await;
    match name {
        "slow" => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.log(&thread, &format!("ended {what}"));
        }
        "stuck" => tokio::time::sleep(Duration::from_secs(600)).await,
        "fail" => return Err(ToolError::new("It did not work.")),
        _ => {}
    }
    world.point(&thread, &format!("{what}:middle"));
    match name {
        "pay" | "refund" if world.once(&key) => world.log(&thread, &format!("effect {what}")),
        "send" => world.log(&thread, &format!("effect {what}")),
        _ => {}
    }
    world.point(&thread, &format!("{what}:end"));
    Ok(format!("{what}: done"))
}

/// The entries of the runs' traces.
pub type Traced = Arc<Mutex<Vec<TraceEntry>>>;

/// The agent, without a driver.
pub fn agent(world: &World, ledger: impl Ledger, traced: &Traced) -> BoxModel {
    let names = [
        "look", "slow", "stuck", "pay", "refund", "brief", "send", "fail",
    ];
    let tools = names.map(|name| tool(world, name));
    let tools: Toolset = tools.into_iter().collect();
    let brief = Approval::for_tools(["brief"]).expires_after(Duration::from_secs(1));
    let tools = tools.gate(Approval::for_tools(["refund"])).gate(brief);
    let tools = tools.ledger(ledger);
    let sink = Arc::clone(traced);
    let trace = Trace::new(move |entry| sink.lock().unwrap().push(entry));
    BoxModel::new(
        ServiceBuilder::new()
            .layer(
                AgentLayer::new(DurableTools::new(tools))
                    .step_limit(12)
                    .with(trace),
            )
            .layer(DurableLayer::new())
            .service(model(world.clone())),
    )
}
