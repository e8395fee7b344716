//! Hooks around tool calls, layers for some of them, and another attempt at one.

mod cancellation;
mod failures;
mod retries;
mod scopes;

use super::used;
use crate::common::hooks::{after_fn, before_fn};
use crate::common::{
    Log, agent, note, one, pace, paced, part, polled, results, round, run, text, tool,
    tool_with_context,
};
use concentric_core::hooks::{self, BeforeCall, Flow, Hooks, Interest, ToolHooksLayer};
use concentric_core::{
    Annotations, BoxError, BoxTool, CancelReason, Clearance, Context, Environment, Error,
    ErrorKind, Outcome, Refusal, RoundCall, Suspension, ToolCall, ToolOutcome, ToolService,
    ToolStatus, Transcript,
    context::{Clock, Ids, Random, Sleep},
};
use concentric_tools::{
    Json, Matcher, NoArguments, RetryTool, ScopedExt, Tool, ToolError, Toolset, fatal,
};
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::{
    future::{pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::sync::oneshot;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task::spawn};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, layer::layer_fn, limit::ConcurrencyLimitLayer,
    retry::RetryLayer, service_fn, timeout::TimeoutLayer,
};

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: u8,
}

fn number(log: &Log) -> Tool {
    let log = log.clone();
    tool("t", "", move |Number { n }| {
        log.add(format!("ran {n}"));
        async move { n.to_string() }
    })
}

/// A call that no round makes.
fn call(name: &str) -> ToolCall {
    call_in(name, Context::new())
}

fn call_in(name: &str, context: Context) -> ToolCall {
    ToolCall::new(part(0, name, "{}"), context)
}

/// Notes whatever it is told of.
#[derive(Clone)]
struct Recorder {
    name: &'static str,
    log: Log,
}

fn recorder(name: &'static str, log: &Log) -> ToolHooksLayer<Recorder> {
    let log = log.clone();
    hooks::tool(Arc::new(Recorder { name, log }))
}

impl Hooks for Recorder {
    fn id(&self) -> &str {
        self.name
    }

    fn interest(&self) -> Interest {
        used(
            Interest::BEFORE_CALL
                | Interest::AFTER_CALL
                | Interest::ON_CALL_ERROR
                | Interest::CALL_CANCELLED,
        )
    }

    async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        let (name, arguments) = (self.name, call.arguments().as_str());
        self.log
            .add(format!("{name} before {} {arguments}", call.id()));
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        call: &ToolCall,
        outcome: &ToolOutcome,
        took: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        let (name, id, status) = (self.name, call.id(), outcome.status);
        self.log
            .add(format!("{name} after {id} {status:?} {}", took.as_secs()));
        Ok(None)
    }

    async fn on_call_error(
        &self,
        call: &ToolCall,
        error: &Error,
        took: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        let (name, id) = (self.name, call.id());
        self.log
            .add(format!("{name} error {id} {error} {}", took.as_secs()));
        Ok(None)
    }

    fn call_cancelled(&self, call: &ToolCall) {
        self.log
            .add(format!("{} cancelled {}", self.name, call.id()));
    }
}

/// A hook of parts that a test gives.
struct Parts<B, A, E> {
    before: B,
    after: A,
    on_error: E,
}

impl<B, A, E> Hooks for Parts<B, A, E>
where
    B: Fn() -> Result<Flow<ToolOutcome>, BoxError> + Send + Sync + 'static,
    A: Fn() -> Result<Option<ToolOutcome>, BoxError> + Send + Sync + 'static,
    E: Fn() -> Result<Option<ToolOutcome>, BoxError> + Send + Sync + 'static,
{
    fn id(&self) -> &str {
        "parts"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_CALL | Interest::AFTER_CALL | Interest::ON_CALL_ERROR)
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        (self.before)()
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        (self.after)()
    }

    async fn on_call_error(
        &self,
        _: &ToolCall,
        _: &Error,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        (self.on_error)()
    }
}

fn before<B>(before: B) -> ToolHooksLayer<impl Hooks>
where
    B: Fn() -> Result<Flow<ToolOutcome>, BoxError> + Send + Sync + 'static,
{
    hooks::tool(Arc::new(Parts {
        before,
        after: || Ok(None),
        on_error: || Ok(None),
    }))
}

fn after<A>(after: A) -> ToolHooksLayer<impl Hooks>
where
    A: Fn() -> Result<Option<ToolOutcome>, BoxError> + Send + Sync + 'static,
{
    hooks::tool(Arc::new(Parts {
        before: || Ok(Flow::Continue),
        after,
        on_error: || Ok(None),
    }))
}

fn on_error<E>(on_error: E) -> ToolHooksLayer<impl Hooks>
where
    E: Fn() -> Result<Option<ToolOutcome>, BoxError> + Send + Sync + 'static,
{
    hooks::tool(Arc::new(Parts {
        before: || Ok(Flow::Continue),
        after: || Ok(None),
        on_error,
    }))
}

/// Waits before and after a call until it is let go on.
struct Waiter {
    log: Log,
    before: Mutex<Option<oneshot::Receiver<()>>>,
    after: Mutex<Option<oneshot::Receiver<()>>>,
}

fn waiter(
    log: &Log,
) -> (
    ToolHooksLayer<Waiter>,
    oneshot::Sender<()>,
    oneshot::Sender<()>,
) {
    let ((go_before, before), (go_after, after)) = (oneshot::channel(), oneshot::channel());
    let layer = hooks::tool(Arc::new(Waiter {
        log: log.clone(),
        before: Mutex::new(Some(before)),
        after: Mutex::new(Some(after)),
    }));
    (layer, go_before, go_after)
}

impl Hooks for Waiter {
    fn id(&self) -> &str {
        "waiter"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_CALL | Interest::AFTER_CALL | Interest::CALL_CANCELLED)
    }

    async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.log.add("before");
        let go = self.before.lock().unwrap().take().unwrap();
        go.await?;
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        _: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.log.add("after");
        let go = self.after.lock().unwrap().take().unwrap();
        go.await?;
        Ok(None)
    }

    fn call_cancelled(&self, _: &ToolCall) {
        self.log.add("cancelled");
    }
}

/// Fails with what it is given.
fn failing(error: impl Fn() -> Error + Clone + Send + Sync + 'static) -> BoxTool {
    BoxTool::new(service_fn(move |call: ToolCall| {
        let error = error();
        async move {
            pace().pass(&call.context).await;
            Err::<ToolOutcome, _>(error)
        }
    }))
}

/// Time that passes when the test says so; a sleep lets it pass at once.
#[derive(Clone)]
struct TestClock(Arc<Mutex<SystemTime>>);

impl TestClock {
    fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }

    fn context(&self) -> concentric_core::context::ContextBuilder {
        Context::builder().environment(Environment::new(self.clone(), Zero, Zero))
    }
}

fn clock() -> TestClock {
    TestClock(Arc::new(Mutex::new(SystemTime::UNIX_EPOCH)))
}

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let clock = self.clone();
        Box::pin(async move { clock.advance(duration) })
    }
}

struct Zero;

impl Ids for Zero {
    fn next(&self, prefix: &str) -> concentric_core::Str {
        prefix.into()
    }
}

impl Random for Zero {
    fn next_u64(&self) -> u64 {
        u64::MAX
    }
}

// ---- order and flow ----

paced!(c002_hooks_nest_as_layers_do);
async fn c002_hooks_nest_as_layers_do() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(recorder("A", &log))
        .layer(recorder("B", &log));
    assert_eq!(text(&tools, "t", r#"{"n":1}"#).await, "1");
    assert_eq!(
        log.lines(),
        [
            r#"A before call-0 {"n":1}"#,
            r#"B before call-0 {"n":1}"#,
            "ran 1",
            "B after call-0 Done 0",
            "A after call-0 Done 0",
        ]
    );
}

paced!(c033_a_hook_that_answers_keeps_inner_layers_and_the_tool_from_running);
async fn c033_a_hook_that_answers_keeps_inner_layers_and_the_tool_from_running() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(before(|| Ok(Flow::answer(ToolOutcome::done("cached")))))
        .layer(note("inner", &log));
    let answer = agent(tools, vec![vec![("t", r#"{"n":1}"#)]]).await.unwrap();
    assert_eq!(results(&answer), ["call-0-0: cached"]);
    assert!(log.lines().is_empty());
}

paced!(c034_of_two_calls_one_is_blocked_and_the_other_runs);
async fn c034_of_two_calls_one_is_blocked_and_the_other_runs() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(before_fn("no_1", |call| {
            Ok(match call.arguments().as_str().contains('1') {
                true => Flow::deny("1 is not allowed"),
                false => Flow::Continue,
            })
        }));
    let all = run(&tools, &[("t", r#"{"n":1}"#), ("t", r#"{"n":2}"#)]).await;
    let all: Vec<_> = all.into_iter().map(|item| item.unwrap().outcome).collect();
    assert_eq!(
        all,
        [
            ToolOutcome::denied("1 is not allowed"),
            ToolOutcome::done("2")
        ]
    );
    let script = vec![vec![("t", r#"{"n":1}"#), ("t", r#"{"n":2}"#)]];
    let answer = agent(tools, script).await.unwrap();
    assert_eq!(
        results(&answer),
        ["call-0-0: 1 is not allowed", "call-0-1: 2"]
    );
    assert_eq!(log.lines(), ["ran 2", "ran 2"]);
}

paced!(c036_an_inner_hook_and_the_tool_see_edited_arguments);
async fn c036_an_inner_hook_and_the_tool_see_edited_arguments() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(recorder("outer", &log))
        .layer(before_fn("edit", |call| {
            call.set_arguments(r#"{"n":7}"#);
            Ok(Flow::Continue)
        }))
        .layer(recorder("inner", &log));
    assert_eq!(text(&tools, "t", r#"{"n":1}"#).await, "7");
    assert_eq!(
        log.lines()[..3],
        [
            r#"outer before call-0 {"n":1}"#,
            r#"inner before call-0 {"n":7}"#,
            "ran 7"
        ]
    );
}

/// Edits the arguments, and notes those it sees afterwards.
struct Edits(Log);

impl Hooks for Edits {
    fn id(&self) -> &str {
        "edits"
    }

    fn interest(&self) -> Interest {
        used(Interest::BEFORE_CALL | Interest::AFTER_CALL)
    }

    async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        call.insert(7_u8);
        call.set_arguments(r#"{"n":700}"#);
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        call: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        let seven = call.context.extensions().get::<u8>();
        self.0
            .add(format!("{} {seven:?}", call.arguments().as_str()));
        Ok(None)
    }
}

paced!(c037_edited_arguments_that_the_schema_does_not_allow_are_refused);
async fn c037_edited_arguments_that_the_schema_does_not_allow_are_refused() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(hooks::tool(Arc::new(Edits(log.clone()))));
    let outcome = one(&tools, "t", r#"{"n":1}"#).await;
    assert_eq!(outcome.status, ToolStatus::Failed);
    let told = outcome.content.text();
    assert!(told.contains("at `/n`: 700 is greater than"), "{told}");
    // A hook sees its own edits.
    assert_eq!(log.lines(), [r#"{"n":700} Some(7)"#]);
}

paced!(c038_after_a_skip_the_hook_is_told_once_with_duration_zero);
async fn c038_after_a_skip_the_hook_is_told_once_with_duration_zero() {
    let (clock, log) = (clock(), Log::default());
    let seen = log.clone();
    struct Skip(Log, TestClock);
    impl Hooks for Skip {
        fn id(&self) -> &str {
            "skip"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_CALL | Interest::AFTER_CALL)
        }

        async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
            self.1.advance(Duration::from_secs(5));
            Ok(Flow::answer(ToolOutcome::done("skipped")))
        }

        async fn after_call(
            &self,
            _: &ToolCall,
            outcome: &ToolOutcome,
            took: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            self.0.add(format!("{:?} {took:?}", outcome.status));
            Ok(None)
        }
    }
    let skip = hooks::tool(Arc::new(Skip(seen, clock.clone())));
    let mut service = skip.layer(failing(|| panic!("it is not called")));
    let call = call_in("t", clock.context().build());
    let outcome = service.ready().await.unwrap().call(call).await.unwrap();
    assert_eq!(outcome, ToolOutcome::done("skipped"));
    assert_eq!(log.lines(), ["Done 0ns"]);
}

paced!(s18_a_hook_is_told_how_long_the_rest_of_the_stack_took);
async fn s18_a_hook_is_told_how_long_the_rest_of_the_stack_took() {
    let (clock, log) = (clock(), Log::default());
    let passes = clock.clone();
    let slow = BoxTool::new(service_fn(move |_: ToolCall| {
        passes.advance(Duration::from_secs(3));
        ready(Ok::<_, Error>(ToolOutcome::done("")))
    }));
    let call = call_in("t", clock.context().build());
    recorder("A", &log).layer(slow).oneshot(call).await.unwrap();
    assert_eq!(log.lines()[1], "A after call-0 Done 3");
}

paced!(c040_hooks_are_told_once_of_each_call_that_is_not_run);
async fn c040_hooks_are_told_once_of_each_call_that_is_not_run() {
    let log = Log::default();
    let tools = Toolset::new().tool(number(&log)).hooks(recorder("A", &log));
    let script = vec![vec![
        ("unknown", "{}"),
        ("t", "{"),
        ("t", r#"{"n":"x"}"#),
        ("t", r#"{"n":1}"#),
    ]];
    let answer = agent(tools, script).await.unwrap();
    assert_eq!(results(&answer).len(), 4);
    for (id, status) in [(0, "Failed"), (1, "Failed"), (2, "Failed"), (3, "Done")] {
        let line = format!("A after call-0-{id} {status} 0");
        assert_eq!(log.count(&line), 1, "{line}: {:?}", log.lines());
    }
    assert_eq!(
        log.lines().iter().filter(|l| l.contains(" after ")).count(),
        4
    );
    // Nobody has to decide about a call that is not to run.
    assert!(
        !log.lines()
            .iter()
            .any(|l| l.starts_with("A before call-0-0"))
    );
}

paced!(of_a_call_that_was_settled_before_a_hook_is_told_what_came_of_it_and_no_more);
async fn of_a_call_that_was_settled_before_a_hook_is_told_what_came_of_it_and_no_more() {
    let log = Log::default();
    let mut refused = RoundCall::new(0, part(0, "t", "{}"));
    refused.state.stage = concentric_core::call::CallStage::Rejected(Refusal::DuplicateId);
    let clearance = Clearance::Settled(Arc::new(ToolOutcome::denied("no")));
    let call = ToolCall::of_round(refused, clearance, Transcript::new(), &Context::new());
    let inner = BoxTool::new(service_fn(async |call: ToolCall| {
        pace().pass(&call.context).await;
        Ok::<_, Error>(call.settled().unwrap().clone())
    }));
    let layers = ServiceBuilder::new()
        .layer(recorder("A", &log))
        .layer(before(|| panic!("it is not asked")));
    let outcome = layers.service(inner).oneshot(call).await.unwrap();
    assert_eq!(outcome, ToolOutcome::denied("no"));
    assert_eq!(log.lines(), ["A after call-0 Denied 0"]);
}

paced!(c041_a_hook_outside_a_guard_sees_the_call_and_the_block);
async fn c041_a_hook_outside_a_guard_sees_the_call_and_the_block() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(recorder("audit", &log))
        .layer(before(|| Ok(Flow::deny("no"))));
    let outcome = one(&tools, "t", r#"{"n":1}"#).await;
    assert_eq!(outcome, ToolOutcome::denied("no"));
    assert_eq!(
        log.lines(),
        [
            r#"audit before call-0 {"n":1}"#,
            "audit after call-0 Denied 0"
        ]
    );
}

paced!(c042_after_a_panic_inside_a_hook_is_told_once_of_a_failure);
async fn c042_after_a_panic_inside_a_hook_is_told_once_of_a_failure() {
    let log = Log::default();
    let panics = tool("t", "", |NoArguments {}| async { panic!("secret") as &str });
    let tools = Toolset::new().tool(panics).layer(recorder("A", &log));
    let told = text(&tools, "t", "").await;
    assert!(told.ends_with("The tool failed unexpectedly."), "{told}");

    // A layer, when it is called, and later.
    let calls: [fn() -> BoxTool; 2] = [
        || {
            BoxTool::new(service_fn(
                |_: ToolCall| -> std::future::Ready<Result<_, Error>> { panic!("secret") },
            ))
        },
        || {
            BoxTool::new(service_fn(async |call: ToolCall| -> Result<_, Error> {
                pace().pass(&call.context).await;
                panic!("secret")
            }))
        },
    ];
    for inner in calls {
        let service = recorder("A", &log).layer(inner());
        let outcome = service.oneshot(call("t")).await.unwrap();
        assert_eq!(
            outcome,
            ToolOutcome::failed("The tool failed unexpectedly.")
        );
    }
    // The function may have acted before it panicked.
    assert_eq!(log.count("A after call-0 Unknown 0"), 1);
    assert_eq!(log.count("A after call-0 Failed 0"), 2);
    assert_eq!(log.lines().len(), 6);
}

paced!(c046_a_hook_sees_the_data_that_the_model_does_not);
async fn c046_a_hook_sees_the_data_that_the_model_does_not() {
    let log = Log::default();
    let seen = log.clone();
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async {
            ("text", Json(json!({"id": 1})))
        }))
        .layer(after_fn("data", move |_, outcome, _| {
            seen.add(outcome.data.as_ref().unwrap().to_string());
            Ok(None)
        }));
    let answer = agent(tools, vec![vec![("t", "")]]).await.unwrap();
    assert_eq!(results(&answer), ["call-0-0: text"]);
    assert_eq!(log.lines(), [r#"{"id":1}"#]);
}

paced!(c048_c051_after_a_halt_from_a_hook_no_further_call_starts);
async fn c048_c051_after_a_halt_from_a_hook_no_further_call_starts() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(before_fn("halt", |call| {
            Ok(match call.arguments().as_str().contains('2') {
                true => Flow::halt("enough"),
                false => Flow::Continue,
            })
        }));
    let calls = vec![
        ("t", r#"{"n":1}"#),
        ("t", r#"{"n":2}"#),
        ("t", r#"{"n":3}"#),
    ];
    let answer = agent(tools, vec![calls]).await.unwrap();
    let reason = "enough".into();
    assert_eq!(answer.finish.outcome, Outcome::Halted { reason });
    assert_eq!(results(&answer).len(), 3);
    assert_eq!(log.lines(), ["ran 1"]);
}

paced!(c051_after_a_cancel_from_a_hook_no_further_call_starts);
async fn c051_after_a_cancel_from_a_hook_no_further_call_starts() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(before_fn("cancel", |call| {
            call.context.cancel(CancelReason::User);
            Ok(Flow::deny("cancelled"))
        }));
    let all = run(&tools, &[("t", r#"{"n":1}"#), ("t", r#"{"n":2}"#)]).await;
    let all: Vec<_> = all
        .into_iter()
        .map(|item| item.unwrap().outcome.status)
        .collect();
    assert_eq!(all, [ToolStatus::Denied, ToolStatus::Cancelled]);
    assert!(log.lines().is_empty());
}

paced!(a_hook_may_put_another_outcome_in_the_place_of_one);
async fn a_hook_may_put_another_outcome_in_the_place_of_one() {
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| async { "the key is 123" }))
        .layer(after_fn("redact", |_, outcome, _| {
            let text = outcome.content.text().replace("123", "***");
            Ok(Some(ToolOutcome::done(text)))
        }));
    assert_eq!(text(&tools, "t", "").await, "the key is ***");
}
