//! What [`Hooks`] are told, in which order, and what their failures change: nothing.

mod before;
mod failures;
mod layer;
mod steps;

use super::used;
use concentric_core::hooks::{
    self, BeforeCall, End, Flow, HookFailure, HookFailures, Hooks, HooksLayer, Interest, Summary,
};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, CallId, CancelReason, ChatRequest, ChatResponse, Context,
    Error, ErrorKind, Event, FinishReason, InterruptId, Message, ModelService, NoTools, OpenRound,
    Outcome, Part, PartKind, Phase, Reply, Role, StepFinish, StepStart, Str, SystemSegment,
    ToolCall, ToolCallPart, ToolOutcome, ToolResult, ToolStatus, Transcript, Usage,
    agent::{FinishDecision, RoundDecision, StepDecision, StepDraft, StepGate, StepView},
};
use concentric_test::{
    Gate, Pace, ScriptedModel, ScriptedTools, Spurious, TestEnvironment, assert_fails,
    assert_finishes, check_layer, collect_events, drop_at_each_wait, shape, watched,
};
use concentric_tools::{NoArguments, Toolset, tool};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    cell::RefCell,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

// ---- what the tests are made of ----

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn observer(&self, name: &'static str) -> Observer {
        Observer {
            name,
            log: self.clone(),
        }
    }

    fn on_run(&self, name: &'static str) -> HooksLayer<Observer, false> {
        hooks::run(Arc::new(self.observer(name)))
    }
}

/// Writes down how each run ends.
struct Observer {
    name: &'static str,
    log: Log,
}

impl Hooks for Observer {
    fn id(&self) -> &str {
        self.name
    }

    fn interest(&self) -> Interest {
        used(Interest::AFTER_RUN)
    }

    async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.log.say(format!("{} {}", self.name, named(end)));
        Ok(())
    }
}

fn named(end: End<'_>) -> String {
    match end {
        End::Finished(finish) => match &finish.outcome {
            Outcome::Completed => "finished".into(),
            Outcome::Interrupted => "interrupted".into(),
            Outcome::Halted { reason } => format!("halted {reason}"),
            Outcome::Aborted { reason } => format!("aborted {reason:?}"),
            Outcome::StepLimit => "step limit".into(),
            other => format!("{other:?}"),
        },
        End::Failed(error) => match error.code() {
            Some(code) => format!("failed {} {code}", error.kind()),
            None => format!("failed {}", error.kind()),
        },
        End::Truncated => "truncated".into(),
        End::Dropped => "dropped".into(),
    }
}

/// Two observers around an agent.
fn observed(log: &Log, agent: BoxModel) -> BoxModel {
    BoxModel::new(
        ServiceBuilder::new()
            .layer(log.on_run("a"))
            .layer(log.on_run("b"))
            .service(agent),
    )
}

fn talks(model: ScriptedModel) -> BoxModel {
    BoxModel::new(AgentLayer::new(NoTools).layer(model))
}

fn works(tools: ScriptedTools, model: ScriptedModel) -> BoxModel {
    BoxModel::new(AgentLayer::new(tools).layer(model))
}

fn broken() -> Error {
    Error::new(ErrorKind::Server, "it broke").with_code("E7")
}

/// A request, and where the failures of its hooks are gathered.
fn with_failures(mut request: ChatRequest) -> (ChatRequest, HookFailures) {
    let failures = HookFailures::new();
    request.context.extensions_mut().insert(failures.clone());
    (request, failures)
}

fn failed(failures: &HookFailures) -> Vec<String> {
    let failures = failures.take();
    let say = |f: &HookFailure| format!("{}.{}: {}", f.hook, f.method, f.error.message());
    failures.iter().map(say).collect()
}

async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// What a hook does when it is called.
#[derive(Clone, Copy)]
enum Does {
    Fails,
    Panics,
    Hangs,
}

impl Does {
    async fn it<T>(self) -> Result<T, BoxError> {
        match self {
            Self::Fails => Err(Error::new(ErrorKind::Permission, "no")
                .with_code("E403")
                .into()),
            Self::Panics => panic!("oh"),
            Self::Hangs => pending().await,
        }
    }
}

// ---- one terminal outcome ----

#[tokio::test]
async fn c059_each_observer_is_told_of_exactly_one_end() {
    let log = Log::default();
    let call = |model: ScriptedModel| model.tool_call("t", json!({}));
    let halts =
        ScriptedTools::new().tool("t", |_| async { ToolOutcome::done("").and_halt("enough") });
    let aborts = ScriptedTools::new().tool("t", |call: ToolCall| async move {
        call.context.cancel(CancelReason::User);
        pending().await
    });
    let limited = AgentLayer::new(ScriptedTools::new().answers("t", "")).step_limit(1);
    for (agent, end) in [
        (talks(ScriptedModel::new().text("hi")), "finished"),
        (
            works(
                ScriptedTools::new().asks("t", ""),
                call(ScriptedModel::new()),
            ),
            "interrupted",
        ),
        (works(halts, call(ScriptedModel::new())), "halted enough"),
        (works(aborts, call(ScriptedModel::new())), "aborted User"),
        (
            BoxModel::new(limited.layer(call(ScriptedModel::new()))),
            "step limit",
        ),
        (
            talks(ScriptedModel::new().error(broken())),
            "failed server E7",
        ),
        (
            talks(ScriptedModel::new().text("hi").error(broken())),
            "failed server E7",
        ),
        (
            talks(ScriptedModel::new().text("hi").end_early()),
            "failed truncated",
        ),
        (
            BoxModel::new(ScriptedModel::new().text("hi").end_early()),
            "truncated",
        ),
    ] {
        if let Ok(answer) = observed(&log, agent).oneshot(ChatRequest::user("hi")).await {
            let mut body = answer.body;
            while body.next().await.is_some() {}
        }
        assert_eq!(log.take(), [format!("b {end}"), format!("a {end}")]);
    }
}

#[tokio::test]
async fn c060_a_consumer_that_leaves_is_told_apart() {
    let log = Log::default();
    let model = ScriptedModel::new().text("Hello").never().repeat();
    let agent = observed(&log, talks(model.clone()));
    let answer = agent
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap();
    let mut body = answer.body;
    body.next().await.unwrap().unwrap();
    assert!(log.take().is_empty());
    drop(body);
    assert_eq!(log.take(), ["b dropped", "a dropped"]);

    // As a future, too.
    let agent = observed(&log, talks(ScriptedModel::new().never()));
    let mut call = task::spawn(agent.oneshot(ChatRequest::user("hi")));
    assert_pending!(call.poll());
    drop(call);
    assert_eq!(log.take(), ["b dropped", "a dropped"]);
    assert_eq!(model.live(), 0);
}

#[tokio::test]
async fn c060_what_ran_inside_is_gone_when_the_drop_is_told() {
    struct Counts(ScriptedModel, Log);
    impl Hooks for Counts {
        fn id(&self) -> &str {
            "counts"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }
        async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
            let said = run.message().text();
            self.1
                .say(format!("{} {} {said}", named(end), self.0.live()));
            Ok(())
        }
    }
    let log = Log::default();
    let model = ScriptedModel::new().deltas(["Hel", "lo"]).never();
    let layer = hooks::run(Arc::new(Counts(model.clone(), log.clone())));
    let agent = layer.layer(talks(model));
    let mut body = agent.oneshot(ChatRequest::user("hi")).await.unwrap().body;
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    drop(body);
    assert_eq!(log.take(), ["dropped 0 Hello"]);
}

#[tokio::test]
async fn c061_a_run_that_waits_ends_as_interrupted_and_its_sequel_as_itself() {
    let log = Log::default();
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = ScriptedModel::new().tool_call("pay", json!({}));
    let agent = observed(&log, works(tools, model.then().text("Done.")));
    let request = ChatRequest::user("hi");
    let answer = agent.clone().oneshot(request).await.unwrap();
    let finish = answer.collect().await.unwrap().finish;
    assert_eq!(log.take(), ["b interrupted", "a interrupted"]);

    let state = *finish.state.unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    let answer = agent.oneshot(ChatRequest::resume(state, vec![reply]));
    answer.await.unwrap().collect().await.unwrap();
    assert_eq!(log.take(), ["b finished", "a finished"]);
}

#[tokio::test]
async fn c054_a_run_that_is_cancelled_before_it_begins_has_one_end_and_no_event() {
    let log = Log::default();
    let model = ScriptedModel::new().text("hi");
    let agent = observed(&log, talks(model.clone()));
    let request = ChatRequest::user("hi");
    request.context.cancel(CancelReason::User);
    let (events, finish) = assert_finishes(agent.oneshot(request).await.unwrap().body).await;
    assert_eq!(shape(&events), "finish");
    assert!(matches!(finish.outcome, Outcome::Aborted { .. }));
    assert_eq!(log.take(), ["b aborted User", "a aborted User"]);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn c067_an_error_keeps_its_code_and_is_told_once() {
    let log = Log::default();
    for model in [
        ScriptedModel::new().error(broken()),
        ScriptedModel::new().text("hi").error(broken()),
    ] {
        let agent = observed(&log, talks(model));
        let error = match agent.oneshot(ChatRequest::user("hi")).await {
            Ok(answer) => assert_fails(answer.body).await.1,
            Err(error) => error,
        };
        assert_eq!(
            (error.kind(), error.code()),
            (ErrorKind::Server, Some("E7"))
        );
        assert_eq!(log.take(), ["b failed server E7", "a failed server E7"]);
    }
}
