//! A scripted model, and small layers.
#![allow(clippy::type_complexity, dead_code, unreachable_pub)]

use concentric_core::{
    AgentLayer, Answer, Arguments, CallId, ChatRequest, ChatResponse, Context, Error, Event,
    FinishReason, RoundCall, RoundEvent, ToolCall, ToolCallPart, ToolOutcome, ToolRound, Usage,
};
use concentric_tools::Toolset;
use futures_util::{Stream, StreamExt, stream};
use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};
use tower::{Service, ServiceExt, layer::layer_fn, service_fn};

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
    service_fn(move |_: ChatRequest| {
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
    let agent = tower::ServiceBuilder::new()
        .layer(AgentLayer::new(tools))
        .service(model(script));
    let mut request = ChatRequest::user("hi");
    request.context = context;
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
            match hook(call) {
                Hook::Call(call) => inner.oneshot(call).await.map_err(Into::into),
                Hook::Answer(outcome) => Ok(outcome),
                Hook::Fail(error) => Err(error),
            }
        })
    }
}
