//! Hooks around tool calls, layers for some of them, and another attempt at one.

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

// ---- failures ----

paced!(c064_a_hook_that_fails_after_a_success_changes_and_doubles_nothing);
async fn c064_a_hook_that_fails_after_a_success_changes_and_doubles_nothing() {
    type After = fn() -> Result<Option<ToolOutcome>, BoxError>;
    let fails: [After; 3] = [
        || Err("gone".into()),
        || panic!("secret"),
        || Err(fatal("gone").into()),
    ];
    for fails in fails {
        let log = Log::default();
        let tools = Toolset::new()
            .tool(number(&log))
            .layer(recorder("A", &log))
            .layer(after(fails));
        let all = run(&tools, &[("t", r#"{"n":1}"#)]).await;
        let all: Vec<_> = all.into_iter().map(|item| item.unwrap().outcome).collect();
        assert_eq!(all, [ToolOutcome::done("1")]);
        assert_eq!(log.lines()[1..], ["ran 1", "A after call-0 Done 0"]);
    }
}

paced!(c064_a_hook_that_fails_on_an_error_changes_and_doubles_nothing);
async fn c064_a_hook_that_fails_on_an_error_changes_and_doubles_nothing() {
    type OnError = fn() -> Result<Option<ToolOutcome>, BoxError>;
    let fails: [OnError; 2] = [|| Err("gone".into()), || panic!("secret")];
    for fails in fails {
        let inner = failing(|| Error::new(ErrorKind::Server, "broken"));
        let error = on_error(fails).layer(inner).oneshot(call("t")).await;
        assert_eq!(error.unwrap_err().to_string(), "server: broken");
    }
}

paced!(without_its_check_a_call_is_not_run);
async fn without_its_check_a_call_is_not_run() {
    type Before = fn() -> Result<Flow<ToolOutcome>, BoxError>;
    let fails: [Before; 2] = [|| Err("secret".into()), || panic!("secret")];
    for fails in fails {
        let log = Log::default();
        let tools = Toolset::new()
            .tool(number(&log))
            .layer(recorder("A", &log))
            .layer(before(fails));
        let outcome = one(&tools, "t", r#"{"n":1}"#).await;
        let told = "A check of this call failed. The call was not run.";
        assert_eq!(outcome, ToolOutcome::failed(told));
        assert_eq!(log.lines()[1..], ["A after call-0 Failed 0"]);
    }
}

paced!(a_check_that_fails_for_good_ends_the_run);
async fn a_check_that_fails_for_good_ends_the_run() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&log))
        .layer(recorder("A", &log))
        .layer(before(|| Err(fatal("no more").into())));
    let mut outcomes = tools.oneshot(round(&[("t", r#"{"n":1}"#)])).await.unwrap();
    let error = outcomes.next().await.unwrap().unwrap_err();
    assert_eq!(error.message(), "no more");
    assert_eq!(log.lines()[1..], ["A error call-0 tool: no more 0"]);
}

paced!(an_error_inside_is_told_once_and_goes_on_as_it_was);
async fn an_error_inside_is_told_once_and_goes_on_as_it_was() {
    let log = Log::default();
    let inner = failing(|| Error::new(ErrorKind::RateLimited, "slow down").with_status(429));
    let error = recorder("A", &log).layer(inner).oneshot(call("t")).await;
    assert_eq!(error.unwrap_err().status(), Some(429));
    assert_eq!(
        log.lines(),
        [
            "A before call-0 {}",
            "A error call-0 rate_limited (HTTP 429): slow down 0"
        ]
    );
}

paced!(an_error_inside_may_become_an_outcome);
async fn an_error_inside_may_become_an_outcome() {
    let inner = failing(|| Error::new(ErrorKind::Server, "broken"));
    let service = on_error(|| Ok(Some(ToolOutcome::failed("later, please")))).layer(inner);
    let outcome = service.oneshot(call("t")).await.unwrap();
    assert_eq!(outcome, ToolOutcome::failed("later, please"));
}

paced!(a_call_that_waits_passes_untouched);
async fn a_call_that_waits_passes_untouched() {
    let log = Log::default();
    let waits = || Error::suspended(Suspension::held().with_state(json!(7)));
    let service = ServiceBuilder::new()
        .layer(recorder("A", &log))
        .layer(on_error(|| panic!("it is no error")))
        .service(failing(waits));
    let error = service.oneshot(call("t")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert_eq!(
        error.suspension().map(|(on, _)| on),
        Some(&Suspension::held().with_state(json!(7)))
    );
    assert_eq!(log.lines(), ["A before call-0 {}"]);

    // A hook may have a call wait, too.
    let service = ServiceBuilder::new()
        .layer(recorder("B", &log))
        .layer(before(move || Err(waits().into())))
        .service(failing(|| panic!("it is not called")));
    let error = service.oneshot(call("t")).await.unwrap_err();
    assert!(error.suspension().is_some());
    assert_eq!(log.lines()[1..], ["B before call-0 {}"]);
}

// ---- cancellation ----

/// Notes when it is dropped.
struct Dropped(Log);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add("dropped");
    }
}

fn hangs(log: &Log) -> BoxTool {
    let log = log.clone();
    BoxTool::new(service_fn(move |call: ToolCall| {
        let dropped = Dropped(log.clone());
        async move {
            let _dropped = dropped;
            pace().pass(&call.context).await;
            pending::<Result<ToolOutcome, Error>>().await
        }
    }))
}

paced!(a_call_that_is_dropped_is_cancelled_once);
async fn a_call_that_is_dropped_is_cancelled_once() {
    let log = Log::default();
    let mut service = recorder("A", &log).layer(hangs(&log));
    // While it runs: what runs is dropped first.
    let mut running = spawn(service.ready().await.unwrap().call(call("t")));
    assert_pending!(polled!(running.poll()));
    drop(running);
    assert_eq!(
        log.lines(),
        ["A before call-0 {}", "dropped", "A cancelled call-0"]
    );
    // Before it was polled.
    drop(service.ready().await.unwrap().call(call("t")));
    assert_eq!(log.count("A cancelled call-0"), 2);
    assert_eq!(log.count("A before call-0 {}"), 2);
    // A time limit outside.
    let limited = TimeoutLayer::new(Duration::ZERO).layer(service);
    limited.oneshot(call("t")).await.unwrap_err();
    assert_eq!(log.count("A cancelled call-0"), 3);
    assert!(
        !log.lines()
            .iter()
            .any(|l| l.contains("after") || l.contains("error"))
    );
}

paced!(c052_the_calls_of_a_run_that_is_cancelled_are_told_once);
async fn c052_the_calls_of_a_run_that_is_cancelled_are_told_once() {
    let log = Log::default();
    let tools = Toolset::new()
        .tool(tool("t", "", |NoArguments {}| pending::<&str>()))
        .layer(recorder("A", &log));
    let context = Context::new();
    let round = crate::common::round_in(&context, &[("t", "{}"), ("t", "{}")]);
    let mut outcomes = spawn(tools.oneshot(round).await.unwrap());
    assert_pending!(polled!(outcomes.poll_next()));
    drop(outcomes);
    for id in 0..2 {
        assert_eq!(log.count(&format!("A cancelled call-{id}")), 1);
    }
    assert_eq!(log.lines().len(), 4);
}

paced!(a_hook_that_waits_is_dropped_with_the_call);
async fn a_hook_that_waits_is_dropped_with_the_call() {
    let log = Log::default();
    let ok = BoxTool::new(service_fn(async |call: ToolCall| {
        pace().pass(&call.context).await;
        Ok::<_, Error>(ToolOutcome::done(""))
    }));
    // In `before`: the call is cancelled.
    let (layer, _go_before, _go_after) = waiter(&log);
    let mut running = spawn(layer.layer(ok.clone()).oneshot(call("t")));
    assert_pending!(polled!(running.poll()));
    drop(running);
    assert_eq!(log.lines(), ["before", "cancelled"]);
    // In `after`: there was an outcome.
    let (layer, go_before, go_after) = waiter(&log);
    let mut running = spawn(layer.layer(ok).oneshot(call("t")));
    assert_pending!(polled!(running.poll()));
    go_before.send(()).unwrap();
    assert!(running.is_woken());
    assert_pending!(polled!(running.poll()));
    drop(running);
    assert!(go_after.is_closed());
    assert_eq!(log.lines()[2..], ["before", "after"]);
}

paced!(a_call_that_ends_is_not_cancelled_when_its_future_is_dropped);
async fn a_call_that_ends_is_not_cancelled_when_its_future_is_dropped() {
    let log = Log::default();
    let ok = BoxTool::new(service_fn(async |call: ToolCall| {
        pace().pass(&call.context).await;
        Ok::<_, Error>(ToolOutcome::done(""))
    }));
    let mut running = spawn(recorder("A", &log).layer(ok).oneshot(call("t")));
    assert_ready_ok!(polled!(running.poll()));
    drop(running);
    assert_eq!(log.lines(), ["A before call-0 {}", "A after call-0 Done 0"]);
}

paced!(calls_side_by_side_have_hooks_of_their_own);
async fn calls_side_by_side_have_hooks_of_their_own() {
    struct Yields(Log);
    impl Hooks for Yields {
        fn id(&self) -> &str {
            "yields"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_CALL | Interest::AFTER_CALL)
        }

        async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
            tokio::task::yield_now().await;
            self.0.add(format!("before {}", call.id()));
            Ok(Flow::Continue)
        }

        async fn after_call(
            &self,
            call: &ToolCall,
            outcome: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            tokio::task::yield_now().await;
            self.0.add(format!("after {}", call.id()));
            let text = outcome.content.text();
            Ok(Some(ToolOutcome::done(format!("{text} of {}", call.id()))))
        }
    }

    let log = Log::default();
    let tools = Toolset::new()
        .tool(number(&Log::default()))
        .layer(hooks::tool(Arc::new(Yields(log.clone()))));
    for _ in 0..2 {
        for settled in run(&tools, &[("t", r#"{"n":1}"#); 8]).await {
            let settled = settled.unwrap();
            let text = format!("1 of call-{}", settled.index);
            assert_eq!(settled.outcome, ToolOutcome::done(text));
        }
    }
    for id in 0..8 {
        assert_eq!(log.count(&format!("before call-{id}")), 2);
        assert_eq!(log.count(&format!("after call-{id}")), 2);
    }
}

paced!(a_hook_is_dropped_with_its_layer_and_services);
async fn a_hook_is_dropped_with_its_layer_and_services() {
    struct Held(#[expect(dead_code, reason = "it is dropped")] Dropped);
    impl Hooks for Held {
        fn id(&self) -> &str {
            "held"
        }

        fn interest(&self) -> Interest {
            used(Interest::BEFORE_CALL | Interest::AFTER_CALL)
        }

        async fn before_call(&self, _: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
            Ok(Flow::Continue)
        }

        async fn after_call(
            &self,
            _: &ToolCall,
            _: &ToolOutcome,
            _: Duration,
        ) -> Result<Option<ToolOutcome>, BoxError> {
            Ok(None)
        }
    }

    let log = Log::default();
    let layer = hooks::tool(Arc::new(Held(Dropped(log.clone()))));
    let service = layer.layer(failing(|| Error::new(ErrorKind::Server, "")));
    service.clone().oneshot(call("t")).await.unwrap_err();
    let blocked = BoxTool::new(service_fn(async |_| Ok::<_, Error>(ToolOutcome::done(""))));
    layer.layer(blocked).oneshot(call("t")).await.unwrap();
    drop(layer);
    assert_eq!(log.lines(), [""; 0]);
    drop(service);
    assert_eq!(log.lines(), ["dropped"]);
}

// ---- readiness ----

paced!(a_hooked_service_is_ready_when_the_rest_of_the_stack_is);
async fn a_hooked_service_is_ready_when_the_rest_of_the_stack_is() {
    let log = Log::default();
    // The limit panics when it is called unready.
    let (mock, mut handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    let (layer, go_before, go_after) = waiter(&log);
    let limited = ConcurrencyLimitLayer::new(1).layer(mock);
    let mut service = spawn(layer.layer(limited));
    let mut clone = spawn(service.get_ref().clone());
    assert_ready_ok!(service.enter(|cx, mut s| s.poll_ready(cx)));
    assert_pending!(clone.enter(|cx, mut s| s.poll_ready(cx)));
    let mut running = spawn(service.enter(|_, mut s| s.call(call("t"))));
    assert_pending!(polled!(running.poll()));
    // The one that was ready is kept for when the hook is done.
    assert_pending!(service.enter(|cx, mut s| s.poll_ready(cx)));
    go_before.send(()).unwrap();
    assert!(running.is_woken());
    assert_pending!(polled!(running.poll()));
    let (_, response) = handle.next_request().await.unwrap();
    response.send_response(ToolOutcome::done("ok"));
    assert_pending!(polled!(running.poll()));
    // It is given back before the hook is told what came of the call.
    assert!(clone.is_woken());
    assert_ready_ok!(clone.enter(|cx, mut s| s.poll_ready(cx)));
    go_after.send(()).unwrap();
    assert_eq!(
        assert_ready_ok!(polled!(running.poll())),
        ToolOutcome::done("ok")
    );
}

paced!(a_hooked_service_fails_when_the_rest_of_the_stack_does);
async fn a_hooked_service_fails_when_the_rest_of_the_stack_does() {
    let (mock, mut handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    handle.send_error("gone");
    let mut service = spawn(recorder("A", &Log::default()).layer(mock));
    let error: Error = assert_ready_err!(service.enter(|cx, mut s| s.poll_ready(cx)));
    assert_eq!(error.message(), "gone");
}

#[test]
fn a_hooked_service_can_be_shared_if_what_it_stands_around_can() {
    fn check<T: ToolService<Future: Send> + Clone + Send + Sync>(_: &T) {}
    let log = Log::default();
    let layers = ServiceBuilder::new()
        .layer(recorder("A", &log))
        .layer(recorder("B", &log).scoped(Matcher::read_only()))
        .layer(ScopedExt::scoped(recorder("C", &log), "t"))
        .layer(ConcurrencyLimitLayer::new(1).scoped("t"));
    check(&layers.service(hangs(&log)));
}

// ---- scopes ----

/// A read-only tool, one that changes something, and one of a group.
fn three() -> Toolset {
    let ok = |name: &'static str| tool(name, "", |NoArguments {}| async { "ok" });
    Toolset::new()
        .tool(ok("fs_read").read_only())
        .tool(ok("pay"))
        .tool(ok("fs_delete").group("disk"))
}

paced!(s46_a_hook_and_a_layer_are_about_the_calls_that_match);
async fn s46_a_hook_and_a_layer_are_about_the_calls_that_match() {
    let slow = |of: &'static str| {
        Matcher::when_async(move |call: ToolCall| async move {
            tokio::task::yield_now().await;
            Ok(call.name() == of)
        })
    };
    let (all, none) = (["fs_read", "pay", "fs_delete"], [""; 0]);
    let cases: [(Matcher, &[&str]); 14] = [
        ("pay".into(), &["pay"]),
        ("fs_*".into(), &["fs_read", "fs_delete"]),
        (["pay", "*_read"].into(), &["fs_read", "pay"]),
        (Matcher::all(), &all),
        (!Matcher::all(), &none),
        (Matcher::group("disk"), &["fs_delete"]),
        (Matcher::read_only(), &["fs_read"]),
        (Matcher::effects(), &["pay", "fs_delete"]),
        (Matcher::annotated(|a| a.destructive), &["pay", "fs_delete"]),
        (Matcher::when(|call| call.name().len() == 3), &["pay"]),
        (slow("pay"), &["pay"]),
        (
            Matcher::from("fs_*").and(Matcher::effects()),
            &["fs_delete"],
        ),
        (slow("pay").or(slow("fs_read")), &["fs_read", "pay"]),
        // What fails is taken for a match.
        (Matcher::try_when(|_| Err("gone".into())), &all),
    ];
    for (matcher, expected) in cases {
        let log = Log::default();
        let tools = three()
            .layer(recorder("hook", &log).scoped(matcher.clone()))
            .layer(note("layer", &log).scoped(matcher.clone()));
        for (at, name) in all.iter().enumerate() {
            assert_eq!(text(&tools, name, "").await, "ok");
            let lines = log.lines().len();
            let matches = expected.iter().filter(|e| all[..=at].contains(e)).count();
            assert_eq!(lines, 4 * matches, "{matcher}: {name} {:?}", log.lines());
        }
    }
}

paced!(a_scope_within_a_scope_is_about_the_calls_of_both);
async fn a_scope_within_a_scope_is_about_the_calls_of_both() {
    let log = Log::default();
    let tools = three().layer(
        recorder("A", &log)
            .scoped("fs_*")
            .scoped(Matcher::effects()),
    );
    for name in ["fs_read", "pay", "fs_delete"] {
        text(&tools, name, "").await;
    }
    assert_eq!(log.lines().len(), 2);
}

paced!(a_hook_out_of_scope_leaves_a_call_alone);
async fn a_hook_out_of_scope_leaves_a_call_alone() {
    let log = Log::default();
    let layer = recorder("A", &log).scoped("other");
    let mut running = spawn(layer.layer(hangs(&log)).oneshot(call("t")));
    assert_pending!(polled!(running.poll()));
    drop(running);
    let never = layer.scoped(Matcher::when_async(|_| pending()).or("x"));
    drop(never.layer(hangs(&log)).oneshot(call("other")));
    let broken = failing(|| Error::new(ErrorKind::Server, "broken"));
    let scoped = recorder("A", &log).scoped("other");
    scoped.layer(broken).oneshot(call("t")).await.unwrap_err();
    assert_eq!(log.lines(), ["dropped"]);
}

paced!(the_calls_that_a_limit_is_not_about_hold_nothing_of_it);
async fn the_calls_that_a_limit_is_not_about_hold_nothing_of_it() {
    let log = Log::default();
    let limited = ConcurrencyLimitLayer::new(1).scoped("slow");
    let mut service = limited.layer(hangs(&log));
    let mut calls = Vec::new();
    for name in ["slow", "slow", "fast", "fast"] {
        let mut running = spawn(service.ready().await.unwrap().call(call(name)));
        assert_pending!(polled!(running.poll()));
        calls.push(running);
    }
    // The second one waits until the first is done; the others have nothing to do with it.
    assert_eq!(log.lines(), [""; 0]);
    drop(calls.remove(0));
    assert!(calls[0].is_woken());
    assert_pending!(calls[0].poll());
    drop(calls);
    // One that was never started has nothing to drop.
    assert_eq!(log.count("dropped"), 4);
}

paced!(a_scoped_service_waits_for_the_one_that_it_calls);
async fn a_scoped_service_waits_for_the_one_that_it_calls() {
    let (slow, mut slow_handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    let (fast, mut fast_handle) = tower_test::mock::pair::<ToolCall, ToolOutcome>();
    slow_handle.allow(0);
    let layer = layer_fn(move |_| slow.clone()).scoped("slow");
    let mut service = layer.layer(fast);
    let mut waits = spawn(service.ready().await.unwrap().call(call("slow")));
    assert_pending!(polled!(waits.poll()));
    let mut runs = spawn(service.ready().await.unwrap().call(call("fast")));
    assert_pending!(polled!(runs.poll()));
    let (_, response) = fast_handle.next_request().await.unwrap();
    response.send_response(ToolOutcome::done("fast"));
    assert_ready_ok!(polled!(runs.poll()));
    slow_handle.allow(1);
    assert!(waits.is_woken());
    assert_pending!(polled!(waits.poll()));
    let (_, response) = slow_handle.next_request().await.unwrap();
    response.send_error("broken");
    let error: Error = assert_ready_err!(polled!(waits.poll()));
    assert_eq!(error.message(), "broken");
}

// ---- retries ----

/// A tool that fails with a layer's error `times` times.
fn flaky(times: usize, log: &Log, annotations: Annotations) -> Tool {
    let (left, log) = (AtomicUsize::new(times), log.clone());
    let left = Arc::new(left);
    let tool = tool_with_context("t", "", move |NoArguments {}, context: Context| {
        log.add(context.idempotency_key().unwrap().as_str());
        async { "ok" }
    });
    let layer = layer_fn(move |inner: BoxTool| {
        let left = Arc::clone(&left);
        inner.map_result(move |result: Result<ToolOutcome, Error>| {
            let left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            match left {
                Ok(_) => Err(Error::new(ErrorKind::Connection, "broken")),
                Err(_) => result,
            }
        })
    });
    tool.annotations(annotations).layer(layer)
}

fn idempotent() -> Annotations {
    let mut annotations = Annotations::default();
    annotations.idempotent = true;
    annotations
}

async fn retried(tools: Toolset, clock: &TestClock) -> (ToolOutcome, Duration) {
    let round = crate::common::round_in(&clock.context().build(), &[("t", "{}")]);
    let mut outcomes = tools.oneshot(round).await.unwrap();
    let settled = crate::common::settled(outcomes.next().await.unwrap().unwrap());
    let took = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (settled.outcome, took)
}

paced!(s34_a_tool_that_can_be_called_twice_is_called_again_with_the_same_key);
async fn s34_a_tool_that_can_be_called_twice_is_called_again_with_the_same_key() {
    for annotations in [Annotations::read_only(), idempotent()] {
        let (clock, log) = (clock(), Log::default());
        let tools = Toolset::new()
            .tool(flaky(2, &log, annotations))
            .layer(RetryLayer::new(RetryTool::new(3)));
        let (outcome, took) = retried(tools, &clock).await;
        assert_eq!(outcome, ToolOutcome::done("ok"));
        assert_eq!(took, Duration::from_millis(500 + 1_000));
        let keys = log.lines();
        assert_eq!(keys.len(), 3);
        assert!(keys.iter().all(|key| *key == keys[0]));
    }
}

paced!(s34_a_tool_with_effects_is_called_once);
async fn s34_a_tool_with_effects_is_called_once() {
    let (clock, log) = (clock(), Log::default());
    let tools = Toolset::new()
        .tool(flaky(1, &log, Annotations::default()))
        .layer(RetryLayer::new(RetryTool::new(3).failures_too()));
    let (outcome, _) = retried(tools, &clock).await;
    assert_eq!(outcome.status, ToolStatus::Unknown);
    assert_eq!(log.lines().len(), 1);
}

paced!(s34_after_the_last_attempt_the_error_goes_on);
async fn s34_after_the_last_attempt_the_error_goes_on() {
    let (clock, log) = (clock(), Log::default());
    let tools = Toolset::new()
        .tool(flaky(9, &log, Annotations::read_only()))
        .layer(RetryLayer::new(
            RetryTool::new(4).backoff(Duration::from_secs(1), Duration::from_secs(2)),
        ))
        // With a layer between, whose error is a `BoxError`.
        .layer(TimeoutLayer::new(Duration::from_secs(60)));
    let (outcome, took) = retried(tools, &clock).await;
    assert_eq!(outcome, ToolOutcome::failed("The tool failed."));
    assert_eq!(took, Duration::from_secs(1 + 2 + 2));
    assert_eq!(log.lines().len(), 4);
}

/// How often a function that returns so is called, under a retry of three attempts.
async fn calls<R>(class: fn(Tool) -> Tool, policy: RetryTool, returns: fn() -> R) -> usize
where
    R: concentric_tools::IntoOutcome + Send + 'static,
{
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let tool = tool("t", "", move |_: Numbered| {
        counts.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::task::yield_now().await;
            returns()
        }
    });
    let retry = || RetryLayer::new(policy.clone());
    let outside = Toolset::new().tool(class(tool.clone())).layer(retry());
    let inside = Toolset::new().tool(class(tool).layer(retry()));
    let clock = clock();
    for tools in [outside, inside] {
        let round = crate::common::round_in(&clock.context().build(), &[("t", r#"{"n":1}"#)]);
        let mut outcomes = tools.oneshot(round).await.unwrap();
        outcomes.next().await.unwrap().unwrap();
    }
    let all = count.load(Ordering::SeqCst);
    assert_eq!(all % 2, 0, "it is the same in both places");
    all / 2
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[allow(dead_code)]
struct Numbered {
    n: u32,
}

paced!(an_error_of_a_function_is_retried_where_it_may_run_again);
async fn an_error_of_a_function_is_retried_where_it_may_run_again() {
    let classes: [fn(Tool) -> Tool; 3] = [
        Tool::read_only,
        |tool| tool.annotations(idempotent()),
        Tool::keyed,
    ];
    for class in classes {
        let policy = || RetryTool::new(3);
        let explicit = || Err::<(), _>(ToolError::new("no"));
        assert_eq!(calls(class, policy(), explicit).await, 3);
        let foreign = || Err::<(), _>(std::io::Error::other("no"));
        assert_eq!(calls(class, policy(), foreign).await, 3);
        let failed = || ToolOutcome::failed("no");
        assert_eq!(calls(class, policy(), failed).await, 1);
        assert_eq!(calls(class, policy().failures_too(), failed).await, 3);
        let fatal = || Err::<(), _>(ToolError::new("no"));
        assert_eq!(calls(class, RetryTool::new(1), fatal).await, 1);
    }
    let explicit = || Err::<(), _>(ToolError::new("no"));
    assert_eq!(calls(|tool| tool, RetryTool::new(3), explicit).await, 1);
}

/// How often a service that answers so is called, under a retry of three attempts.
async fn attempts(
    policy: RetryTool,
    context: Context,
    answer: impl Fn() -> Result<ToolOutcome, Error> + Clone + Send + Sync + 'static,
) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let service = service_fn(move |call: ToolCall| {
        counts.fetch_add(1, Ordering::SeqCst);
        let answer = answer();
        async move {
            pace().pass(&call.context).await;
            answer
        }
    });
    let tool = tool("t", "", |NoArguments {}| async { "" }).read_only();
    let call = call_in("t", context).with_spec(tool.spec().clone());
    let _ = RetryLayer::new(policy).layer(service).oneshot(call).await;
    count.load(Ordering::SeqCst)
}

paced!(s34_what_would_come_back_is_not_tried_again);
async fn s34_what_would_come_back_is_not_tried_again() {
    type Answer = fn() -> Result<ToolOutcome, Error>;
    let error = |kind| move || Err(Error::new(kind, ""));
    let run = |answer: Answer| attempts(RetryTool::new(3), clock().context().build(), answer);
    assert_eq!(run(|| Err(Error::new(ErrorKind::Other, ""))).await, 3);
    assert_eq!(run(|| Err(Error::suspended(Suspension::held()))).await, 1);
    assert_eq!(run(|| Err(fatal("no"))).await, 1);
    assert_eq!(run(|| Ok(ToolOutcome::failed("no"))).await, 1);
    assert_eq!(run(|| Ok(ToolOutcome::done("yes"))).await, 1);
    for kind in [
        ErrorKind::Cancelled,
        ErrorKind::Halted,
        ErrorKind::Permission,
        ErrorKind::InvalidRequest,
    ] {
        let context = clock().context().build();
        assert_eq!(attempts(RetryTool::new(3), context, error(kind)).await, 1);
    }
}

paced!(s34_an_outcome_that_says_that_the_tool_failed_is_tried_again_if_asked);
async fn s34_an_outcome_that_says_that_the_tool_failed_is_tried_again_if_asked() {
    type Answer = fn() -> Result<ToolOutcome, Error>;
    let run = |answer: Answer| {
        let context = clock().context().build();
        attempts(RetryTool::new(3).failures_too(), context, answer)
    };
    assert_eq!(run(|| Ok(ToolOutcome::failed("no"))).await, 3);
    assert_eq!(
        run(|| Ok(ToolOutcome::failed("no").and_halt("stop"))).await,
        1
    );
    assert_eq!(run(|| Ok(ToolOutcome::denied("no"))).await, 1);
    assert_eq!(run(|| Ok(ToolOutcome::done("yes"))).await, 1);
}

paced!(s34_no_attempt_follows_a_cancel_nor_one_that_would_come_too_late);
async fn s34_no_attempt_follows_a_cancel_nor_one_that_would_come_too_late() {
    let broken = || Err(Error::new(ErrorKind::Server, ""));
    let cancelled = clock().context().build();
    cancelled.cancel(CancelReason::User);
    assert_eq!(attempts(RetryTool::new(3), cancelled, broken).await, 1);
    let soon = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let late = clock().context().deadline(soon).build();
    // The first pause takes half a second, the second one would take one.
    assert_eq!(attempts(RetryTool::new(3), late, broken).await, 2);
    let asked =
        || Err(Error::new(ErrorKind::RateLimited, "").with_retry_after(Duration::from_secs(5)));
    let late = clock().context().deadline(soon).build();
    assert_eq!(attempts(RetryTool::new(3), late, asked).await, 1);
}
