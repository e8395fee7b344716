//! Calls of MCP tools, and a toolset that is served, for the tests of `concentric-mcp`.

mod agent;
pub mod conformance;

pub use self::agent::{assistant, running};

use bytes::Bytes;
use concentric_core::{
    CallId, Context, CustomEvent, Error, Event, Interrupt, InterruptHub, Message, Part, PartKind,
    Reply, Role, ToolCallPart, ToolOutcome, machine::RunState,
};
use concentric_mcp::oauth::AUTHORIZATION;
use concentric_providers::client::HttpClient;
use concentric_tools::{
    Approval, Json, NoArguments, RoundEnd, ToolError, ToolLifecycle, Toolset, tool,
    tool_with_context,
};
use http_body_util::Full;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tower::ServiceExt;

/// The message of a model with one call.
pub fn message(tool: &str, arguments: &Value) -> Message {
    let call = ToolCallPart::new(CallId::new("call_1"), tool, arguments.to_string());
    Message::new(Role::Assistant, vec![Part::new(PartKind::ToolCall(call))])
}

/// The end of a call.
#[derive(Debug)]
pub struct Called {
    /// The outcome.
    pub outcome: ToolOutcome,
    /// The events that the call emitted.
    pub events: Vec<Event>,
    /// The number of times that the call was suspended.
    pub suspensions: usize,
}

impl Called {
    /// The text of the outcome.
    pub fn text(&self) -> String {
        self.outcome.content.text().into_owned()
    }
}

/// Opens a page as a browser whose user agrees at once, and returns the URL that it redirects to.
///
/// # Errors
///
/// The page does not redirect.
pub async fn visit(url: &str) -> Result<String, Error> {
    let request = http::Request::get(url).body(Full::new(Bytes::new()));
    let request = request.map_err(Error::from_source)?;
    let response = HttpClient::new()?.oneshot(request).await?;
    let location = response.headers().get(http::header::LOCATION);
    let location = location.and_then(|it| it.to_str().ok()).map(str::to_owned);
    location.ok_or_else(|| Error::from_source(format!("no redirect: {}", response.status())))
}

/// Calls a tool, and answers each question with `answer`. A suspended call resumes in another lifecycle,
/// from the serialized state, as in another process.
///
/// # Errors
///
/// The lifecycle fails.
pub async fn call(
    tools: &Toolset,
    tool: &str,
    arguments: &Value,
    answer: &Value,
) -> Result<Called, Error> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let mut lifecycle = lifecycle(tools, &events, answer);
    let mut end = lifecycle.execute_round(message(tool, arguments)).await?;
    let mut suspensions = 0;
    let outcome = loop {
        match end {
            RoundEnd::Closed(round) => break outcome_of(&round)?,
            RoundEnd::Suspended(state) => {
                suspensions += 1;
                let stored = state.to_json().map_err(Error::from_source)?;
                let restored = RunState::from_json(stored.as_bytes(), 1 << 20);
                let state = restored.map_err(Error::from_source)?;
                let mut replies = Vec::new();
                for interrupt in state.interrupts() {
                    let payload = match interrupt.metadata.get("url").and_then(Value::as_str) {
                        Some(url) if interrupt.reason == AUTHORIZATION => {
                            json!({"callback": visit(url).await?})
                        }
                        _ => answer.clone(),
                    };
                    replies.push(Reply::resolve(interrupt.id.clone(), payload));
                }
                lifecycle = self::lifecycle(tools, &events, answer);
                end = lifecycle.resume(state, replies).await?;
            }
            other => return Err(Error::from_source(format!("{other:?}"))),
        }
    };
    drop(lifecycle);
    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Called {
        outcome,
        events,
        suspensions,
    })
}

trait FromSource {
    fn from_source(source: impl Into<concentric_core::BoxError>) -> Error;
}

impl FromSource for Error {
    fn from_source(source: impl Into<concentric_core::BoxError>) -> Error {
        Self::new(concentric_core::ErrorKind::Other, "the test failed").with_source(source)
    }
}

fn outcome_of(round: &concentric_core::Round) -> Result<ToolOutcome, Error> {
    let result = round.results().first().map(|it| it.outcome.clone());
    result.ok_or_else(|| Error::from_source("no result"))
}

fn lifecycle(tools: &Toolset, events: &Arc<Mutex<Vec<Event>>>, answer: &Value) -> ToolLifecycle {
    let context = Context::new();
    let (replying, answer, events) = (context.clone(), answer.clone(), Arc::clone(events));
    ToolLifecycle::new(tools.clone())
        .with_context(context)
        .on_event(move |event| {
            if let Event::Custom(event) = &event
                && let Ok(interrupt) = event.read::<Interrupt>()
            {
                let _ = replying.reply(Reply::resolve(interrupt.id, answer.clone()));
            }
            let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
            events.push(event);
        })
}

#[derive(Deserialize, JsonSchema)]
struct Addends {
    a: i64,
    b: i64,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Sum {
    sum: i64,
}

#[derive(Deserialize, JsonSchema)]
struct Steps {
    steps: u32,
}

/// The toolset that is served: it has a structured result, an error, an approval, progress, an image,
/// and a call that does not end.
pub fn served() -> Toolset {
    let add = tool("add", "Adds two numbers.", async |it: Addends| {
        let sum = it.a.checked_add(it.b);
        let sum = sum.ok_or_else(|| ToolError::new("The sum is too large."))?;
        Ok::<_, ToolError>((sum.to_string(), Json(Sum { sum })))
    });
    let broken = tool("broken", "Fails.", async |NoArguments {}| {
        Err::<String, _>(ToolError::new("It is broken."))
    });
    let refund = tool(
        "refund",
        "Refunds an order.",
        async |NoArguments {}| "refunded",
    );
    let count = tool_with_context(
        "count",
        "Counts.",
        |it: Steps, context: Context| async move {
            for step in 1..=it.steps {
                let progress = json!({"progress": step, "total": it.steps, "message": "counting"});
                let _ = context.emit(CustomEvent::new("mcp.progress", progress));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            "counted"
        },
    );
    let pixel = tool("pixel", "Returns an image.", async |NoArguments {}| {
        let source = concentric_core::MediaSource::Base64("iVBORw0KGgo=".into());
        let media = concentric_core::Media::new(source).with_media_type("image/png");
        vec![Part::text("a pixel"), Part::new(PartKind::Image(media))]
    });
    let forever = tool("forever", "Never ends.", async |NoArguments {}| {
        std::future::pending::<String>().await
    });
    let release = tool(
        "release",
        "Needs an operator, who does not reply.",
        async |NoArguments {}| "released",
    );
    let operators = Approval::for_tools("release");
    Toolset::new()
        .gate(operators.live(&InterruptHub::new(), Duration::from_millis(100)))
        .tools([
            release,
            add.read_only().output_schema::<Sum>(),
            broken,
            refund,
            count.read_only(),
            pixel.read_only(),
            forever,
            assistant(),
        ])
        .gate(Approval::for_tools("refund"))
}
