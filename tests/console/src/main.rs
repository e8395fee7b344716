//! Serves an agent whose answer depends on the first word of the user's last message, and its console.
//!
//! The operator is the value of the cookie `operator`: `ann` and `bob` may do everything, `eve` sees no content. Prints
//! its address once it listens.

use axum::{
    Router,
    extract::{Path, State},
    routing::post,
};
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Context, CustomEvent, Error, Event,
    EventStream, FinishReason, ReplyKind, RunId, ThreadId, ToolCallPart, Turn, Usage,
    describe::describe, store::Tenant,
};
use concentric_http::{
    ag_ui::{AgUiLayer, EventLogLayer},
    console::{Console, Operator},
};
use concentric_layers::{
    ConversationLayer, DetachLayer, RequestDefaultsLayer, SuspendLayer, conversation::Merge,
};
use concentric_store::MemoryStore;
use concentric_tools::{Approval, ToolError, Toolset, tool};
use futures_util::{StreamExt, stream};
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

type Item = Result<Event, Error>;

/// What tries to leave the text of a page.
const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>]]>javascript:alert(1)\u{202e}evil\u{200b}\u{1b}[31mred</pre></textarea></script>";

/// Lets the run that floods its readers continue.
static FLOOD: Notify = Notify::const_new();

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (store, log) = (MemoryStore::new(), EventLogLayer::new());
    let tools = Toolset::new()
        .tool(tool(
            "pay",
            "Pays an amount.",
            async |arguments: Map<String, Value>| {
                Ok::<_, ToolError>(format!("paid {}", Value::Object(arguments)))
            },
        ))
        .gate(
            Approval::for_tools(["pay"])
                .remember(store.clone())
                .expires_after(Duration::from_secs(3600))
                .replies([
                    ReplyKind::Approve,
                    ReplyKind::Deny,
                    ReplyKind::Edit,
                    ReplyKind::Answer,
                ]),
        );
    let agent = ServiceBuilder::new()
        .layer(DetachLayer::new())
        .layer(log.clone())
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(ConversationLayer::new(store.clone()).history(Merge::ServerWins))
        .layer(RequestDefaultsLayer::new().system("Pay the invoices."))
        .layer(AgentLayer::new(tools))
        .service(service_fn(async |request: ChatRequest| {
            Ok::<_, Error>(answer(&request))
        }));
    let description = describe(&agent);
    let agent = BoxModel::new(agent);
    let console = Console::authorize(|request| async move { operator(&request) })
        .runs(store.clone())
        .threads(store.clone())
        .decisions(store)
        .events(&log)
        .stack("clerk", description)
        .replies(agent.clone())
        .title("Clerk");
    let endpoint = AgUiLayer::new().agent("clerk").layer(agent.clone());
    let app = Router::new()
        .route("/live/{count}", post(start_live))
        .route("/flood", post(async || FLOOD.notify_one()))
        .with_state(agent)
        .route_service("/agent", endpoint)
        .nest_service("/console", console);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

fn operator(request: &http::request::Parts) -> Option<Operator> {
    let cookie = request.headers.get("cookie")?.to_str().ok()?;
    let name = cookie.strip_prefix("operator=")?;
    let operator = Operator::new(name, [Tenant::default()]);
    match name {
        "ann" | "bob" => Some(operator.content().decide().cancel().release().remember()),
        "eve" => Some(operator),
        _ => None,
    }
}

/// Starts runs that do not end.
async fn start_live(State(agent): State<BoxModel>, Path(count): Path<usize>) {
    for n in 0..count {
        let context = Context::builder()
            .agent("clerk")
            .thread_id(ThreadId::new(format!("thread-{n}")))
            .run_id(RunId::new(format!("live-{n}")))
            .build();
        let request = ChatRequest::user("forever").with_context(context);
        let agent = agent.clone();
        tokio::spawn(async move {
            if let Ok(response) = agent.oneshot(request).await {
                response.body.for_each(async |_| {}).await;
            }
        });
    }
}

fn answer(request: &ChatRequest) -> ChatResponse<EventStream> {
    let prompt = request
        .user_message()
        .map(|message| message.text())
        .unwrap_or_default();
    let word = prompt.split(' ').next().unwrap_or_default();
    let results = request.transcript.last().map_or(&[][..], Turn::results);
    if !results.is_empty() {
        let outcomes = results
            .iter()
            .map(|result| result.outcome.content.text().to_string());
        let outcomes: Vec<String> = outcomes.collect();
        return slowly(vec![text(&format!(
            "The tool says: {}",
            outcomes.join("; ")
        ))]);
    }
    match word {
        "pay" => whole(vec![
            text("I will pay the invoice of Lovelace Ltd."),
            call(
                &json!({"invoice": "2026-117", "to": "Lovelace Ltd.", "amount": 420, "currency": "EUR"}),
            ),
        ]),
        "hostile" => whole(vec![
            text(HOSTILE),
            call(&json!({"to": HOSTILE, HOSTILE: [HOSTILE]})),
        ]),
        "long" => whole(vec![text(&"x <b>y</b> ".repeat(90_000))]),
        "forever" => {
            let events = stream::iter([text("I am working on it.")]).chain(stream::pending());
            ChatResponse::new(EventStream::new(events))
        }
        "flood" => {
            let events = stream::iter(0..100_000_u32).then(async |n| {
                match n {
                    1 => FLOOD.notified().await,
                    // Faster than any model, and slower than what a loaded machine reads.
                    n if n % 200 == 0 => tokio::time::sleep(Duration::from_millis(10)).await,
                    _ => {}
                }
                match n % 2 {
                    0 => text("Some words of a long answer. "),
                    _ => Ok(Event::Custom(Box::new(CustomEvent::new(
                        "progress",
                        json!({"n": n}),
                    )))),
                }
            });
            ChatResponse::new(EventStream::new(events.chain(stream::iter([finish()]))))
        }
        _ => {
            let words = (1..=100).map(|n| text(&format!("word{n} ")));
            slowly(words.collect())
        }
    }
}

fn text(text: &str) -> Item {
    Ok(Event::text(text.to_owned()))
}

fn call(arguments: &Value) -> Item {
    let call = ToolCallPart::new(CallId::new("call_1"), "pay", arguments.to_string());
    Ok(Event::tool_call(call))
}

fn finish() -> Item {
    Ok(Event::finish(FinishReason::Stop, Usage::new(310, 42)))
}

fn whole(mut items: Vec<Item>) -> ChatResponse<EventStream> {
    items.push(finish());
    ChatResponse::new(EventStream::new(stream::iter(items)))
}

fn slowly(mut items: Vec<Item>) -> ChatResponse<EventStream> {
    items.push(finish());
    let items = stream::iter(items).then(async |item| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        item
    });
    ChatResponse::new(EventStream::new(items))
}
