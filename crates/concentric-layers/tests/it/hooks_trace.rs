//! The order of all calls of two [`Hooks`], as the docs show it.
//!
//! `WRITE_GOLDEN=1 cargo test --test it hooks_trace::` writes the table that the docs include.

use super::used;
use concentric_core::hooks::{self, BeforeCall, End, Flow, Hooks, Interest, Summary};
use concentric_core::{
    AgentLayer, BoxError, ChatRequest, Context, Event, StepFinish, StepStart, Str, ToolCall,
    ToolOutcome, ToolResult,
};
use concentric_test::{ScriptedModel, assert_finishes, shape};
use concentric_tools::{NoArguments, Toolset, tool};
use serde_json::json;
use std::{
    fmt::Write,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::{ServiceBuilder, ServiceExt};

/// Writes down each call of each method.
struct Traced {
    name: &'static str,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// The place, the hook, and what it was told.
type Call = (&'static str, &'static str, String);

impl Traced {
    fn say(&self, place: &'static str, what: impl Into<String>) {
        let call = (place, self.name, what.into());
        self.calls.lock().unwrap().push(call);
    }
}

impl Hooks for Traced {
    fn id(&self) -> &str {
        self.name
    }

    fn interest(&self) -> Interest {
        used(
            Interest::BEFORE_RUN
                | Interest::EVENT
                | Interest::STEP_STARTED
                | Interest::STEP_FINISHED
                | Interest::ROUND_FINISHED
                | Interest::AFTER_RUN
                | Interest::BEFORE_MODEL
                | Interest::MODEL_EVENT
                | Interest::AFTER_MODEL
                | Interest::BEFORE_CALL
                | Interest::AFTER_CALL,
        )
    }

    async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        self.say("run", "before_run");
        Ok(Flow::Continue)
    }

    fn event(&self, event: &Event, _: &Context) {
        self.say("run", format!("event: {}", shape([event])));
    }

    async fn step_started(&self, step: &StepStart, _: &Summary) -> Result<(), BoxError> {
        self.say("run", format!("step_started: {}", step.step));
        Ok(())
    }

    async fn step_finished(&self, step: &StepFinish, _: &Summary) -> Result<(), BoxError> {
        self.say("run", format!("step_finished: {}", step.step));
        Ok(())
    }

    async fn round_finished(&self, _: &[ToolResult], _: &Summary) -> Result<(), BoxError> {
        self.say("run", "round_finished");
        Ok(())
    }

    async fn after_run(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.say("run", "after_run");
        Ok(())
    }

    async fn before_model(&self, _: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        self.say("model", "before_model");
        Ok(Flow::Continue)
    }

    fn model_event(&self, event: &Event, _: &Context) {
        self.say("model", format!("model_event: {}", shape([event])));
    }

    async fn after_model(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.say("model", "after_model");
        Ok(())
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.say("tool", "before_call");
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.say("tool", "after_call");
        Ok(None)
    }
}

fn table(calls: &[Call]) -> String {
    let mut table = String::from("| | place | `a` | `b` |\n|---|---|---|---|\n");
    for (at, (place, name, what)) in calls.iter().enumerate() {
        let (a, b) = match *name {
            "a" => (what.as_str(), ""),
            _ => ("", what.as_str()),
        };
        writeln!(table, "| {} | {place} | {a} | {b} |", at + 1).unwrap();
    }
    table
}

#[tokio::test]
async fn c005_the_order_of_calls_is_the_one_in_the_docs() {
    let calls = Arc::default();
    let traced = |name| {
        let calls = Arc::clone(&calls);
        Arc::new(Traced { name, calls })
    };
    let (a, b) = (traced("a"), traced("b"));
    let tools = Toolset::new()
        .tool(tool("search", "", |NoArguments {}| async { "42" }))
        .hooks(hooks::tool(Arc::clone(&a)))
        .hooks(hooks::tool(Arc::clone(&b)));
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::clone(&a)))
        .layer(hooks::run(Arc::clone(&b)))
        .layer(AgentLayer::new(tools))
        .layer(hooks::model(a))
        .layer(hooks::model(b))
        .service(
            ScriptedModel::new()
                .tool_call("search", json!({}))
                .then()
                .text("It is 42."),
        );
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;

    let happened = table(&calls.lock().unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../concentric-core/src/hooks/trace.md");
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        fs::write(&path, &happened).unwrap();
    }
    let documented = fs::read_to_string(&path).unwrap();
    assert_eq!(happened, documented);
}
