//! What [`Hooks`] are told, in which order, and what their failures change: nothing.

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

// ---- failures ----

/// Does something in `after_run`.
struct After(&'static str, Does);

impl Hooks for After {
    fn id(&self) -> &str {
        self.0
    }

    fn interest(&self) -> Interest {
        used(Interest::AFTER_RUN)
    }

    async fn after_run(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.1.it().await
    }
}

#[tokio::test]
async fn c062_observers_that_fail_leave_the_others_alone_and_are_reported_together() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(After("first", Does::Fails))))
        .layer(hooks::run(Arc::new(After("second", Does::Panics))))
        .layer(log.on_run("b"))
        .service(talks(ScriptedModel::new().text("hi")));
    let (request, failures) = with_failures(ChatRequest::user("hi"));
    let answer = agent.oneshot(request).await.unwrap();
    let (_, finish) = assert_finishes(answer.body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(log.take(), ["b finished", "a finished"]);
    assert_eq!(
        failed(&failures),
        ["second.after_run: panicked: oh", "first.after_run: no"]
    );
}

#[tokio::test]
async fn c063_an_observer_that_fails_changes_no_other_end_either() {
    for does in [Does::Fails, Does::Panics] {
        // Failed, as a future and as a body.
        for model in [
            ScriptedModel::new().error(broken()),
            ScriptedModel::new().text("hi").error(broken()),
        ] {
            let agent = hooks::run(Arc::new(After("h", does))).layer(talks(model));
            let (request, failures) = with_failures(ChatRequest::user("hi"));
            let error = match agent.oneshot(request).await {
                Ok(answer) => assert_fails(answer.body).await.1,
                Err(error) => error,
            };
            assert_eq!(error.code(), Some("E7"));
            assert_eq!(failed(&failures).len(), 1);
        }
        // Aborted.
        let model = ScriptedModel::new().text("hi").never();
        let agent = hooks::run(Arc::new(After("h", does))).layer(talks(model));
        let (request, failures) = with_failures(ChatRequest::user("hi"));
        let context = request.context.clone();
        let answer = agent.oneshot(request).await.unwrap();
        context.cancel(CancelReason::User);
        let (_, finish) = assert_finishes(answer.body).await;
        assert!(matches!(finish.outcome, Outcome::Aborted { .. }));
        assert_eq!(failed(&failures).len(), 1);
        // Dropped.
        let model = ScriptedModel::new().text("hi").never();
        let agent = hooks::run(Arc::new(After("h", does))).layer(talks(model));
        let (request, failures) = with_failures(ChatRequest::user("hi"));
        drop(agent.oneshot(request).await.unwrap());
        assert_eq!(failed(&failures).len(), 1);
    }
}

#[tokio::test]
async fn c063_an_observer_that_hangs_is_given_up() {
    let test = TestEnvironment::new();
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(After("h", Does::Hangs))))
        .service(talks(ScriptedModel::new().text("hi")));
    let (request, failures) = with_failures(test.request("hi"));
    let answer = agent.oneshot(request).await.unwrap();
    let mut answer = task::spawn(answer.collect());
    assert_pending!(answer.poll());
    test.advance(Duration::from_secs(29));
    assert_pending!(answer.poll());
    test.advance(Duration::from_secs(1));
    assert!(answer.is_woken());
    assert_eq!(answer.await.unwrap().text(), "hi");
    assert_eq!(log.take(), ["a finished"]);
    assert_eq!(
        failed(&failures),
        ["h.after_run: the method did not return within its time limit"]
    );
}

#[tokio::test]
async fn c064_an_after_call_that_fails_leaves_one_result_which_is_the_tools() {
    struct AfterCall(Does);
    impl Hooks for AfterCall {
        fn id(&self) -> &str {
            "after_call"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_CALL)
        }
        async fn after_call(
            &self,
            _: &ToolCall,
            _: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            self.0.it().await
        }
    }
    for does in [Does::Fails, Does::Panics] {
        let tools = Toolset::new()
            .tool(tool("t", "", |NoArguments {}| async { "2 rows" }))
            .hooks(hooks::tool(Arc::new(AfterCall(does))));
        let model = ScriptedModel::new()
            .tool_call("t", json!({}))
            .then()
            .text("ok");
        let agent = AgentLayer::new(tools).layer(model);
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let (events, _) = assert_finishes(answer.body).await;
        let results: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::ToolResult(result) => Some(result.outcome.status),
                _ => None,
            })
            .collect();
        assert_eq!(results, [ToolStatus::Done]);
    }
}

#[tokio::test]
async fn c068_an_after_hook_whose_consumer_leaves_goes_on_and_so_do_the_others() {
    struct Slow(Gate, Log);
    impl Hooks for Slow {
        fn id(&self) -> &str {
            "slow"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }
        async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
            self.0.pass().await;
            self.1.say(format!("slow {}", named(end)));
            Ok(())
        }
    }
    let (log, gate) = (Log::default(), Gate::new());
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(Slow(gate.clone(), log.clone()))))
        .layer(log.on_run("b"))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let mut answer = task::spawn(answer.collect());
    assert_pending!(answer.poll());
    assert_eq!(log.take(), ["b finished"]);
    drop(answer);
    // Both are told of the same end.
    assert_eq!(log.take(), ["a finished"]);
    gate.open();
    settle().await;
    assert_eq!(log.take(), ["slow finished"]);
}

#[tokio::test]
async fn a_dropped_run_is_told_of_by_hooks_that_wait_too() {
    struct Writes(Log);
    impl Hooks for Writes {
        fn id(&self) -> &str {
            "writes"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }
        async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
            tokio::task::yield_now().await;
            self.0.say(named(end));
            Ok(())
        }
    }
    let log = Log::default();
    let model = ScriptedModel::new().text("hi").never();
    let agent = hooks::run(Arc::new(Writes(log.clone()))).layer(talks(model));
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    settle().await;
    assert_eq!(log.take(), ["dropped"]);
}

#[test]
fn a_drop_without_a_runtime_is_told_to_hooks_that_do_not_wait() {
    let log = Log::default();
    let model = ScriptedModel::new().text("hi").never();
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(After("h", Does::Hangs))))
        .service(talks(model));
    let mut call = task::spawn(agent.oneshot(ChatRequest::user("hi")));
    let answer = tokio_test::assert_ready_ok!(call.poll());
    drop(answer);
    assert_eq!(log.take(), ["a dropped"]);
}

#[tokio::test]
async fn an_event_that_makes_a_hook_panic_is_its_last() {
    struct Panics;
    impl Hooks for Panics {
        fn id(&self) -> &str {
            "panics"
        }

        fn interest(&self) -> Interest {
            used(Interest::EVENT)
        }
        fn event(&self, _: &Event, _: &Context) {
            panic!("oh");
        }
    }
    let agent = hooks::run(Arc::new(Panics)).layer(talks(ScriptedModel::new().deltas(["a", "b"])));
    let (request, failures) = with_failures(ChatRequest::user("hi"));
    let answer = agent.oneshot(request).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "ab");
    assert_eq!(failed(&failures), ["panics.event: panicked: oh"]);
}

// ---- before ----

/// Writes down when it is called; may do something before a run.
struct Before(&'static str, Option<Does>, Log);

impl Hooks for Before {
    fn id(&self) -> &str {
        self.0
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_RUN | Interest::AFTER_RUN)
    }

    async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        self.2.say(format!("{} before", self.0));
        match self.1 {
            Some(does) => does.it().await,
            None => Ok(Flow::Continue),
        }
    }

    async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.2.say(format!("{} {}", self.0, named(end)));
        Ok(())
    }
}

#[tokio::test]
async fn c003_before_in_the_order_added_and_after_in_reverse() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Before("a", None, log.clone()))))
        .layer(hooks::run(Arc::new(Before("b", None, log.clone()))))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(
        log.take(),
        ["a before", "b before", "b finished", "a finished"]
    );
}

#[tokio::test]
async fn c004_the_hooks_of_one_run_are_outside_those_of_the_agent() {
    let log = Log::default();
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Before("agent", None, log.clone()))))
        .service(talks(ScriptedModel::new().text("hi")));
    let run = hooks::run(Arc::new(Before("run", None, log.clone()))).layer(agent);
    assert_finishes(run.oneshot(ChatRequest::user("hi")).await.unwrap().body).await;
    assert_eq!(
        log.take(),
        [
            "run before",
            "agent before",
            "agent finished",
            "run finished"
        ]
    );
}

#[tokio::test]
async fn c010_a_before_that_fails_stops_those_inside_and_those_entered_get_their_end() {
    for (does, end) in [
        (Does::Fails, "failed permission E403"),
        (Does::Panics, "failed other"),
    ] {
        let log = Log::default();
        let model = ScriptedModel::new().text("hi");
        let agent = ServiceBuilder::new()
            .layer(hooks::run(Arc::new(Before("a", None, log.clone()))))
            .layer(hooks::run(Arc::new(Before("b", Some(does), log.clone()))))
            .layer(hooks::run(Arc::new(Before("c", None, log.clone()))))
            .service(talks(model.clone()));
        let error = agent.oneshot(ChatRequest::user("hi")).await.err().unwrap();
        assert_eq!(error.phase(), Some(Phase::Run));
        assert_eq!(
            log.take(),
            [
                "a before".to_owned(),
                "b before".to_owned(),
                format!("b {end}"),
                format!("a {end}")
            ]
        );
        assert_eq!(model.calls(), 0);
    }
}

#[tokio::test]
async fn a_before_that_hangs_ends_when_the_run_is_to_stop() {
    // Cancelled.
    let log = Log::default();
    let model = ScriptedModel::new().text("hi");
    let layer = hooks::run(Arc::new(Before("h", Some(Does::Hangs), log.clone())));
    let agent = layer.layer(talks(model.clone()));
    let request = ChatRequest::user("hi");
    let context = request.context.clone();
    let mut call = task::spawn(agent.clone().oneshot(request));
    assert_pending!(call.poll());
    context.cancel(CancelReason::User);
    assert!(call.is_woken());
    let (_, finish) = assert_finishes(call.await.unwrap().body).await;
    assert_eq!(finish.transcript.unwrap().len(), 1);
    assert_eq!(log.take(), ["h before", "h aborted User"]);

    // Late.
    let test = TestEnvironment::new();
    let deadline = test.context().now() + Duration::from_secs(5);
    let context = test.context_builder().deadline(deadline).build();
    let request = ChatRequest::user("hi").with_context(context);
    let mut call = task::spawn(agent.clone().oneshot(request));
    assert_pending!(call.poll());
    test.advance(Duration::from_secs(5));
    assert!(call.is_woken());
    assert_eq!(call.await.err().unwrap().kind(), ErrorKind::Timeout);
    assert_eq!(log.take(), ["h before", "h failed timeout"]);

    // Dropped.
    let mut call = task::spawn(agent.oneshot(ChatRequest::user("hi")));
    assert_pending!(call.poll());
    drop(call);
    assert_eq!(log.take(), ["h before", "h dropped"]);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn a_hook_answers_or_halts_in_the_place_of_what_is_inside() {
    struct Says(Flow<Str>);
    impl Hooks for Says {
        fn id(&self) -> &str {
            "says"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_RUN)
        }
        async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
            Ok(self.0.clone())
        }
    }
    for (flow, end, turns) in [
        (Flow::answer("From the cache."), "finished", 2),
        (Flow::halt("closed"), "halted closed", 1),
    ] {
        let log = Log::default();
        let model = ScriptedModel::new().text("hi");
        let agent = ServiceBuilder::new()
            .layer(log.on_run("a"))
            .layer(hooks::run(Arc::new(Says(flow))))
            .service(talks(model.clone()));
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = answer.collect().await.unwrap();
        assert_eq!(answer.transcript().unwrap().len(), turns);
        assert_eq!(log.take(), [format!("a {end}")]);
        assert_eq!(model.calls(), 0);
    }
}

/// Ends each run that goes on.
struct OnReply(Flow<Str>);

impl Hooks for OnReply {
    fn id(&self) -> &str {
        "on_reply"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_RUN)
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        Ok(match request.resume {
            Some(_) => self.0.clone(),
            None => Flow::Continue,
        })
    }
}

#[tokio::test]
async fn a_run_that_goes_on_is_closed_if_a_hook_answers_or_halts_in_its_place() {
    let halted = Outcome::Halted {
        reason: "closed".into(),
    };
    for (flow, outcome, said) in [
        (Flow::halt("closed"), halted, ""),
        (Flow::answer("Closed."), Outcome::Completed, "Closed."),
    ] {
        // One call is done and paid for, and the other one waits.
        let tools = ScriptedTools::new()
            .answers("search", "42")
            .asks("pay", "paid");
        let model = ScriptedModel::new()
            .tool_call("search", json!({}))
            .tool_call("pay", json!({}))
            .usage(Usage::new(3, 2));
        let agent = hooks::run(Arc::new(OnReply(flow))).layer(works(tools.clone(), model));
        let answer = agent.clone().oneshot(ChatRequest::user("hi")).await;
        let state = *answer
            .unwrap()
            .collect()
            .await
            .unwrap()
            .finish
            .state
            .unwrap();
        let reply = Reply::approve(state.interrupts()[0].id.clone());
        let request = ChatRequest::resume(state, vec![reply]);

        let again = request.clone();
        let answer = agent.clone().oneshot(request).await.unwrap();
        let (events, finish) = assert_finishes(answer.body).await;
        assert_eq!((finish.outcome, tools.done()), (outcome, 1));
        assert_eq!(finish.usage, Usage::new(3, 2));
        let results = events.iter().filter_map(|event| match event {
            Event::ToolResult(result) => Some((result.name.as_str(), result.outcome.status)),
            _ => None,
        });
        assert_eq!(
            results.collect::<Vec<_>>(),
            [("search", ToolStatus::Done), ("pay", ToolStatus::Cancelled)]
        );
        let transcript = finish.transcript.unwrap();
        assert_eq!(transcript.len(), 2 + usize::from(!said.is_empty()));
        let text = |event: &Event| matches!(event, Event::TextDelta(text) if *text == *said);
        assert_eq!(events.iter().any(text), !said.is_empty());

        // It is taken, for whoever else would go on with it.
        let error = agent.oneshot(again).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
}

#[tokio::test]
async fn a_hook_that_ends_a_run_that_goes_on_checks_the_replies_as_the_agent_does() {
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = ScriptedModel::new().tool_call("pay", json!({}));
    let agent = hooks::run(Arc::new(OnReply(Flow::halt("closed")))).layer(works(tools, model));
    let answer = agent.clone().oneshot(ChatRequest::user("hi")).await;
    let state = *answer
        .unwrap()
        .collect()
        .await
        .unwrap()
        .finish
        .state
        .unwrap();
    let wrong = vec![Reply::approve(InterruptId::new("?"))];
    let error = agent.oneshot(ChatRequest::resume(state, wrong)).await;
    assert_eq!(error.err().unwrap().code(), Some("unknown_interrupt"));
}

#[tokio::test]
async fn a_claimed_round_is_closed_if_a_hook_halts_in_the_place_of_what_is_inside() {
    let mut history = Transcript::new();
    history.push_user("hi");
    let call = ToolCallPart::new(CallId::new("c"), "pay", json!({}));
    let part = Part::new(PartKind::ToolCall(call));
    let open = OpenRound::new(Message::new(Role::Assistant, vec![part])).unwrap();
    let request = ChatRequest::resume_history(history, open, Vec::new());
    let agent = hooks::run(Arc::new(OnReply(Flow::halt("closed"))))
        .layer(talks(ScriptedModel::new().text("hi")));
    let answer = agent
        .oneshot(request)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(answer.transcript().unwrap().len(), 2);
}

/// Does something before the model call of a step.
struct AtStep(u32, Flow<Vec<Event>>);

impl Hooks for AtStep {
    fn id(&self) -> &str {
        "at_step"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_MODEL)
    }

    async fn before_model(&self, request: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        Ok(match request.context.step() == self.0 {
            true => self.1.clone(),
            false => Flow::Continue,
        })
    }
}

#[tokio::test]
async fn s010_a_model_call_is_answered_or_the_run_halted_before_it() {
    for (flow, end, said) in [
        (
            Flow::Answer(vec![Event::text("From the cache.")]),
            "finished",
            "From the cache.",
        ),
        (Flow::halt("too dear"), "halted too dear", ""),
    ] {
        let log = Log::default();
        let tools = ScriptedTools::new().answers("t", "42");
        let model = ScriptedModel::new().tool_call("t", json!({}));
        let agent = ServiceBuilder::new()
            .layer(log.on_run("a"))
            .layer(AgentLayer::new(tools.clone()))
            .layer(hooks::model(Arc::new(AtStep(1, flow))))
            .service(model.clone());
        let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
        let answer = answer.collect().await.unwrap();
        assert_eq!(answer.text(), said);
        assert_eq!(log.take(), [format!("a {end}")]);
        assert_eq!((model.calls(), tools.done()), (1, 1));
        // What was paid for is kept: the question, the round, and what was said.
        let turns = 2 + usize::from(!said.is_empty());
        assert_eq!(answer.transcript().unwrap().len(), turns);
    }
}

#[tokio::test]
async fn s010_a_hook_may_call_tools_in_the_place_of_the_model() {
    let part = ToolCallPart::new(CallId::new("c"), "t", json!({}));
    let flow = Flow::Answer(vec![Event::tool_call(part)]);
    let tools = ScriptedTools::new().answers("t", "42");
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.clone()))
        .layer(hooks::model(Arc::new(AtStep(0, flow))))
        .service(ScriptedModel::new().text("It is 42."));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "It is 42.");
    assert_eq!(tools.done(), 1);
}

// ---- requests ----

/// Adds a line to what the model is told, at a place.
struct Line(&'static str, Phase);

impl Hooks for Line {
    fn id(&self) -> &str {
        self.0
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_RUN | Interest::BEFORE_MODEL)
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        if self.1 == Phase::Run {
            request.system.push(SystemSegment::new(self.0));
        }
        Ok(Flow::Continue)
    }

    async fn before_model(&self, request: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        if self.1 == Phase::Model {
            request.system.push(SystemSegment::new(self.0));
        }
        Ok(Flow::Continue)
    }
}

/// A tool turn, then a text turn.
fn two_steps() -> (ScriptedTools, ScriptedModel) {
    let tools = ScriptedTools::new().answers("t", "42");
    let model = ScriptedModel::new().tool_call("t", json!({}));
    (tools, model.then().text("It is 42."))
}

// C14, a change that is committed inside of the run for its later steps, is the next test; a run hook
// is outside of the loop, so its change is not a view.
#[tokio::test]
async fn c011_c013_lines_are_added_in_order_once_per_call_and_for_the_run() {
    let (tools, model) = two_steps();
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Line("sticky", Phase::Run))))
        .layer(AgentLayer::new(tools))
        .layer(hooks::model(Arc::new(Line("a", Phase::Model))))
        .layer(hooks::model(Arc::new(Line("b", Phase::Model))))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    for request in model.requests() {
        assert_eq!(request.system.text(), "sticky\n\na\n\nb");
    }
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn c014_a_step_gate_commits_a_line_for_all_later_steps() {
    struct Commits;
    impl StepGate for Commits {
        fn name(&self) -> &str {
            "commits"
        }

        async fn before_step(&self, draft: &mut StepDraft) -> Result<StepDecision, BoxError> {
            if draft.step == 1 {
                let segment = SystemSegment::new("committed");
                draft.system_mut().push(segment);
            }
            Ok(StepDecision::Continue)
        }
    }

    let tools = ScriptedTools::new().answers("t", "42");
    let model = ScriptedModel::new().tool_call("t", json!({}));
    let model = model
        .then()
        .tool_call("t", json!({}))
        .then()
        .text("It is 42.");
    let agent = AgentLayer::new(tools).gate(Commits);
    let agent =
        agent.layer(hooks::model(Arc::new(Line("view", Phase::Model))).layer(model.clone()));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    let seen: Vec<_> = model.requests().iter().map(|it| it.system.text()).collect();
    assert_eq!(seen, ["view", "committed\n\nview", "committed\n\nview"]);
}

#[tokio::test]
async fn c012_tools_hidden_at_one_step_are_there_at_the_next() {
    struct Hides;
    impl Hooks for Hides {
        fn id(&self) -> &str {
            "hides"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_MODEL)
        }
        async fn before_model(
            &self,
            request: &mut ChatRequest,
        ) -> Result<Flow<Vec<Event>>, BoxError> {
            if request.context.step() == 0 {
                request.tools.retain(|spec| spec.name == "t");
            }
            Ok(Flow::Continue)
        }
    }
    let (tools, model) = two_steps();
    let agent = ServiceBuilder::new()
        .layer(AgentLayer::new(tools.answers("u", "")))
        .layer(hooks::model(Arc::new(Hides)))
        .service(model.clone());
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    let offered = |at: usize| model.request(at).tools.len();
    assert_eq!((offered(0), offered(1)), (1, 2));
}

// ---- what they are told ----

/// Writes down what it is told of a run's course.
struct Course(Log);

impl Hooks for Course {
    fn id(&self) -> &str {
        "course"
    }

    fn interest(&self) -> Interest {
        used(
            Interest::STEP_STARTED
                | Interest::STEP_FINISHED
                | Interest::ROUND_FINISHED
                | Interest::AFTER_RUN,
        )
    }

    async fn step_started(&self, step: &StepStart, _: &Summary) -> Result<(), BoxError> {
        self.0.say(format!("step {} started", step.step));
        Ok(())
    }

    async fn step_finished(&self, step: &StepFinish, run: &Summary) -> Result<(), BoxError> {
        let (of_step, of_run) = (step.usage.input_tokens(), run.usage().input_tokens());
        self.0.say(format!(
            "step {} finished {of_step:?} {of_run:?}",
            step.step
        ));
        Ok(())
    }

    async fn round_finished(&self, results: &[ToolResult], _: &Summary) -> Result<(), BoxError> {
        let names: Vec<_> = results.iter().map(|r| r.name.as_str()).collect();
        self.0.say(format!("round finished {names:?}"));
        Ok(())
    }

    async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
        let message = run.message();
        let calls = message.tool_calls().count();
        self.0.say(format!(
            "{} {calls} {:?} {:?}",
            named(end),
            run.usage().input_tokens(),
            run.took()
        ));
        Ok(())
    }
}

#[tokio::test]
async fn a_run_is_told_of_step_by_step_and_summed_up() {
    let log = Log::default();
    let test = TestEnvironment::new();
    let clock = test.clone();
    let tools = ScriptedTools::new().tool("t", move |_| {
        clock.advance(Duration::from_secs(2));
        async { ToolOutcome::done("42") }
    });
    let model = ScriptedModel::new()
        .tool_call("t", json!({"a": 1}))
        .tool_call("t", json!({"a": 2}))
        .usage(Usage::new(10, 1))
        .then()
        .text("ok")
        .usage(Usage::new(20, 1));
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Course(log.clone()))))
        .service(works(tools, model));
    let answer = agent.oneshot(test.request("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(
        log.take(),
        [
            "step 0 started",
            "step 0 finished Some(10) Some(10)",
            "round finished [\"t\", \"t\"]",
            "step 1 started",
            "step 1 finished Some(20) Some(30)",
            "finished 2 Some(30) 4s",
        ]
    );
}

#[tokio::test]
async fn a_round_that_closes_with_the_run_is_told_of_first() {
    let log = Log::default();
    let tools =
        ScriptedTools::new().tool("t", |_| async { ToolOutcome::done("").and_halt("enough") });
    let model = ScriptedModel::new().tool_call("t", json!({}));
    let agent = hooks::run(Arc::new(Course(log.clone()))).layer(works(tools, model));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    let log = log.take();
    assert!(log[2].starts_with("round finished") && log[3].starts_with("halted enough"));
}

#[tokio::test]
async fn a_round_that_waited_is_told_of_whole() {
    let log = Log::default();
    let tools = ScriptedTools::new().answers("t", "").asks("pay", "paid");
    let model = ScriptedModel::new()
        .tool_call("t", json!({}))
        .tool_call("pay", json!({}));
    let agent =
        hooks::run(Arc::new(Course(log.clone()))).layer(works(tools, model.then().text("Done.")));
    let answer = agent
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap();
    let (_, finish) = assert_finishes(answer.body).await;
    assert!(!log.take().iter().any(|line| line.starts_with("round")));
    let state = *finish.state.unwrap();
    let reply = Reply::approve(state.interrupts()[0].id.clone());
    let answer = agent
        .oneshot(ChatRequest::resume(state, vec![reply]))
        .await
        .unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(
        log.take()[..2],
        ["round finished [\"t\", \"pay\"]", "step 1 started"]
    );
}

#[tokio::test]
async fn a_step_hook_that_hangs_ends_when_the_run_is_cancelled_and_fails_nobody() {
    struct Step(Does);
    impl Hooks for Step {
        fn id(&self) -> &str {
            "step"
        }

        fn interest(&self) -> Interest {
            used(Interest::STEP_STARTED)
        }
        async fn step_started(&self, _: &StepStart, _: &Summary) -> Result<(), BoxError> {
            self.0.it().await
        }
    }
    for (does, outcome) in [
        (Does::Fails, Outcome::Completed),
        (Does::Panics, Outcome::Completed),
        (
            Does::Hangs,
            Outcome::Aborted {
                reason: CancelReason::User,
            },
        ),
    ] {
        let log = Log::default();
        let agent = ServiceBuilder::new()
            .layer(hooks::run(Arc::new(Step(does))))
            .layer(log.on_run("b"))
            .service(talks(ScriptedModel::new().text("hi")));
        let (request, failures) = with_failures(ChatRequest::user("hi"));
        let context = request.context.clone();
        let answer = agent.oneshot(request).await.unwrap();
        let mut answer = task::spawn(answer.collect());
        if matches!(does, Does::Hangs) {
            assert_pending!(answer.poll());
            context.cancel(CancelReason::User);
            assert!(answer.is_woken());
        }
        assert_eq!(answer.await.unwrap().finish.outcome, outcome);
        let is_failed = usize::from(!matches!(does, Does::Hangs));
        assert_eq!(failed(&failures).len(), is_failed);
        assert_eq!(log.take().len(), 1);
    }
}

// ---- deferred work ----

struct Defers<F>(F);

impl<F> Hooks for Defers<F>
where
    F: Fn(&Context) + Send + Sync + 'static,
{
    fn id(&self) -> &str {
        "defers"
    }

    fn interest(&self) -> Interest {
        used(Interest::EVENT)
    }

    fn event(&self, event: &Event, context: &Context) {
        if event.is_finish() {
            return;
        }
        (self.0)(context);
    }
}

#[tokio::test]
async fn c065_deferred_work_delays_no_event_and_comes_after_the_end() {
    let (log, gate) = (Log::default(), Gate::new());
    let (said, waits) = (log.clone(), gate.clone());
    let defers = Defers(move |context: &Context| {
        let (said, waits) = (said.clone(), waits.clone());
        context.defer(async move {
            waits.pass().await;
            said.say("deferred");
        });
    });
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(defers)))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    let items = collect_events(answer.body).await;
    // One for each event but the last.
    let deferred = items.len() - 1;
    assert_eq!(log.take(), ["a finished"]);
    gate.reached_times(deferred).await;
    assert!(log.take().is_empty());
    gate.open();
    settle().await;
    assert_eq!(log.take().len(), deferred);
}

#[tokio::test]
async fn c066_deferred_work_that_never_ends_ends_no_run_late() {
    let log = Log::default();
    let defers = Defers(|context: &Context| context.defer(pending()));
    let agent = ServiceBuilder::new()
        .layer(log.on_run("a"))
        .layer(hooks::run(Arc::new(defers)))
        .service(talks(ScriptedModel::new().text("hi")));
    let answer = agent.oneshot(ChatRequest::user("hi")).await.unwrap();
    assert_finishes(answer.body).await;
    assert_eq!(log.take(), ["a finished"]);
}

#[tokio::test]
async fn c065_work_that_is_left_at_the_end_is_done_too() {
    struct Audit(Log);
    impl Hooks for Audit {
        fn id(&self) -> &str {
            "audit"
        }

        fn interest(&self) -> Interest {
            used(Interest::AFTER_RUN)
        }
        async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
            let (log, end) = (self.0.clone(), named(end));
            run.context().defer(async move { log.say(end) });
            Ok(())
        }
    }
    let log = Log::default();
    // A scripted model would keep the request, and so the run.
    let model = tower::service_fn(|_: ChatRequest| async {
        let finish = Event::finish(FinishReason::Stop, Usage::default());
        let body = futures_util::stream::iter([Ok(Event::text("hi")), Ok(finish)]);
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Audit(log.clone()))))
        .layer(AgentLayer::new(NoTools))
        .service(model);
    let answer = agent
        .clone()
        .oneshot(ChatRequest::user("hi"))
        .await
        .unwrap();
    assert_finishes(answer.body).await;
    settle().await;
    assert_eq!(log.take(), ["finished"]);
    drop(agent.oneshot(ChatRequest::user("hi")).await.unwrap());
    settle().await;
    assert_eq!(log.take(), ["dropped"]);
}

// ---- the layer ----

struct Nothing;

impl Hooks for Nothing {
    fn id(&self) -> &str {
        "nothing"
    }

    fn interest(&self) -> Interest {
        Interest::NONE
    }
}

/// Each of its methods takes a tick; begins and ends are logged.
struct Slow(Log);

impl Slow {
    async fn tick<T>(&self, value: T) -> Result<T, BoxError> {
        Pace::NextTick.pass(&Context::new()).await;
        Ok(value)
    }
}

impl Hooks for Slow {
    fn id(&self) -> &str {
        "slow"
    }

    fn interest(&self) -> Interest {
        used(
            Interest::BEFORE_RUN
                | Interest::STEP_STARTED
                | Interest::STEP_FINISHED
                | Interest::ROUND_FINISHED
                | Interest::AFTER_RUN
                | Interest::BEFORE_STEP
                | Interest::BEFORE_ROUND
                | Interest::BEFORE_FINISH
                | Interest::BEFORE_MODEL
                | Interest::AFTER_MODEL
                | Interest::BEFORE_CALL
                | Interest::AFTER_CALL
                | Interest::CALL_CANCELLED,
        )
    }

    async fn before_run(&self, _: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        self.0.say("run begins");
        self.tick(Flow::Continue).await
    }

    async fn step_started(&self, _: &StepStart, _: &Summary) -> Result<(), BoxError> {
        self.tick(()).await
    }

    async fn step_finished(&self, _: &StepFinish, _: &Summary) -> Result<(), BoxError> {
        self.tick(()).await
    }

    async fn round_finished(&self, _: &[ToolResult], _: &Summary) -> Result<(), BoxError> {
        self.tick(()).await
    }

    async fn after_run(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.0.say("run ends");
        self.tick(()).await
    }

    async fn before_step(&self, _: &mut StepDraft) -> Result<StepDecision, BoxError> {
        self.tick(StepDecision::Continue).await
    }

    async fn before_round(&self, _: &StepView) -> Result<RoundDecision, BoxError> {
        self.tick(RoundDecision::Continue).await
    }

    async fn before_finish(&self, _: &mut StepDraft) -> Result<FinishDecision, BoxError> {
        self.tick(FinishDecision::Finish).await
    }

    async fn before_model(&self, _: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        self.0.say("call begins");
        self.tick(Flow::Continue).await
    }

    async fn after_model(&self, _: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.0.say("call ends");
        self.tick(()).await
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.0.say("tool begins");
        self.tick(Flow::Continue).await
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.0.say("tool ends");
        self.tick(None).await
    }

    fn call_cancelled(&self, _: &ToolCall) {
        self.0.say("tool ends");
    }
}

/// An agent with two steps, whose hooks, model and tool all take ticks.
fn slow(log: &Log, model: ScriptedModel) -> BoxModel {
    let slow = Arc::new(Slow(log.clone()));
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async {
            tokio::task::yield_now().await;
            "2 rows"
        }))
        .hooks(hooks::tool(Arc::clone(&slow)));
    let agent = ServiceBuilder::new()
        .layer(hooks::run(Arc::clone(&slow)))
        .layer(AgentLayer::new(tools).gate(hooks::step_gate(Arc::clone(&slow))))
        .layer(hooks::model(slow))
        .service(model);
    BoxModel::new(agent)
}

fn slow_model() -> ScriptedModel {
    two_steps().1.paced(Pace::NextTick)
}

#[test]
fn hooks_that_take_time_are_all_called_without_a_wake() {
    let (logged, text) = watched(async {
        let log = Log::default();
        let call = slow(&log, slow_model()).oneshot(ChatRequest::user("hi"));
        let answer = Spurious::new(call).await.unwrap();
        let answer = answer.map_body(Spurious::new).collect().await.unwrap();
        (log.take(), answer.text())
    });
    assert_eq!(text, "It is 42.");
    let calls = ["call begins", "call ends"];
    let tool = ["tool begins", "tool ends"];
    let expected = [&["run begins"][..], &calls, &tool, &calls, &["run ends"]];
    assert_eq!(logged, expected.concat());
}

#[tokio::test]
async fn dropped_wherever_they_wait_hooks_see_each_end_once() {
    let scene = RefCell::new(None);
    let run = || {
        let (log, model) = (Log::default(), slow_model());
        let agent = slow(&log, model.clone());
        *scene.borrow_mut() = Some((log, model));
        async move { agent.oneshot(ChatRequest::user("hi")).await?.text().await }
    };
    let drops = drop_at_each_wait(run, async |polls| {
        settle().await;
        let (log, model) = scene.take().unwrap();
        let logged = log.take();
        let count = |line: &str| logged.iter().filter(|it| *it == line).count();
        for what in ["run", "call", "tool"] {
            let (begun, ended) = (
                count(&format!("{what} begins")),
                count(&format!("{what} ends")),
            );
            assert_eq!(begun, ended, "{polls}: {logged:?}");
        }
        assert_eq!(model.live(), 0, "{polls}");
    });
    let drops = drops.await;
    assert!(drops > 15, "{drops}");
}

#[tokio::test(start_paused = true)]
async fn hooks_keep_the_rules_of_layers() {
    check_layer(hooks::run(Arc::new(Slow(Log::default())))).await;
    check_layer(hooks::model(Arc::new(Slow(Log::default())))).await;

    check_layer(hooks::run(Arc::new(Nothing))).await;
    check_layer(hooks::model(Arc::new(Nothing))).await;
    check_layer(hooks::run(Arc::new(Course(Log::default())))).await;
    check_layer(hooks::run(Arc::new(Before("a", None, Log::default())))).await;
    check_layer(hooks::model(Arc::new(Line("a", Phase::Model)))).await;
}

#[tokio::test]
async fn a_hook_without_a_before_hands_on_readiness() {
    let model = ScriptedModel::new().unready(broken());
    let mut service = hooks::run(Arc::new(Nothing)).layer(model.clone());
    assert_eq!(service.ready().await.err().unwrap().code(), Some("E7"));
    // One that may answer itself is always ready.
    let mut service =
        hooks::model(Arc::new(AtStep(0, Flow::Answer(vec![Event::text("hi")])))).layer(model);
    let call = service.ready().await.unwrap().call(ChatRequest::user("hi"));
    assert_eq!(call.await.unwrap().text().await.unwrap(), "hi");
}

#[test]
fn a_long_stack_of_hooks_is_send_and_static() {
    fn check<S>(_: S)
    where
        S: ModelService<Body: Send + 'static, Future: Send + 'static>
            + Clone
            + Send
            + Sync
            + 'static,
    {
    }
    let layers = ServiceBuilder::new()
        .layer(hooks::run(Arc::new(Nothing)))
        .layer(hooks::run(Arc::new(Course(Log::default()))))
        .layer(hooks::run(Arc::new(Before("a", None, Log::default()))))
        .layer(hooks::run(Arc::new(Before("b", None, Log::default()))))
        .layer(hooks::run(Arc::new(Course(Log::default()))))
        .layer(hooks::run(Arc::new(Course(Log::default()))))
        .layer(AgentLayer::new(NoTools))
        .layer(hooks::model(Arc::new(Line("a", Phase::Model))))
        .layer(hooks::model(Arc::new(Line("b", Phase::Model))));
    check(layers.service(ScriptedModel::new()));
}
