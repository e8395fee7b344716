//! Interrupts and replies, between a client that stores the history and an agent with approvals.

mod history;
mod ids;
mod messages;
mod overwritten;
mod redelivery;
mod replies;
mod stored;
mod unanswerable;
mod unanswered;

use crate::support::{
    client::{Client, answer, approved, end},
    send, types,
};
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Error, Event, FinishReason, ReplyKind,
    ThreadId, ToolCallPart, Turn, Usage,
    store::{Once, Resumable, RunStore, StoreFuture, Tenant},
};
use concentric_http::ag_ui::AgUiLayer;
use concentric_layers::{
    SuspendLayer,
    session::{MakeSession, SessionTarget},
};
use concentric_store::{MemoryStore, SqliteStore};
use concentric_tools::{
    Approval, ApprovalTokens, Tool, ToolError, Toolset, agent_tool, token::TokenKeys, tool,
};
use futures_util::stream;
use serde_json::{Map, Value, json};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{Layer, Service, ServiceExt, service_fn};

/// The executed tools, with their arguments.
#[derive(Clone, Default)]
pub struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn tool(&self, name: &'static str) -> Tool {
        let ran = self.clone();
        tool(name, "A tool.", move |arguments: Map<String, Value>| {
            let line = format!("{name} {}", Value::Object(arguments));
            ran.0.lock().unwrap().push(line);
            async move { Ok::<_, ToolError>(format!("{name} is done")) }
        })
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// An in-memory store of used keys.
#[derive(Clone, Default)]
struct Used(Arc<Mutex<HashSet<(Tenant, String)>>>);

impl Once for Used {
    fn once(&self, tenant: Tenant, key: concentric_core::Str, _: Duration) -> StoreFuture<bool> {
        let new = self.0.lock().unwrap().insert((tenant, key.to_string()));
        Box::pin(async move { Ok(new) })
    }
}

/// `refund` and `mail` require approval, `note` and `look` do not; `look` is read-only.
pub fn tools(ran: &Ran) -> Toolset {
    Toolset::new()
        .tool(ran.tool("refund"))
        .tool(ran.tool("mail"))
        .tool(ran.tool("note"))
        .tool(ran.tool("look").read_only())
        .gate(Approval::for_tools(["refund", "mail"]).replies([
            ReplyKind::Approve,
            ReplyKind::Deny,
            ReplyKind::Edit,
            ReplyKind::Answer,
        ]))
}

pub fn with_tokens(ran: &Ran) -> Toolset {
    let keys = TokenKeys::new("k", vec![7; 32]).unwrap();
    tools(ran).tokens(ApprovalTokens::new(keys, "test", Used::default()))
}

pub type Calls = Vec<(&'static str, &'static str, Value)>;

/// A model that makes `calls`, and then writes their outcomes as text.
fn model(
    calls: Calls,
) -> impl Service<
    ChatRequest,
    Response = ChatResponse<crate::support::Script>,
    Error = Error,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    service_fn(move |request: ChatRequest| {
        let results = request.transcript.last().map_or(&[][..], Turn::results);
        let mut events: Vec<Event> = match results {
            [] => calls
                .iter()
                .map(|(id, name, arguments)| {
                    let arguments = arguments.to_string();
                    Event::tool_call(ToolCallPart::new(CallId::new(*id), *name, arguments))
                })
                .collect(),
            results => {
                let outcomes = results.iter().map(|result| {
                    let outcome = &result.outcome;
                    format!("[{:?}: {}]", outcome.status, outcome.content.text())
                });
                vec![Event::text(outcomes.collect::<String>())]
            }
        };
        events.push(Event::finish(FinishReason::Stop, Usage::new(1, 1)));
        let body: Vec<_> = events.into_iter().map(Ok).collect();
        async move { Ok(ChatResponse::new(stream::iter(body))) }
    })
}

pub fn agent(tools: Toolset, calls: Calls) -> BoxModel {
    BoxModel::new(AgentLayer::new(tools).layer(model(calls)))
}

pub fn refund() -> Calls {
    vec![("call_0", "refund", json!({"order": 7}))]
}

/// The codes of the `approval-invalid` events.
fn invalid(events: &[Value]) -> Vec<&str> {
    let custom = events.iter().filter(|e| e["name"] == "approval-invalid");
    custom
        .map(|e| e["value"]["code"].as_str().unwrap())
        .collect()
}

async fn interrupted(agent: &BoxModel) -> Client {
    let mut client = Client::new();
    let events = client.run(agent, json!([])).await;
    assert_eq!(end(&events)["outcome"]["type"], "interrupt", "{events:?}");
    client
}

/// The agent with a store for its runs.
pub fn stored(agent: BoxModel) -> (BoxModel, MemoryStore) {
    let store = MemoryStore::new();
    let layer = SuspendLayer::new(Arc::new(store.clone()));
    (BoxModel::new(layer.layer(agent)), store)
}

/// Each kind of store.
pub fn stores() -> Vec<(tempfile::TempDir, Arc<dyn RunStore>)> {
    let file = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(file.path().join("runs.db")).unwrap();
    vec![
        (tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new())),
        (file, Arc::new(sqlite)),
    ]
}

pub fn kept(agent: BoxModel, store: &Arc<dyn RunStore>) -> BoxModel {
    BoxModel::new(SuspendLayer::new(Arc::clone(store)).layer(agent))
}

/// The number of runs of the client's conversation that have not ended.
async fn open(store: &Arc<dyn RunStore>) -> usize {
    let open = store.list_by_thread(Tenant::default(), ThreadId::new("t"), None, usize::MAX);
    open.await.unwrap().len()
}

fn mixed(ran: &Ran) -> (BoxModel, Client) {
    let calls = vec![
        ("call_0", "refund", json!({})),
        ("call_1", "confirm", json!({})),
    ];
    let agent = agent(with_tokens(ran), calls);
    let mut client = Client::new();
    client.tools = json!([{"name": "confirm", "description": "Asks the user."}]);
    (agent, client)
}
