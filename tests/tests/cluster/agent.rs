//! The agent of a worker: a model that decides by the transcript, and tools of three kinds.

use super::{
    history::{Recorder, What},
    load::Settings,
    logged::Logged,
    world::{Class, Entry, World},
};
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Context, Environment, Error, Event,
    FinishReason, Role, Str, ToolCallPart, Usage,
    context::{Clock, Ids, Random, Sleep},
    store::RunClaim,
};
use concentric_layers::{ConversationLayer, SuspendLayer};
use concentric_store::PostgresStore;
use concentric_tools::{Approval, ApprovalEvent, Tool, ToolError, Toolset, tool_with_context};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tower::{Layer, ServiceBuilder, service_fn};

// ---- time ----

/// The clock of a worker, which may be wrong by some seconds.
#[derive(Clone, Default)]
pub struct Wrong(pub Arc<AtomicI64>);

impl Clock for Wrong {
    fn now(&self) -> SystemTime {
        let off = self.0.load(Ordering::Relaxed);
        let by = Duration::from_secs(off.unsigned_abs());
        match off >= 0 {
            true => SystemTime::now() + by,
            false => SystemTime::now() - by,
        }
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Environment::system().clock().sleep(duration)
    }
}

struct SystemIds;

impl Ids for SystemIds {
    fn next(&self, prefix: &str) -> Str {
        Environment::system().ids().next(prefix)
    }
}

struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        Environment::system().random().next_u64()
    }
}

pub fn environment(clock: Wrong) -> Environment {
    Environment::new(clock, SystemIds, SystemRandom)
}

// ---- runs ----

/// What a run does, which is the text of its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The id of its request: that of its conversation, and its place there.
    pub run: String,
    /// Whether a call waits for an approval.
    pub asks: bool,
    pub steps: usize,
}

impl Script {
    pub fn text(&self) -> String {
        let asks = if self.asks { "asks" } else { "plain" };
        format!("{} {asks} {}", self.run, self.steps)
    }

    pub fn read(text: &str) -> Self {
        let words: Vec<_> = text.split(' ').collect();
        let [run, asks, steps] = words[..] else {
            panic!("{text}");
        };
        Self {
            run: run.to_owned(),
            asks: asks == "asks",
            steps: steps.parse().unwrap(),
        }
    }

    /// The calls of a step: tools, and the ids of their calls.
    pub fn calls(&self, step: usize) -> Vec<(&'static str, String)> {
        let tools: &[&str] = match step % 4 {
            _ if step >= self.steps => &[],
            0 => &["look", "pay"],
            1 => &["mail", "look"],
            2 if self.asks && step == 2 => &["wire"],
            2 => &["look"],
            _ => &["pay", "mail"],
        };
        let id = |tool: &str| format!("{}.{step}.{tool}", self.run);
        tools.iter().map(|tool| (*tool, id(tool))).collect()
    }

    /// The text of the answer.
    pub fn answer(&self) -> String {
        format!("done with {}", self.run)
    }
}

pub fn class_of(tool: &str) -> Class {
    match tool {
        "look" => Class::ReadOnly,
        "pay" => Class::Keyed,
        _ => Class::AtMostOnce,
    }
}

fn model(recorder: Recorder, first: Duration) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let recorder = recorder.clone();
        async move {
            recorder.note(What::Step);
            let newest = request.transcript.rev();
            let answers = newest
                .map(|turn| turn.as_message())
                .take_while(|message| message.role != Role::User);
            let step = answers.filter(|it| it.role == Role::Assistant).count();
            let mut newest = request.transcript.rev().map(|turn| turn.as_message());
            let asked = newest.find(|message| message.role == Role::User).unwrap();
            let script = Script::read(&asked.text());
            tokio::time::sleep(first).await;
            let calls = script.calls(step);
            let reason = match calls.is_empty() {
                true => FinishReason::Stop,
                false => FinishReason::ToolCalls,
            };
            let mut events: Vec<Event> = calls.iter().map(call).collect();
            if calls.is_empty() {
                let answer = script.answer();
                events.extend(answer.split_inclusive(' ').map(Event::text));
            }
            events.push(Event::finish(reason, Usage::new(1, 1)));
            let body = stream::unfold(events.into_iter(), async |mut events| {
                let event = events.next()?;
                tokio::time::sleep(Duration::from_millis(5)).await;
                Some((Ok(event), events))
            });
            Ok::<_, Error>(ChatResponse::new(body))
        }
    }))
}

fn call((tool, id): &(&'static str, String)) -> Event {
    let arguments = json!({"what": id}).to_string();
    let id = CallId::new(id.as_str());
    Event::tool_call(ToolCallPart::new(id, *tool, arguments.as_str()))
}

// ---- tools ----

#[derive(Deserialize, JsonSchema)]
struct What_ {
    what: String,
}

/// Does what a tool of this class does, in some milliseconds.
async fn work(
    world: &World,
    class: Class,
    call: &str,
    context: &Context,
) -> Result<String, ToolError> {
    let key = context.idempotency_key().unwrap().to_string();
    let fence = RunClaim::of(context).map_or(0, |claim| claim.fence);
    world.log(&Entry::Started {
        call: call.to_owned(),
        class,
        key: key.clone(),
        fence,
    });
    let pause = || {
        let random = Environment::system().random().next_u64();
        tokio::time::sleep(Duration::from_millis(random % 30))
    };
    pause().await;
    let did = world.act(class, call, &key);
    pause().await;
    match did {
        true => Ok(format!("{call}: done")),
        false => Err(ToolError::new(format!("{call}: not done, it was given up"))),
    }
}

fn tool(world: &World, name: &'static str) -> Tool {
    let (world, class) = (world.clone(), class_of(name));
    let tool = tool_with_context(name, "Does it.", move |What_ { what }, context: Context| {
        let world = world.clone();
        async move { work(&world, class, &what, &context).await }
    });
    match class {
        Class::ReadOnly => tool.read_only(),
        Class::Keyed => tool.keyed(),
        Class::Idempotent | Class::AtMostOnce => tool,
    }
}

fn tools(world: &World, store: &PostgresStore) -> Toolset {
    let watcher = world.clone();
    let approval = Approval::for_tools(["wire"]).on_approval(move |event| {
        if let ApprovalEvent::Approved { call } = event {
            watcher.log(&Entry::Approved(call.id().to_string()));
        }
    });
    ["look", "pay", "mail", "wire"]
        .into_iter()
        .map(|name| tool(world, name))
        .collect::<Toolset>()
        .gate(approval)
        .ledger(store.clone())
        .notify_once(store.clone())
}

/// The layer that stores the runs, and the whole agent.
pub fn agent(
    world: &World,
    store: &Logged,
    settings: &Settings,
) -> (SuspendLayer<Logged>, BoxModel) {
    let suspend = SuspendLayer::new(Arc::new(store.clone())).lease(settings.lease);
    let agent = ServiceBuilder::new()
        .layer(ConversationLayer::new(store.inner.clone()).required())
        .layer(AgentLayer::new(tools(world, &store.inner)))
        .service(model(store.recorder.clone(), settings.first_token));
    let agent = BoxModel::new(suspend.layer(agent));
    (suspend, agent)
}
