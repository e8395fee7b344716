//! The pace of a test, a scripted model and tools that keep it, and small layers.

pub(crate) mod hooks;

use concentric_core::{
    AgentLayer, Answer, Arguments, CallId, ChatRequest, ChatResponse, Context, Error, Event,
    FinishReason, RoundCall, RoundEvent, Str, ToolCall, ToolCallPart, ToolOutcome, ToolRound,
    Usage,
};
use concentric_test::{PACE, Pace, watched};
use concentric_tools::{
    IntoOutcome, Tool, Toolset, Verdict,
    gate::{Decided, Gate},
};
use futures_util::{Stream, StreamExt, stream};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::{
    cell::Cell,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};
use tower::{Service, ServiceExt, layer::layer_fn, service_fn};

// ---- the pace of a test ----

/// Makes tests of an async function, `test`: `test::at_once`, `test::next_tick` and
/// `test::after_event`, in each of which the doubles keep that [`Pace`]. A watchdog ends a test
/// that spins. `paused` pauses tokio's clock.
macro_rules! paced {
    ($test:ident) => {
        paced!(@ $test, false);
    };
    (paused $test:ident) => {
        paced!(@ $test, true);
    };
    (@ $test:ident, $paused:literal) => {
        mod $test {
            use $crate::common::at;
            use concentric_test::Pace;

            #[test]
            fn at_once() {
                at(Pace::AtOnce, $paused, super::$test);
            }

            #[test]
            fn next_tick() {
                at(Pace::NextTick, $paused, super::$test);
            }

            #[test]
            fn after_event() {
                at(Pace::AfterEvent, $paused, super::$test);
            }
        }
    };
}

/// Polls a task of `tokio_test` until it is ready, or waits for something other than its pace.
macro_rules! polled {
    ($task:ident.$poll:ident()) => {
        loop {
            let polled = $task.$poll();
            // The executor has its turn.
            tokio::task::yield_now().await;
            if polled.is_ready() || !$task.is_woken() {
                break polled;
            }
        }
    };
}

pub(crate) use {paced, polled};

thread_local! {
    static CURRENT: Cell<Pace> = const { Cell::new(Pace::AtOnce) };
}

/// The pace of the running test.
pub fn pace() -> Pace {
    CURRENT.get()
}

/// Whether [`Pace::AfterEvent`] emitted the event, in the run or in a run within it.
pub fn of_pace(event: &Event) -> bool {
    match event {
        Event::Custom(custom) => custom.name == *PACE,
        Event::SubAgent(inner) => of_pace(&inner.event),
        _ => false,
    }
}

/// Runs `test` at that pace. Its future is made and polled in one thread: it need not be `Send`.
pub fn at<F: Future<Output = ()> + 'static>(pace: Pace, paused: bool, test: fn() -> F) {
    at_pace(pace, paused, Box::new(move || Box::pin(test())));
}

type Test = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Without the type of the test, since a runtime takes long to compile for each.
fn at_pace(pace: Pace, paused: bool, test: Test) {
    let run = move || {
        CURRENT.set(pace);
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(paused)
            .build()
            .unwrap()
            .block_on(test());
    };
    let ended = watched(async move { tokio::task::spawn_blocking(run).await });
    if let Err(error) = ended {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// [`concentric_tools::tool`] at the pace of the test.
pub fn tool<A, F, Fut>(name: impl Into<Str>, description: impl Into<Str>, function: F) -> Tool
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    tool_with_context(name, description, move |arguments, _| function(arguments))
}

/// [`concentric_tools::tool_with_context`] at the pace of the test.
pub fn tool_with_context<A, F, Fut>(
    name: impl Into<Str>,
    description: impl Into<Str>,
    function: F,
) -> Tool
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(A, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    let function = Arc::new(function);
    concentric_tools::tool_with_context(name, description, move |arguments, context: Context| {
        let function = Arc::clone(&function);
        async move {
            pace().pass(&context).await;
            function(arguments, context).await
        }
    })
}

/// [`concentric_tools::gate_fn`] at the pace of the test.
pub fn gate_fn<F>(name: impl Into<Str>, decide: F) -> impl Gate
where
    F: Fn(&ToolCall) -> Verdict + Send + Sync + 'static,
{
    Decides(concentric_tools::gate_fn(name, decide))
}

#[derive(Clone)]
struct Decides<G>(G);

impl<G: Gate> Gate for Decides<G> {
    fn policy(&self) -> Str {
        self.0.policy()
    }

    fn decide(&self, call: &ToolCall) -> Decided {
        match (self.0.decide(call), pace()) {
            (Decided::Now(verdict), Pace::NextTick | Pace::AfterEvent) => {
                let context = call.context.clone();
                Decided::later(async move {
                    pace().pass(&context).await;
                    Ok(verdict)
                })
            }
            (decided, _) => decided,
        }
    }
}

// ---- doubles ----

/// What happened, in order.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|l| *l == line).count()
    }
}

/// The `index`th call of a round, named `call-<index>`.
pub fn part(index: usize, name: &str, arguments: &str) -> ToolCallPart {
    ToolCallPart::new(
        CallId::new(format!("call-{index}")),
        name,
        Arguments::new(arguments),
    )
}

pub fn round_in(context: &Context, calls: &[(&str, &str)]) -> ToolRound {
    let calls = calls.iter().enumerate();
    ToolRound::new(
        calls
            .map(|(i, (name, arguments))| RoundCall::new(i, part(i, name, arguments)))
            .collect(),
        context.at_round(0, None),
    )
}

pub fn round(calls: &[(&str, &str)]) -> ToolRound {
    round_in(&Context::new(), calls)
}

/// A call that has its outcome.
#[derive(Debug)]
pub struct Settled {
    pub index: usize,
    pub outcome: ToolOutcome,
}

/// Expects that a call is settled.
pub fn settled(event: RoundEvent) -> Settled {
    match event {
        RoundEvent::Settled { index, outcome } => Settled { index, outcome },
        other => panic!("it waits: {other:?}"),
    }
}

/// Runs a round without an agent; outcomes as they come.
pub async fn run(tools: &Toolset, calls: &[(&str, &str)]) -> Vec<Result<Settled, Error>> {
    let outcomes = tools.clone().oneshot(round(calls)).await.unwrap();
    outcomes.map(|item| item.map(settled)).collect().await
}

/// The outcome of one call.
pub async fn one(tools: &Toolset, name: &str, arguments: &str) -> ToolOutcome {
    let mut all = run(tools, &[(name, arguments)]).await;
    assert_eq!(all.len(), 1);
    all.pop().unwrap().unwrap().outcome
}

pub async fn text(tools: &Toolset, name: &str, arguments: &str) -> String {
    one(tools, name, arguments)
        .await
        .content
        .text()
        .into_owned()
}

pub type Script = Vec<Vec<(&'static str, &'static str)>>;

/// A model that makes the calls of one step of the script after the other, then says "done".
pub fn model(
    script: Script,
) -> impl Service<
    ChatRequest,
    Response = ChatResponse<Pin<Box<dyn Stream<Item = Result<Event, Error>> + Send>>>,
    Error = Error,
    Future: Send,
> + Clone
+ Send {
    let step = Arc::new(AtomicUsize::new(0));
    service_fn(move |request: ChatRequest| {
        let at = step.fetch_add(1, Ordering::SeqCst);
        let mut events: Vec<_> = match script.get(at) {
            Some(calls) => calls
                .iter()
                .enumerate()
                .map(|(i, (name, arguments))| {
                    let mut call = part(i, name, arguments);
                    call.id = CallId::new(format!("call-{at}-{i}"));
                    Ok(Event::tool_call(call))
                })
                .collect(),
            None => vec![Ok(Event::text("done"))],
        };
        let reason = match events.first() {
            Some(Ok(Event::ToolCall(_))) => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        events.push(Ok(Event::finish(reason, Usage::new(1, 1))));
        async move {
            pace().pass(&request.context).await;
            let body: Pin<Box<dyn Stream<Item = _> + Send>> = Box::pin(stream::iter(events));
            Ok(ChatResponse::new(body))
        }
    })
}

/// A whole run of an agent.
pub async fn agent(tools: Toolset, script: Script) -> Result<Answer, Error> {
    agent_in(Context::new(), tools, script).await
}

pub async fn agent_in(context: Context, tools: Toolset, script: Script) -> Result<Answer, Error> {
    ask(ChatRequest::user("hi").with_context(context), tools, script).await
}

pub async fn ask(request: ChatRequest, tools: Toolset, script: Script) -> Result<Answer, Error> {
    let agent = tower::ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .service(model(script));
    let response = agent.oneshot(request).await?;
    response.collect().await.map_err(Error::from)
}

/// The results of the run's rounds, as `id: text`.
pub fn results(answer: &Answer) -> Vec<String> {
    let mut all = Vec::new();
    for turn in answer.transcript().unwrap().iter() {
        for result in turn.results() {
            let text = result.outcome.content.text();
            all.push(format!("{}: {text}", result.call_id));
        }
    }
    all
}

/// Notes when a call comes in and when its outcome goes out.
#[derive(Clone)]
pub struct Note<S> {
    inner: S,
    name: &'static str,
    log: Log,
}

pub fn note<S>(
    name: &'static str,
    log: &Log,
) -> impl tower::Layer<S, Service = Note<S>> + Clone + Send + Sync + 'static {
    let log = log.clone();
    layer_fn(move |inner| Note {
        inner,
        name,
        log: log.clone(),
    })
}

impl<S> Service<ToolCall> for Note<S>
where
    S: Service<ToolCall, Response = ToolOutcome>,
    S::Future: Send + 'static,
{
    type Response = ToolOutcome;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<ToolOutcome, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let (log, name) = (self.log.clone(), self.name);
        let id = call.id().clone();
        log.add(format!("{name} before {id}"));
        let future = self.inner.call(call);
        Box::pin(async move {
            let outcome = future.await?;
            log.add(format!("{name} after {id}: {:?}", outcome.status));
            Ok(outcome)
        })
    }
}

/// What a [`hook`] does with a call.
#[allow(
    clippy::large_enum_variant,
    reason = "a test has few of them, and none lives long"
)]
pub enum Hook {
    Call(ToolCall),
    Answer(ToolOutcome),
    Fail(tower::BoxError),
}

/// A layer that changes, answers or fails a call.
#[derive(Clone)]
pub struct Hooked<S, F> {
    inner: S,
    hook: F,
}

pub fn hook<S, F>(
    hook: F,
) -> impl tower::Layer<S, Service = Hooked<S, F>> + Clone + Send + Sync + 'static
where
    F: Fn(ToolCall) -> Hook + Clone + Send + Sync + 'static,
{
    layer_fn(move |inner| Hooked {
        inner,
        hook: hook.clone(),
    })
}

impl<S, F> Service<ToolCall> for Hooked<S, F>
where
    S: Service<ToolCall, Response = ToolOutcome> + Clone + Send + 'static,
    S::Error: Into<tower::BoxError>,
    S::Future: Send + 'static,
    F: Fn(ToolCall) -> Hook + Clone + Send + 'static,
{
    type Response = ToolOutcome;
    type Error = tower::BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ToolOutcome, tower::BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let inner = self.inner.clone();
        let hook = self.hook.clone();
        Box::pin(async move {
            pace().pass(&call.context).await;
            match hook(call) {
                Hook::Call(call) => inner.oneshot(call).await.map_err(Into::into),
                Hook::Answer(outcome) => Ok(outcome),
                Hook::Fail(error) => Err(error),
            }
        })
    }
}
