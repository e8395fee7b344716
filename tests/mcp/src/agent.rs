//! An agent that is served as a tool, with a model that follows its prompt literally.

use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Error, ErrorKind, Event, FinishReason,
    Role, ToolCallPart, Usage,
};
use concentric_tools::{Approval, NoArguments, Tool, Toolset, agent_tool_with, output, tool};
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tower::{ServiceBuilder, service_fn};

#[derive(Deserialize, JsonSchema)]
struct Prompt {
    prompt: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Answer {
    words: String,
}

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The number of runs in this process that wait.
pub fn running() -> usize {
    RUNNING.load(Ordering::SeqCst)
}

struct Running;

impl Running {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An agent that counts, refunds after an approval, breaks, waits, or writes a MiB.
pub fn assistant() -> Tool {
    let refund = tool(
        "order_refund",
        "Refunds.",
        async |NoArguments {}| "refunded",
    );
    let tools = Toolset::new()
        .tool(refund)
        .gate(Approval::for_tools("order_refund"));
    let answer = output::<Answer>("answer");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools).gate(answer.gate()))
        .layer(answer)
        .service(model());
    let ask = |Prompt { prompt }| ChatRequest::user(prompt);
    agent_tool_with("assistant", "Does what it reads.", agent, ask)
        .output_schema::<Answer>()
        .max_result_bytes(2 << 20)
}

fn model() -> BoxModel {
    BoxModel::new(service_fn(async |request: ChatRequest| {
        let messages: Vec<_> = request
            .transcript
            .iter()
            .map(|it| it.as_message())
            .collect();
        let has_acted = messages.iter().any(|it| it.role == Role::Assistant);
        let prompt = messages.first().map(|it| it.text()).unwrap_or_default();
        let words = |words: String| Event::text(json!({"words": words}).to_string());
        let (mut pause, mut running) = (Duration::ZERO, None);
        let mut reason = FinishReason::Stop;
        let mut events = match &*prompt {
            "count to 100" => {
                pause = Duration::from_millis(10);
                let mut events = vec![Event::text("{\"words\": \"")];
                events.extend((0..100).map(|number| Event::text(format!("{number} "))));
                events.push(Event::text("\"}"));
                events
            }
            "refund the order" if !has_acted => {
                reason = FinishReason::ToolCalls;
                let call = ToolCallPart::new(CallId::new("inner"), "order_refund", "{}");
                vec![Event::tool_call(call)]
            }
            "refund the order" => vec![words("refunded".to_owned())],
            "write a MiB" => vec![words("w".repeat(1 << 20))],
            "wait" => {
                pause = Duration::from_secs(3600);
                running = Some(Running::new());
                vec![Event::text("{"), Event::text("}")]
            }
            _ => {
                let why = "the secret name of a host cannot be resolved";
                return Err(Error::new(ErrorKind::Connection, why));
            }
        };
        events.push(Event::finish(reason, Usage::new(1, 1)));
        let body = stream::iter(events).then(move |event| {
            let _ = &running;
            async move {
                tokio::time::sleep(pause).await;
                Ok(event)
            }
        });
        Ok::<_, Error>(ChatResponse::new(Box::pin(body)))
    }))
}
