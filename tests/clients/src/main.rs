//! Serves an agent to the page of `use_chat.mjs`. Its answer depends on the first word of the user's last message.
//!
//! The working directory has its runs, `runs.db`, and the effects of its tools, `effects.txt`. The argument is the
//! address to listen on; the program prints it once it listens.

use axum::{Router, routing::post};
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Context, CustomEvent, Error, Event,
    EventStream, FinishReason, ToolCallPart, Turn, Usage,
};
use concentric_http::{ag_ui::EventLogLayer, ui_messages::UiMessagesLayer};
use concentric_layers::{ConversationLayer, DetachLayer, SuspendLayer, conversation::Merge};
use concentric_store::SqliteStore;
use concentric_tools::{Approval, Json, NoArguments, ToolError, Toolset, tool, tool_with_context};
use futures_util::{StreamExt, future::pending, stream};
use serde_json::{Map, Value, json};
use std::{
    env,
    fs::OpenOptions,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{net::TcpListener, sync::Semaphore};
use tower::{Layer, ServiceBuilder, service_fn};

/// A part of a scripted answer.
enum Script {
    Event(Event),
    /// The answer continues after the next request to `/next`.
    Pause,
}
use Script::Pause;

/// The pauses that may end.
static NEXT: Semaphore = Semaphore::const_new(0);
/// The answers without a tool so far.
static ANSWERS: AtomicUsize = AtomicUsize::new(0);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = env::args()
        .nth(1)
        .ok_or("usage: concentric-clients ADDRESS")?;
    let (store, log) = (SqliteStore::open("runs.db")?, EventLogLayer::new());
    let agent = ServiceBuilder::new()
        .layer(DetachLayer::new())
        .layer(log.clone())
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(ConversationLayer::new(store.clone()).history(Merge::ServerWins))
        .layer(AgentLayer::new(tools(store)))
        .service(service_fn(async |request: ChatRequest| {
            Ok::<_, Error>(answer(&request))
        }));
    let app = Router::new()
        .route("/next", post(async || NEXT.add_permits(1)))
        .nest_service(
            "/chat",
            UiMessagesLayer::new()
                .events(&log)
                .layer(BoxModel::new(agent)),
        );
    let listener = TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

fn tools(store: SqliteStore) -> Toolset {
    let look = tool(
        "look",
        "Looks at a place.",
        async |place: Map<String, Value>| Ok::<_, ToolError>(Json(json!({"saw": place}))),
    );
    let pay = tool(
        "pay",
        "Pays an amount.",
        async |amount: Map<String, Value>| {
            let amount = Value::Object(amount);
            record(&format!("paid {amount}"))?;
            Ok::<_, ToolError>(Json(json!({"paid": amount})))
        },
    );
    let wait = tool_with_context(
        "wait",
        "Waits.",
        async |_: NoArguments, context: Context| {
            record("wait began")?;
            let _cancelled = Cancelled;
            let progress = CustomEvent::new("progress", json!({"percent": 10}));
            context.emit(progress)?;
            pending::<Result<&str, ToolError>>().await
        },
    );
    Toolset::new()
        .tool(look.read_only())
        .tool(pay)
        .tool(wait)
        .gate(Approval::for_tools(["pay"]))
        .ledger(store)
}

/// Records that a call was dropped.
struct Cancelled;

impl Drop for Cancelled {
    fn drop(&mut self) {
        if let Err(error) = record("wait was cancelled") {
            eprintln!("{error}");
        }
    }
}

fn record(effect: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open("effects.txt")?;
    writeln!(file, "{effect}")
}

fn answer(request: &ChatRequest) -> ChatResponse<EventStream> {
    let script = script(request);
    let end = Script::Event(Event::finish(FinishReason::Stop, Usage::new(310, 42)));
    let script = stream::iter(script).chain(stream::iter([end]));
    let events = script.filter_map(async |step| match step {
        Script::Event(event) => Some(Ok(event)),
        Pause => {
            // The semaphore is never closed.
            if let Ok(permit) = NEXT.acquire().await {
                permit.forget();
            }
            None
        }
    });
    ChatResponse::new(EventStream::new(events))
}

fn script(request: &ChatRequest) -> Vec<Script> {
    let prompt = request.user_message().map(|message| message.text());
    let prompt = prompt.unwrap_or_default();
    let results = request.transcript.last().map_or(&[][..], Turn::results);
    if !results.is_empty() {
        let contents = results.iter().map(|result| result.outcome.content.text());
        let contents: Vec<String> = contents.map(|text| text.to_string()).collect();
        let mut script = vec![text("The tools say: "), text(&contents.join("; "))];
        if prompt.ends_with("slowly") {
            script.insert(1, Pause);
        }
        return script;
    }
    match prompt.split(' ').next().unwrap_or_default() {
        "think" => {
            let mut script = vec![thought("Let me "), Pause, thought("think.")];
            script.extend((0..4).map(|n| text(&format!("piece {n} "))));
            script.push(Pause);
            script.extend((4..8).map(|n| text(&format!("piece {n} "))));
            script
        }
        "look" => vec![
            text("I look."),
            call("call_1", "look", &json!({"at": "here"})),
            call("call_2", "look", &json!({"at": "there"})),
        ],
        "pay" => vec![
            thought("Is it due?"),
            text("I pay."),
            call("call_1", "pay", &json!({"amount": 420})),
        ],
        "both" => vec![
            call("call_1", "pay", &json!({"amount": 1})),
            call("call_2", "pay", &json!({"amount": 2})),
        ],
        "wait" => vec![call("call_1", "wait", &json!({}))],
        _ => {
            let answer = ANSWERS.fetch_add(1, Ordering::Relaxed) + 1;
            let messages = request.transcript.len();
            vec![text(&format!(
                "Answer {answer}, after {messages} messages."
            ))]
        }
    }
}

fn thought(text: &str) -> Script {
    Script::Event(Event::ReasoningDelta(text.into()))
}

fn text(text: &str) -> Script {
    Script::Event(Event::text(text.to_owned()))
}

fn call(id: &str, name: &str, arguments: &Value) -> Script {
    let call = ToolCallPart::new(CallId::new(id), name, arguments.to_string());
    Script::Event(Event::tool_call(call))
}
