//! What the switch for development logs.
#![allow(clippy::unwrap_used, reason = "tests")]

use concentric_core::{
    AgentLayer, BoxModel, ChatRequest, Context, Event, RunOverrides,
    hooks::{Hooks, Interest},
};
use concentric_layers::{DebugLayer, inspect_events, map_events};
use concentric_test::{ScriptedModel, assert_finishes};
use concentric_tools::{Approval, NoArguments, Toolset, tool};
use serde_json::json;
use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};
use tower::{Layer, ServiceExt};
use tracing::Level;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains("concentric::events"));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Watch;

impl Hooks for Watch {
    fn id(&self) -> &str {
        "watch"
    }

    fn interest(&self) -> Interest {
        Interest::EVENT | Interest::MODEL_EVENT
    }

    fn event(&self, _: &Event, _: &Context) {}
}

/// An agent that calls a tool, is denied another one, and answers in capitals.
fn agent(debug: Option<DebugLayer>) -> BoxModel {
    let tools = Toolset::new()
        .tool(tool("look", "", |NoArguments {}| async { "a cat" }))
        .tool(tool("mail", "", |NoArguments {}| async { "sent" }))
        .gate(Approval::new().deny("mail", "no mail today"));
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .tool_call("mail", json!({}))
        .then()
        .text("hello");
    AgentLayer::new(tools)
        .with(Watch)
        .with(debug)
        .with(Capitals)
        .layer(BoxModel::new(model))
}

struct Capitals;

impl concentric_core::agent::Plugin for Capitals {
    fn install(self, at: &mut concentric_core::agent::Installer<'_>) {
        at.model_layer(map_events(|event: &mut Event| {
            if let Event::TextDelta(text) = event {
                *text = text.to_uppercase().into();
            }
        }));
    }
}

fn request() -> ChatRequest {
    let own = RunOverrides::new().model_layer(inspect_events(|_: &Event| {}));
    ChatRequest::user("hi").with_overrides(own)
}

/// The service that a line shows, without its generic arguments.
fn layer(line: &str) -> &str {
    let (_, name) = line.split_once("layer=\"").unwrap();
    name.split(['<', '"']).next().unwrap()
}

// The only test of this program: a subscriber of one thread may miss what another test logs first.
#[tokio::test]
async fn one_switch_logs_each_layer_and_each_tool_call() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::TRACE);
    let subscriber = subscriber
        .with_ansi(false)
        .with_writer(move || writer.clone());
    subscriber.init();

    let off = agent(None);
    assert_finishes(off.clone().oneshot(request()).await.unwrap().body).await;
    assert_eq!(log.take(), [""; 0]);

    let on = agent(Some(DebugLayer::new("clerk")));
    assert_eq!(on.describe(), off.describe());
    assert_finishes(on.oneshot(request()).await.unwrap().body).await;
    let lines = log.take();
    assert!(
        lines.iter().all(|line| line.contains(r#"place="clerk""#)),
        "{lines:#?}"
    );
    let with =
        |text: &str| -> Vec<&String> { lines.iter().filter(|line| line.contains(text)).collect() };
    // From the model to the consumer; the run's own layer is outside the agent's.
    let layers: Vec<_> = [with("TextDelta(\"hello\")"), with("TextDelta(\"HELLO\")")]
        .concat()
        .into_iter()
        .map(|line| layer(line))
        .collect();
    let expected = [
        "model BoxModel",
        "model MapEvents",
        "model Hooked",
        "model MapEvents",
        "run Agent",
        "run Hooked",
    ];
    assert_eq!(layers, expected, "{lines:#?}");
    // Each call once, also the one that is not executed.
    let calls = lines.iter().filter(|line| !line.contains("layer="));
    let calls: Vec<_> = calls
        .map(|line| line.split_once("place=").unwrap().1)
        .collect();
    let count = |text: &str| calls.iter().filter(|line| line.contains(text)).count();
    assert_eq!(calls.len(), 6, "{calls:#?}");
    assert_eq!(count("arguments=\"{}\""), 1, "{calls:#?}");
    assert_eq!(count("tool=look status=Done"), 1, "{calls:#?}");
    assert_eq!(count("tool=mail status=Denied"), 1, "{calls:#?}");
    assert_eq!(count("no mail today"), 1, "{calls:#?}");
}
