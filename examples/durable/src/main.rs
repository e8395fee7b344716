//! An agent whose runs survive the processes that drive them.
//!
//! Two commands start the engine and the service:
//!
//! ```console
//! $ examples/durable/engine
//! $ cargo run -p durable -- serve
//! ```
//!
//! Others use them, also after both were killed and started again:
//!
//! ```console
//! $ cargo run -p durable -- ask order-7 "Refund order 7."
//! waits: Approve the call of `refund`?
//! $ cargo run -p durable -- approve order-7
//! Order 7 is refunded.
//! $ cargo run -p durable -- state order-7
//! ```
//!
//! The model is a stand-in without network access; any layer of `concentric-providers` takes its place. The ports are
//! those of `RESTATE_INGRESS__BIND_PORT` (8080), `RESTATE_ADMIN__BIND_PORT` (9070) and `DURABLE_PORT` (9080); the
//! ledger of effects is in the folder `DURABLE_DATA`, `target/durable` by default.

use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, ChatRequest, ChatResponse, Error, Event, EventStream,
    FinishReason, Reply, Role, ToolCallPart, Usage,
};
use concentric_layers::{DurableLayer, DurableTools};
use concentric_restate::{ReplyInput, RestateAgents, RestateClient, RunInput, RunOutput, register};
use concentric_store::SqliteStore;
use concentric_tools::{Approval, Toolset, tool};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use std::{env, fs, future, path::PathBuf, process::ExitCode};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match *arguments {
        ["serve"] => serve().await,
        ["ask", thread, text] => ask(thread, text).await,
        ["approve", thread] => approve(thread).await,
        ["state", thread] => state(thread).await,
        _ => {
            eprintln!("Usage: durable serve | ask THREAD TEXT | approve THREAD | state THREAD");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

// ---- the service ----

async fn serve() -> Result<(), BoxError> {
    let data = PathBuf::from(setting("DURABLE_DATA", "target/durable"));
    fs::create_dir_all(&data)?;
    let ledger = SqliteStore::open(data.join("effects.db"))?;
    let endpoint = RestateAgents::new("Clerk", agent(ledger)).endpoint()?;
    let port = setting("DURABLE_PORT", "9080");
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    let service = format!("http://127.0.0.1:{port}");
    let registered = async {
        register(&admin(), &service).await?;
        println!("ready");
        future::pending().await
    };
    // The server reads the endpoint's description while it is registered.
    tokio::select! {
        served = endpoint.serve(listener, stop) => Ok(served?),
        registered = registered => registered,
    }
}

#[derive(Deserialize, JsonSchema)]
struct Refund {
    /// The number of the order.
    order: u32,
}

/// The stack of any agent, with two layers for the engine.
fn agent(ledger: SqliteStore) -> BoxModel {
    let refund = tool(
        "refund",
        "Refunds an order.",
        |Refund { order }| async move {
            println!("refunding order {order}");
            format!("order {order} is refunded")
        },
    );
    let tools = Toolset::new()
        .tool(refund)
        .gate(Approval::for_tools("refund"))
        .ledger(ledger);
    BoxModel::new(
        ServiceBuilder::new()
            .layer(AgentLayer::new(DurableTools::new(tools)))
            .layer(DurableLayer::new())
            .service(service_fn(model)),
    )
}

/// Calls the tool once, then reports its result.
async fn model(request: ChatRequest) -> Result<ChatResponse<EventStream>, Error> {
    println!("the model is called for step {}", request.context.step());
    let result = request.transcript.last().and_then(|turn| {
        let message = turn.as_message();
        (message.role == Role::Assistant).then(|| turn.results().first().cloned())
    });
    let events = match result.flatten() {
        Some(result) => vec![
            Event::text(format!("Done: {}.", result.outcome.content.text())),
            Event::finish(FinishReason::Stop, Usage::new(20, 8)),
        ],
        None => vec![
            Event::tool_call(ToolCallPart::new(
                CallId::new("call_1"),
                "refund",
                r#"{"order": 7}"#,
            )),
            Event::finish(FinishReason::ToolCalls, Usage::new(12, 6)),
        ],
    };
    let body = stream::iter(events.into_iter().map(Ok));
    Ok(ChatResponse::new(EventStream::new(body)))
}

// ---- the client ----

async fn ask(thread: &str, text: &str) -> Result<(), BoxError> {
    // The text is the key of the request: asked again, it is the same run.
    let output = client().run(thread, text, &RunInput::user(text)).await?;
    show(&output)
}

async fn approve(thread: &str) -> Result<(), BoxError> {
    let state = client().state(thread).await?;
    let asked = state.interrupts.first().ok_or("no run waits")?;
    let input = ReplyInput::new(vec![Reply::approve(asked.id.clone())]);
    let output = client().reply(thread, asked.id.as_str(), &input).await?;
    show(&output)
}

async fn state(thread: &str) -> Result<(), BoxError> {
    let state = client().state(thread).await?;
    println!(
        "{} turns, {} interrupts",
        state.turns,
        state.interrupts.len()
    );
    Ok(())
}

fn show(output: &RunOutput) -> Result<(), BoxError> {
    if let Some(error) = &output.error {
        return Err(error.message.as_str().into());
    }
    for asked in &output.interrupts {
        let question = asked.message.as_deref().unwrap_or_default();
        println!("waits: {question}");
    }
    if output.interrupts.is_empty() {
        println!("{}", output.text);
    }
    Ok(())
}

fn client() -> RestateClient {
    let port = setting("RESTATE_INGRESS__BIND_PORT", "8080");
    RestateClient::new(format!("http://127.0.0.1:{port}"), "Clerk")
}

fn admin() -> String {
    let port = setting("RESTATE_ADMIN__BIND_PORT", "9070");
    format!("http://127.0.0.1:{port}")
}

fn setting(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}
