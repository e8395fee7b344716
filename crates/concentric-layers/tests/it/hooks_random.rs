//! Hooks that fail, panic, hang and cancel, in random stacks, under consumers that do so too.
//!
//! A case that fails prints its seed: `HOOKS_SEED=17 HOOKS_CASES=1` runs it again.

use super::used;
use concentric_core::hooks::{self, BeforeCall, End, Flow, HookFailures, Hooks, Interest, Summary};
use concentric_core::{
    AgentLayer, BoxError, BoxModel, CancelReason, ChatRequest, Context, Error, ErrorKind, Event,
    Outcome, StepFinish, StepStart, Str, ToolCall, ToolOutcome, ToolResult, Usage,
    context::Random as _,
};
use concentric_test::{ScriptedModel, SeededRandom, TestEnvironment};
use concentric_tools::{NoArguments, Toolset, tool};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    collections::BTreeMap,
    env,
    future::pending,
    panic,
    sync::{Arc, Mutex, MutexGuard},
    task::Poll,
    time::Duration,
};
use tokio::task::yield_now;
use tokio_test::task;
use tower::{Layer, ServiceExt};

/// What all hooks of a case share.
struct Case {
    random: SeededRandom,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// How often each layer was entered, and left.
    entered: BTreeMap<String, (usize, usize)>,
    /// What the consumer must be told: errors of `before_run` and `before_model`.
    refused: Vec<String>,
    /// What `HookFailures` must have: hooks and their methods.
    failed: Vec<(String, &'static str)>,
    /// The ends that the outermost observer received.
    ends: Vec<String>,
    /// The ends that the other hooks of the run received.
    inner_ends: Vec<String>,
    // Whether the run was cancelled, by whomever.
    cancelled: bool,
}

impl Case {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn below(&self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a method does.
enum Does {
    Well,
    Fails,
    Panics,
    Hangs,
}

/// A panic that belongs to the test.
struct Injected;

struct RandomHooks {
    id: String,
    case: Arc<Case>,
    /// How many of 100 calls go wrong.
    wrong: u64,
}

impl RandomHooks {
    /// Waits for a while, and says what the method is to do then.
    async fn draw(&self, context: &Context) -> Does {
        for _ in 0..self.case.below(3) {
            yield_now().await;
        }
        if self.case.below(100) >= self.wrong {
            return Does::Well;
        }
        match self.case.below(4) {
            0 => Does::Fails,
            1 => Does::Panics,
            2 => Does::Hangs,
            _ => {
                self.case.seen().cancelled = true;
                context.cancel(CancelReason::User);
                Does::Well
            }
        }
    }

    fn error(&self) -> BoxError {
        Error::new(ErrorKind::Permission, "refused")
            .with_code(self.id.clone())
            .into()
    }

    fn enter(&self, key: &str) {
        let mut seen = self.case.seen();
        let key = format!("{} {key}", self.id);
        seen.entered.entry(key).or_default().0 += 1;
    }

    fn leave(&self, key: &str) {
        let mut seen = self.case.seen();
        let key = format!("{} {key}", self.id);
        seen.entered.entry(key).or_default().1 += 1;
    }

    async fn before(&self, key: &str, context: &Context) -> Result<(), BoxError> {
        self.enter(key);
        match self.draw(context).await {
            Does::Well => Ok(()),
            Does::Hangs => pending().await,
            Does::Fails => {
                self.case.seen().refused.push(self.id.clone());
                Err(self.error())
            }
            Does::Panics => {
                let mut seen = self.case.seen();
                seen.refused.push(self.id.clone());
                let method = if key == "run" {
                    "before_run"
                } else {
                    "before_model"
                };
                seen.failed.push((self.id.clone(), method));
                drop(seen);
                panic::panic_any(Injected)
            }
        }
    }

    async fn told(
        &self,
        method: &'static str,
        is_end: bool,
        context: &Context,
    ) -> Result<(), BoxError> {
        let does = self.draw(context).await;
        // Given up by the time, which counts; or because the run ends, which does not.
        let counts = match does {
            Does::Well => false,
            Does::Hangs => is_end,
            Does::Fails | Does::Panics => true,
        };
        if counts {
            self.case.seen().failed.push((self.id.clone(), method));
        }
        match does {
            Does::Well => Ok(()),
            Does::Hangs => pending().await,
            Does::Fails => Err(self.error()),
            Does::Panics => panic::panic_any(Injected),
        }
    }
}

impl Hooks for RandomHooks {
    fn id(&self) -> &str {
        &self.id
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
                | Interest::AFTER_MODEL
                | Interest::BEFORE_CALL
                | Interest::AFTER_CALL
                | Interest::ON_CALL_ERROR
                | Interest::CALL_CANCELLED,
        )
    }

    async fn before_run(&self, request: &mut ChatRequest) -> Result<Flow<Str>, BoxError> {
        self.before("run", &request.context).await?;
        Ok(match self.case.one_in(30) {
            true => Flow::answer("from a hook"),
            false => Flow::Continue,
        })
    }

    fn event(&self, _: &Event, _: &Context) {
        if self.case.below(1000) < self.wrong {
            self.case.seen().failed.push((self.id.clone(), "event"));
            panic::panic_any(Injected);
        }
    }

    async fn step_started(&self, _: &StepStart, run: &Summary) -> Result<(), BoxError> {
        self.told("step_started", false, run.context()).await
    }

    async fn step_finished(&self, _: &StepFinish, run: &Summary) -> Result<(), BoxError> {
        self.told("step_finished", false, run.context()).await
    }

    async fn round_finished(&self, _: &[ToolResult], run: &Summary) -> Result<(), BoxError> {
        self.told("round_finished", false, run.context()).await
    }

    async fn after_run(&self, end: End<'_>, run: &Summary) -> Result<(), BoxError> {
        self.leave("run");
        self.case.seen().inner_ends.push(name_of(end));
        self.told("after_run", true, run.context()).await
    }

    async fn before_model(&self, request: &mut ChatRequest) -> Result<Flow<Vec<Event>>, BoxError> {
        let key = format!("model {}", request.context.step());
        self.before(&key, &request.context).await?;
        Ok(match self.case.one_in(30) {
            true => Flow::halt("a hook says so"),
            false => Flow::Continue,
        })
    }

    async fn after_model(&self, _: End<'_>, call: &Summary) -> Result<(), BoxError> {
        self.leave(&format!("model {}", call.context().step()));
        self.told("after_model", true, call.context()).await
    }

    async fn before_call(&self, call: &mut BeforeCall) -> Result<Flow<ToolOutcome>, BoxError> {
        self.enter(call.id().as_str());
        self.told("before_call", false, &call.context).await?;
        Ok(Flow::Continue)
    }

    async fn after_call(
        &self,
        call: &ToolCall,
        _: &ToolOutcome,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.leave(call.id().as_str());
        self.told("after_call", false, &call.context).await?;
        Ok(None)
    }

    async fn on_call_error(
        &self,
        call: &ToolCall,
        _: &Error,
        _: Duration,
    ) -> Result<Option<ToolOutcome>, BoxError> {
        self.leave(call.id().as_str());
        Ok(None)
    }

    fn call_cancelled(&self, call: &ToolCall) {
        self.leave(call.id().as_str());
    }
}

fn name_of(end: End<'_>) -> String {
    match end {
        End::Finished(finish) => format!("{:?}", finish.outcome),
        End::Failed(error) => format!("failed: {}", error.code().unwrap_or_default()),
        End::Truncated => "truncated".into(),
        End::Dropped => "dropped".into(),
    }
}

/// Sees the end of the whole run.
struct Outermost(Arc<Case>);

impl Hooks for Outermost {
    fn id(&self) -> &str {
        "outermost"
    }

    fn interest(&self) -> Interest {
        used(Interest::AFTER_RUN)
    }

    async fn after_run(&self, end: End<'_>, _: &Summary) -> Result<(), BoxError> {
        self.0.seen().ends.push(name_of(end));
        Ok(())
    }
}

/// A model of one to three tool turns and a text, that may go wrong, too.
fn random_model(case: &Case) -> ScriptedModel {
    let mut model = ScriptedModel::new();
    for _ in 0..case.below(3) {
        for _ in 0..=case.below(2) {
            model = model.pause().tool_call("t", json!({}));
        }
        model = model.usage(Usage::new(1, 1)).then();
    }
    model = model.text("Hel").pause().text("lo");
    match case.below(8) {
        0 => model.error(Error::new(ErrorKind::Server, "broke").with_code("model")),
        1 => model.end_early(),
        2 => model.never(),
        _ => model,
    }
}

fn random_tools(case: &Arc<Case>) -> Toolset {
    let tools = Arc::clone(case);
    Toolset::new().tool(tool("t", "", move |NoArguments {}| {
        let case = Arc::clone(&tools);
        async move {
            for _ in 0..case.below(3) {
                yield_now().await;
            }
            match case.below(12) {
                0 => panic::panic_any(Injected),
                1 => pending().await,
                _ => "42",
            }
        }
    }))
}

/// What was read of a run.
enum Read {
    Finished(Outcome),
    Failed(Error),
    Left,
}

async fn run_case(seed: u64) {
    let test = TestEnvironment::with_seed(seed);
    let case = Arc::new(Case {
        random: SeededRandom::new(seed),
        seen: Mutex::default(),
    });
    let wrong = case.below(4) * case.below(8);

    // A random stack.
    let model = random_model(&case);
    let mut tools = random_tools(&case);
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for at in 0..=case.below(6) {
        let random = Arc::new(RandomHooks {
            id: format!("h{at}"),
            case: Arc::clone(&case),
            wrong,
        });
        match case.below(3) {
            0 => inside.push(hooks::model(random)),
            1 => outside.push(hooks::run(random)),
            _ => tools = tools.hooks(hooks::tool(random)),
        }
    }
    let mut agent = BoxModel::new(model.clone());
    for layer in inside {
        agent = BoxModel::new(layer.layer(agent));
    }
    agent = BoxModel::new(AgentLayer::new(tools).layer(agent));
    for layer in outside {
        agent = BoxModel::new(layer.layer(agent));
    }
    agent = BoxModel::new(hooks::run(Arc::new(Outermost(Arc::clone(&case)))).layer(agent));

    // A random consumer.
    let leaves = case.one_in(4).then(|| case.below(12));
    let cancels = case.one_in(6).then(|| case.below(12));
    let mut context = test.context_builder();
    if case.one_in(6) {
        context = context.deadline(test.context().now() + Duration::from_secs(45));
    }
    let failures = HookFailures::new();
    let mut request = ChatRequest::user("hi").with_context(context.build());
    request.context.extensions_mut().insert(failures.clone());
    let context = request.context.clone();

    let mut consumer = task::spawn(async move {
        let mut body = match agent.oneshot(request).await {
            Ok(answer) => answer.body,
            Err(error) => return Read::Failed(error),
        };
        loop {
            let item = body.next().await;
            let read = match item {
                Some(Ok(Event::Finish(finish))) => Read::Finished(finish.outcome),
                Some(Err(error)) => Read::Failed(error),
                Some(Ok(_)) => continue,
                None => panic!("the run ended without an end"),
            };
            assert!(body.next().await.is_none(), "something follows the end");
            return read;
        }
    });
    let (mut polls, mut stuck) = (0, 0);
    let read = loop {
        if let Poll::Ready(read) = consumer.poll() {
            break read;
        }
        if leaves == Some(polls) {
            break Read::Left;
        }
        if cancels == Some(polls) {
            case.seen().cancelled = true;
            context.cancel(CancelReason::User);
        }
        polls += 1;
        for _ in 0..4 {
            yield_now().await;
        }
        if !consumer.is_woken() {
            stuck += 1;
            assert!(stuck < 40, "the run hangs");
            if stuck == 6 {
                case.seen().cancelled = true;
                context.cancel(CancelReason::User);
            }
            test.advance(Duration::from_secs(31));
        }
    };
    drop(consumer);
    // What was left to be done is done, or given up.
    for _ in 0..8 {
        for _ in 0..16 {
            yield_now().await;
        }
        test.advance(Duration::from_secs(31));
    }

    let seen = case.seen();
    // One end, and the observer's is the consumer's.
    let end = match &read {
        Read::Finished(outcome) => format!("{outcome:?}"),
        Read::Failed(error) => format!("failed: {}", error.code().unwrap_or_default()),
        // A consumer that left while other hooks handled the end: the observer receives that end.
        Read::Left => match seen.ends.first() {
            Some(end) if seen.inner_ends.contains(end) => end.clone(),
            _ => "dropped".into(),
        },
    };
    assert_eq!(seen.ends, [end.as_str()]);
    // Nothing goes on.
    assert_eq!(model.live(), 0, "a model call is left");
    // Each layer that was entered was left, as often.
    for (layer, (entered, left)) in &seen.entered {
        match layer.contains("call_") {
            // One that is settled from the beginning has no `before`.
            true => assert_eq!(*left, 1, "{layer} had not one end"),
            false => assert_eq!(entered, left, "{layer} was entered and not left"),
        }
    }
    // No error was lost: neither those that end a run...
    if let (Some(hook), false) = (seen.refused.first(), seen.cancelled) {
        match &read {
            Read::Finished(outcome) => panic!("{hook} refused, and the run ended as {outcome:?}"),
            Read::Failed(error) => assert!(
                error.code() == Some(hook.as_str())
                    || error.message().contains(hook.as_str())
                    || error.kind() == ErrorKind::Timeout,
                "{hook} refused, and the run failed with {error}"
            ),
            Read::Left => {}
        }
    }
    // ...nor those that change nothing.
    let mut told: Vec<_> = failures
        .take()
        .into_iter()
        .filter(|f| f.error.kind() != ErrorKind::Timeout || f.method.starts_with("after"))
        .map(|f| (f.hook.as_str().to_owned(), f.method))
        .collect();
    let mut failed = seen.failed.clone();
    told.sort();
    failed.sort();
    assert_eq!(told, failed);
}

struct SaysSeed(u64);

impl Drop for SaysSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with HOOKS_SEED={} HOOKS_CASES=1", self.0);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn s026_whatever_hooks_do_there_is_one_end_and_nothing_is_lost() {
    // What hooks panic with on purpose is not the test's to show.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Injected>() {
            hook(info);
        }
    }));
    let first = number("HOOKS_SEED", 1);
    for seed in first..first + number("HOOKS_CASES", 2_000) {
        let _says = SaysSeed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        runtime.block_on(run_case(seed));
    }
}
