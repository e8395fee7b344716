//! The unmodified clients of `ai`.

use super::*;
use crate::{
    ag_ui_approvals::{Ran, tools},
    ag_ui_stream::random::{any_end, any_event},
    support::real,
};
use axum::Router;
use concentric_core::{
    AgentLayer, BoxModel, CallId, FinishReason, ToolCallPart, ToolSpec, Turn, Usage,
};
use concentric_http::ui_messages::Sdk;
use futures_util::stream;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use std::fmt::Write;
use tower::service_fn;

/// An agent that thinks, calls two tools of the server and one of the client, and writes their outcomes.
fn calling() -> BoxModel {
    let model = service_fn(|request: ChatRequest| {
        let results = request.transcript.last().map_or(&[][..], Turn::results);
        let call =
            |id: &str, name: &str| Event::tool_call(ToolCallPart::new(CallId::new(id), name, "{}"));
        let mut events = match results {
            [] => vec![
                Event::ReasoningDelta("Think.".into()),
                call("a", "look"),
                call("b", "look"),
                call("c", "confirm"),
            ],
            results => {
                let texts = results.iter().map(|it| it.outcome.content.text());
                let texts: Vec<_> = texts.map(|it| it.to_string()).collect();
                vec![Event::text(texts.join(", "))]
            }
        };
        events.push(Event::finish(FinishReason::Stop, Usage::new(1, 1)));
        let body: Vec<_> = events.into_iter().map(Ok).collect();
        async move { Ok::<_, Error>(ChatResponse::new(stream::iter(body))) }
    });
    BoxModel::new(AgentLayer::new(tools(&Ran::default())).layer(model))
}

#[tokio::test]
async fn the_client_shows_reasoning_and_tools() {
    let Some(dir) = real::clients() else { return };
    let confirm = ToolSpec::new("confirm", "Asks the user.", json!({"type": "object"}));
    let service = |sdk| {
        let layer = UiMessagesLayer::new().sdk(sdk).client_tool(confirm.clone());
        layer.layer(calling())
    };
    let app = Router::new()
        .route_service("/chat6", service(Sdk::V6))
        .route_service("/chat7", service(Sdk::V7));
    let url = format!("http://{}", real::serve(app).await);
    real::node(&dir, &["ui_messages.mjs", "tools", &url]).await;
}

#[tokio::test]
async fn the_client_accepts_every_chunk() {
    let Some(dir) = real::clients() else { return };
    let mut runner = TestRunner::deterministic();
    let script = (prop::collection::vec(any_event(), 0..30), any_end());
    let mut lines = String::new();
    for n in 0..200 {
        let (events, end) = script.new_tree(&mut runner).unwrap().current();
        let (sdk, name) = match n % 2 {
            0 => (Sdk::V6, "6"),
            _ => (Sdk::V7, "7"),
        };
        let mut items: Vec<Item> = events.into_iter().map(Ok).collect();
        items.extend(end);
        let (chunks, _) = run_with(&UiMessagesLayer::new().sdk(sdk), items).await;
        for chunk in chunks {
            writeln!(lines, "{name} {chunk}").unwrap();
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    real::node(
        &dir,
        &["ui_messages.mjs", "schema", file.path().to_str().unwrap()],
    )
    .await;
}
