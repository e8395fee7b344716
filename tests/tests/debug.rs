//! What the layer for development logs.
#![allow(clippy::unwrap_used, reason = "tests")]

use concentric_core::{AgentLayer, BoxModel, ChatRequest, NoTools};
use concentric_layers::DebugLayer;
use concentric_test::{ScriptedModel, assert_finishes};
use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};
use tower::{Layer, ServiceExt};
use tracing::Level;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// The only test of this program: a subscriber of one thread may miss what another test logs first.
#[tokio::test]
async fn one_plugin_logs_each_event_of_the_run_and_of_its_model_calls() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::TRACE);
    subscriber
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let agent = AgentLayer::new(NoTools).with(DebugLayer::new("clerk"));
    let agent = agent.layer(BoxModel::new(ScriptedModel::new().text("Hello.")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("concentric::events"))
        .collect();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert!(
        lines.iter().all(|line| line.contains("place=\"clerk\"")),
        "{text}"
    );
    // The text is logged inside of the loop and outside of it, the start of the step outside.
    assert_eq!(count("event=TextDelta"), 2, "{text}");
    assert_eq!(count("event=StepStart"), 1, "{text}");
}
