//! The agent: a model that decides by the transcript what to say, so that another process goes on
//! with it, and tools of every class.

use super::{
    points::Points,
    stores::Pointed,
    world::{Class, Entry, World, call_of},
};
use concentric_core::{
    AgentLayer, Annotations, BoxModel, CallId, ChatRequest, ChatResponse, Context, Environment,
    Error, Event, FinishReason, Interrupt, Role, Str, Suspension, ToolCall, ToolCallPart,
    ToolOutcome, ToolSpec, Usage,
    context::{Clock, Ids, Random, Sleep},
    store::RunClaim,
};
use concentric_layers::SuspendLayer;
use concentric_store::{Options, SqliteStore};
use concentric_tools::{Approval, ApprovalEvent, Tool, ToolError, Toolset, tool_with_context};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tower::{Layer, service_fn};

// ---- time ----

/// The system's, but for a clock that is ahead: to whom a lease of before is over.
pub fn ahead(clock: Ahead) -> Environment {
    Environment::new(clock, SystemIds, SystemRandom)
}

#[derive(Clone, Copy)]
pub struct Ahead(pub Duration);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + self.0
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Environment::system().clock().sleep(duration)
    }
}

struct SystemIds;

impl Ids for SystemIds {
    fn next(&self, prefix: &str) -> Str {
        // A world has one run, which a host finds by what it is stored under.
        if prefix == "stored_" {
            return Str::from_static("stored_run");
        }
        Environment::system().ids().next(prefix)
    }
}

pub struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        Environment::system().random().next_u64()
    }
}

// ---- the model ----

/// The calls of one answer: tools and their calls' ids.
pub type Calls = &'static [(&'static str, &'static str)];

/// All classes, with and without an approval; in the third round a tool that asks by itself.
pub const ALL: &[Calls] = &[
    &[
        ("look", "a_look"),
        ("note", "a_note"),
        ("pay", "a_pay"),
        ("mail", "a_mail"),
        ("order", "a_order"),
    ],
    &[
        ("look", "b_look"),
        ("note", "b_note"),
        ("refund", "b_refund"),
        ("wire", "b_wire"),
        ("order", "b_order"),
    ],
    &[("confirm", "c_confirm")],
];

/// One call, which is asked about.
pub const ONE: &[Calls] = &[&[("wire", "wire")]];

/// One call of a tool that asks by itself.
pub const CONFIRM: &[Calls] = &[&[("confirm", "confirm")]];

pub fn script(name: &str) -> &'static [Calls] {
    match name {
        "all" => ALL,
        "one" => ONE,
        "confirm" => CONFIRM,
        other => panic!("{other}"),
    }
}

/// The class of a call's tool.
pub fn class_of(tool: &str) -> Class {
    match tool {
        "look" => Class::ReadOnly,
        "note" => Class::Idempotent,
        "pay" | "refund" => Class::Keyed,
        _ => Class::AtMostOnce,
    }
}

pub fn model(script: &'static [Calls], points: Points) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let points = points.clone();
        async move {
            let said = request.transcript.iter();
            let said = said.filter(|turn| turn.as_message().role == Role::Assistant);
            let step = said.count();
            points.hit(&format!("model.{step}:before"));
            let mut events: Vec<Event> = match script.get(step) {
                Some(calls) => calls.iter().map(call).collect(),
                None => vec![Event::text("done")],
            };
            let reason = match step < script.len() {
                true => FinishReason::ToolCalls,
                false => FinishReason::Stop,
            };
            events.push(Event::finish(reason, Usage::new(1, 1)));
            let body = stream::iter(events.into_iter().map(move |event| {
                if event.is_finish() {
                    points.hit(&format!("model.{step}:finish"));
                }
                Ok(event)
            }));
            Ok::<_, Error>(ChatResponse::new(body))
        }
    }))
}

fn call((tool, id): &(&'static str, &'static str)) -> Event {
    let arguments = json!({"what": id}).to_string();
    Event::tool_call(ToolCallPart::new(
        CallId::new(*id),
        *tool,
        arguments.as_str(),
    ))
}

// ---- the tools ----

#[derive(Deserialize, JsonSchema)]
struct What {
    what: String,
}

#[derive(Clone)]
struct Hands {
    world: World,
    points: Points,
}

impl Hands {
    /// What each tool does.
    async fn work(&self, class: Class, call: &str, context: &Context) -> Result<String, ToolError> {
        let key = context.idempotency_key().unwrap().to_string();
        self.points.hit(&format!("tool.{call}:before"));
        let fence = RunClaim::of(context).map_or(0, |claim| claim.fence);
        self.world.log(&Entry::Started {
            call: call.to_owned(),
            class,
            key: key.clone(),
            fence,
        });
        // Others of the round get their turn.
        tokio::task::yield_now().await;
        self.points.hit(&format!("tool.{call}:effect"));
        let did = self.world.act(class, call, &key);
        self.points.hit(&format!("tool.{call}:after"));
        match did {
            true => Ok(format!("{call}: done")),
            false => Err(ToolError::new(format!("{call}: not done, it was given up"))),
        }
    }

    fn tool(&self, name: &'static str) -> Tool {
        let (hands, class) = (self.clone(), class_of(name));
        let work = move |What { what }, context: Context| {
            let hands = hands.clone();
            async move { hands.work(class, &what, &context).await }
        };
        let tool = tool_with_context(name, "Does it.", work);
        let mut annotations = Annotations::default();
        annotations.idempotent = class == Class::Idempotent;
        match class {
            Class::ReadOnly => tool.read_only(),
            Class::Idempotent => tool.annotations(annotations),
            Class::Keyed => tool.keyed(),
            Class::AtMostOnce => tool,
        }
    }

    /// Finds out by itself what came of a call.
    async fn reconcile(&self, call: &ToolCall) -> ToolOutcome {
        let key = call.context.idempotency_key().unwrap();
        let (did, id) = (self.world.inquire(&key), call_of(&key));
        self.world.log(&Entry::Reconciled {
            call: id.to_owned(),
            did,
        });
        match did {
            true => ToolOutcome::done(format!("{id}: found done")),
            false => ToolOutcome::failed(format!("{id}: found not done")),
        }
    }

    /// Asks by itself before it does anything.
    async fn confirm(&self, call: ToolCall) -> Result<ToolOutcome, Error> {
        let id = call.id().as_str();
        if call.resumed().is_none() {
            self.points.hit(&format!("tool.{id}:asks"));
            let question = call.context.interrupt_id().unwrap();
            let question = Interrupt::new(question, "confirm").about(call.id().clone());
            return Err(Error::suspended(Suspension::new(vec![question])));
        }
        let work = self.work(Class::AtMostOnce, id, &call.context).await;
        Ok(match work {
            Ok(text) => ToolOutcome::done(text),
            Err(error) => ToolOutcome::failed(error.message().to_owned()),
        })
    }
}

/// The tools, over nothing that is shared by processes but the world.
pub fn tools(world: &World, points: &Points) -> Toolset {
    let hands = Hands {
        world: world.clone(),
        points: points.clone(),
    };
    let reconciling = hands.clone();
    let asking = hands.clone();
    let confirm = ToolSpec::new("confirm", "Does it.", json!({"type": "object"}));
    let watcher = world.clone();
    let approval = Approval::for_tools(["refund", "wire"]).on_approval(move |event| {
        if let ApprovalEvent::Approved { call } = event {
            watcher.log(&Entry::Approved(call.id().to_string()));
        }
    });
    let order = hands.tool("order").reconcile(move |call| {
        let hands = reconciling.clone();
        async move { Some(hands.reconcile(&call).await) }
    });
    ["look", "note", "pay", "mail", "refund", "wire"]
        .into_iter()
        .map(|name| hands.tool(name))
        .collect::<Toolset>()
        .tool(order)
        .tool(Tool::new(
            confirm,
            service_fn(move |call: ToolCall| {
                let hands = asking.clone();
                async move { hands.confirm(call).await }
            }),
        ))
        .gate(approval)
}

// ---- the stack ----

/// How long a process that is killed is thought alive.
pub const LEASE: Duration = Duration::from_secs(30);

/// The store keeps the time of `clock`.
pub fn store(world: &World, points: &Points, clock: Ahead) -> Pointed {
    let inner = SqliteStore::open_with(world.file("runs.db"), Options::new().clock(clock)).unwrap();
    points.writes_to(&inner);
    Pointed {
        inner,
        points: points.clone(),
        world: world.clone(),
    }
}

/// The agent without a store of runs: the host keeps the state.
pub fn bare(script: &'static [Calls], store: &Pointed) -> BoxModel {
    let (world, points) = (&store.world, &store.points);
    let tools = tools(world, points)
        .ledger(store.clone())
        .notify_once(store.clone());
    BoxModel::new(AgentLayer::new(tools).layer(model(script, points.clone())))
}

fn suspend(store: &Pointed) -> SuspendLayer<Pointed> {
    SuspendLayer::new(Arc::new(store.clone())).lease(LEASE)
}

/// Claims abandoned runs.
pub async fn abandoned(
    store: &Pointed,
    environment: &Environment,
    limit: usize,
) -> Vec<ChatRequest> {
    let claimed = suspend(store).claim_abandoned(environment, limit).await;
    claimed.unwrap()
}

pub fn agent(script: &'static [Calls], store: &Pointed) -> BoxModel {
    let suspend = suspend(store);
    BoxModel::new(suspend.layer(bare(script, store)))
}
