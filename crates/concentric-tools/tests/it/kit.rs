//! What the tests of approvals share: a world of one's own, a model that is watched, stores in
//! memory, and runs that are written down and read back.

use crate::common::{Log, of_pace, pace, tool};
use concentric_core::trace::{TraceEntry, TraceStep};
use concentric_core::{
    AgentLayer, BoxModel, CallId, ChatRequest, ChatResponse, Context, Environment, Error, Event,
    Executor, Finish, FinishReason, Interrupt, InterruptId, Outcome, Reply, ReplyKind, RunId,
    RunOverrides, Str, ThreadId, ToolCallPart, ToolOutcome, ToolStatus, Transcript, Usage,
    context::{Clock, ContextBuilder},
    machine::RunState,
    store::{
        Checkpoint, Decisions, EffectKey, Intent, Ledger, LedgerEntry, Once, StoreError,
        StoreFuture, StoredDecision, Tenant,
    },
};
use concentric_test::{ManualClock, MemoryStore, TestEnvironment};
use concentric_tools::{ApprovalEvent, Tool, ToolError, Toolset};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{
    collections::HashSet,
    future::ready,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};
use tower::{Layer, ServiceExt, service_fn};

// ---- the world ----

/// A clock that stands still, and ids that count up.
#[derive(Clone)]
pub struct World {
    pub clock: ManualClock,
    environment: Environment,
    pub tenant: Option<&'static str>,
    pub thread: Option<&'static str>,
    pub session: Option<&'static str>,
}

impl World {
    pub fn new() -> Self {
        let test = TestEnvironment::new();
        Self {
            environment: test.environment(),
            clock: test.clock().clone(),
            tenant: None,
            thread: None,
            session: None,
        }
    }

    pub fn tenant(mut self, tenant: &'static str) -> Self {
        self.tenant = Some(tenant);
        self
    }

    pub fn thread(mut self, thread: &'static str) -> Self {
        self.thread = Some(thread);
        self
    }

    pub fn session(mut self, session: &'static str) -> Self {
        self.session = Some(session);
        self
    }

    pub fn builder(&self) -> ContextBuilder {
        let mut builder = Context::builder().environment(self.environment.clone());
        if let Some(thread) = self.thread {
            builder = builder.thread_id(ThreadId::new(thread));
        }
        builder
    }

    pub fn context(&self) -> Context {
        let mut context = self.builder().build();
        if let Some(tenant) = self.tenant {
            context.extensions_mut().insert(Tenant(tenant.into()));
        }
        if let Some(session) = self.session {
            context.set_session_id(ThreadId::new(session));
        }
        context
    }

    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }
}

// ---- the model ----

/// A call that the model makes.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: Option<String>,
    pub name: String,
    pub arguments: String,
}

impl From<(&str, &str)> for Call {
    fn from((name, arguments): (&str, &str)) -> Self {
        Self {
            id: None,
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        }
    }
}

impl From<(&str, &str, &str)> for Call {
    fn from((id, name, arguments): (&str, &str, &str)) -> Self {
        Self {
            id: Some(id.to_owned()),
            ..Self::from((name, arguments))
        }
    }
}

/// What decides, of a request, what the model says to it.
type Says = Arc<dyn Fn(usize, &ChatRequest) -> Vec<Event> + Send + Sync>;

/// A model that checks what it is sent, and makes the calls of its script; then it says "done".
#[derive(Clone)]
pub struct Model {
    says: Says,
    requests: Arc<Mutex<Vec<ChatRequest>>>,
}

impl Model {
    pub fn saying(
        says: impl Fn(usize, &ChatRequest) -> Vec<Event> + Send + Sync + 'static,
    ) -> Self {
        Self {
            says: Arc::new(says),
            requests: Arc::default(),
        }
    }

    pub fn new<C: Into<Call>>(script: Vec<Vec<C>>) -> Self {
        let script: Vec<Vec<Call>> = script
            .into_iter()
            .map(|calls| calls.into_iter().map(Into::into).collect())
            .collect();
        Self::saying(move |at, _| match script.get(at) {
            Some(calls) => call_events(at, calls),
            None => vec![Event::text("done")],
        })
    }

    pub fn silent() -> Self {
        Self::new(Vec::<Vec<Call>>::new())
    }

    pub fn requests(&self) -> Vec<ChatRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub fn boxed(&self) -> BoxModel {
        let model = self.clone();
        BoxModel::new(service_fn(move |request: ChatRequest| {
            whole(&request.transcript);
            let mut requests = model.requests.lock().unwrap();
            let mut events = (model.says)(requests.len(), &request);
            let context = request.context.clone();
            requests.push(request);
            let calls = events.iter().any(|e| matches!(e, Event::ToolCall(_)));
            let reason = match calls {
                true => FinishReason::ToolCalls,
                false => FinishReason::Stop,
            };
            events.push(Event::finish(reason, Usage::new(1, 1)));
            let body: Pin<Box<dyn Stream<Item = Result<Event, Error>> + Send>> =
                Box::pin(stream::iter(events.into_iter().map(Ok)));
            async move {
                pace().pass(&context).await;
                Ok::<_, Error>(ChatResponse::new(body))
            }
        }))
    }

    pub fn agent(&self, tools: &Toolset) -> BoxModel {
        BoxModel::new(AgentLayer::new(tools.clone()).layer(self.boxed()))
    }
}

pub fn call_events(at: usize, calls: &[Call]) -> Vec<Event> {
    let event = |(i, call): (usize, &Call)| Event::tool_call(call_part(at, i, call));
    calls.iter().enumerate().map(event).collect()
}

pub fn call_part(at: usize, i: usize, call: &Call) -> ToolCallPart {
    let id = call.id.clone().unwrap_or_else(|| format!("call-{at}-{i}"));
    ToolCallPart::new(CallId::new(id), call.name.as_str(), call.arguments.as_str())
}

/// F35: each call has one result, in the order of the calls, right behind the message.
pub fn whole(transcript: &Transcript) {
    for turn in transcript.iter() {
        let own = |call: &&ToolCallPart| matches!(call.executor, Executor::Loop | Executor::Client);
        let calls: Vec<_> = turn
            .as_message()
            .tool_calls()
            .filter(own)
            .map(|c| &c.id)
            .collect();
        let results: Vec<_> = turn.results().iter().map(|r| &r.call_id).collect();
        assert_eq!(calls, results, "each call has its result");
        let distinct: HashSet<_> = calls.iter().collect();
        assert_eq!(distinct.len(), calls.len());
    }
}

// ---- runs ----

/// What a run has said.
#[derive(Debug)]
pub struct Ran {
    pub events: Vec<Event>,
    pub end: Result<Finish, Error>,
}

pub type Result3 = (String, ToolStatus, String);

impl Ran {
    pub fn finish(&self) -> &Finish {
        self.end.as_ref().unwrap()
    }

    pub fn outcome(&self) -> &Outcome {
        &self.finish().outcome
    }

    /// The state, as another process reads it.
    pub fn state(&self) -> RunState {
        assert_eq!(*self.outcome(), Outcome::Interrupted);
        written(self.finish().state.as_ref().unwrap())
    }

    pub fn asked(&self) -> Vec<Interrupt> {
        self.finish().interrupts().into_iter().cloned().collect()
    }

    /// The question about a call.
    pub fn ask(&self, call: &str) -> Interrupt {
        let asked = self.asked();
        let about: Vec<_> = asked
            .iter()
            .filter(|ask| ask.call_id.as_ref().is_some_and(|id| id.as_str() == call))
            .collect();
        assert_eq!(about.len(), 1, "one question about {call}: {asked:?}");
        about[0].clone()
    }

    pub fn results(&self) -> Vec<Result3> {
        results_of(&self.events)
    }

    /// The result of one call.
    pub fn result(&self, call: &str) -> (ToolStatus, String) {
        let mut all = self.results();
        all.retain(|(id, ..)| id == call);
        assert_eq!(all.len(), 1, "one result of {call}: {:?}", self.results());
        let (_, status, text) = all.remove(0);
        (status, text)
    }

    pub fn custom(&self, name: &str) -> Vec<serde_json::Value> {
        let custom = self.events.iter().filter_map(|event| match event {
            Event::Custom(custom) if custom.name == *name => Some(custom.value.clone()),
            _ => None,
        });
        custom.collect()
    }

    pub fn transcript(&self) -> &Transcript {
        self.finish().transcript.as_ref().unwrap()
    }
}

pub fn written(state: &RunState) -> RunState {
    let json = state.to_json().unwrap();
    RunState::from_json(json.as_bytes(), 1 << 20).unwrap()
}

/// The checkpoint of a process whose states are written down.
pub fn saves(states: &Arc<Mutex<Vec<RunState>>>) -> Checkpoint {
    let saved = states.clone();
    Checkpoint::new(move |state: RunState| {
        saved.lock().unwrap().push(written(&state));
        Box::pin(async {
            pace().pass(&Context::new()).await;
            Ok(())
        })
    })
}

/// Runs until it hangs; what was written down last is what another process finds.
pub async fn died(agent: BoxModel, mut request: ChatRequest, context: Context) -> RunState {
    let states = Arc::new(Mutex::new(Vec::new()));
    request.checkpoint = Some(saves(&states));
    let run = async {
        let response = agent.oneshot(request.with_context(context)).await.unwrap();
        let mut body = std::pin::pin!(response.body);
        while let Some(event) = body.next().await {
            assert!(!event.unwrap().is_finish(), "it ends");
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(1), run).await;
    assert!(ended.is_err(), "it hangs");
    states.lock().unwrap().pop().unwrap()
}

pub fn results_of(events: &[Event]) -> Vec<Result3> {
    let result = |event: &Event| match event {
        Event::ToolResult(result) => Some((
            result.call_id.to_string(),
            result.outcome.status,
            result.outcome.content.text().into_owned(),
        )),
        _ => None,
    };
    events.iter().filter_map(result).collect()
}

/// Drives a run to its end; `on` sees each event except those of the test's pace.
pub async fn drive_with(agent: BoxModel, request: ChatRequest, mut on: impl FnMut(&Event)) -> Ran {
    let mut events = Vec::new();
    let response = match agent.oneshot(request).await {
        Ok(response) => response,
        Err(error) => {
            return Ran {
                events,
                end: Err(error),
            };
        }
    };
    let mut body = std::pin::pin!(response.body);
    while let Some(event) = body.next().await {
        match event {
            Ok(Event::Finish(finish)) => {
                if let Some(transcript) = &finish.transcript {
                    whole(transcript);
                }
                return Ran {
                    events,
                    end: Ok(*finish),
                };
            }
            Ok(event) if of_pace(&event) => {}
            Ok(event) => {
                on(&event);
                events.push(event);
            }
            Err(error) => {
                return Ran {
                    events,
                    end: Err(error),
                };
            }
        }
    }
    panic!("the run has no end");
}

pub async fn drive(agent: BoxModel, request: ChatRequest) -> Ran {
    drive_with(agent, request, |_| {}).await
}

/// All kinds of reply to a question.
pub const ANY_REPLY: [ReplyKind; 4] = [
    ReplyKind::Approve,
    ReplyKind::Deny,
    ReplyKind::Edit,
    ReplyKind::Answer,
];

/// What the model reads of a result that a person supplied.
pub fn by_person(result: &str) -> String {
    format!("A person supplied this result, not the tool:\n{result}")
}

/// A run that may be interrupted and go on.
pub struct Scene {
    pub world: World,
    pub model: Model,
}

impl Scene {
    pub fn new<C: Into<Call>>(script: Vec<Vec<C>>) -> Self {
        Self {
            world: World::new(),
            model: Model::new(script),
        }
    }

    /// One round of calls.
    pub fn round<C: Into<Call>>(calls: Vec<C>) -> Self {
        Self::new(vec![calls])
    }

    pub fn with_world(mut self, world: World) -> Self {
        self.world = world;
        self
    }

    pub async fn start(&self, tools: &Toolset) -> Ran {
        self.start_in(self.world.context(), tools).await
    }

    pub async fn start_in(&self, context: Context, tools: &Toolset) -> Ran {
        let request = ChatRequest::user("go").with_context(context);
        drive(self.model.agent(tools), request).await
    }

    /// Starts a run that has more than its agent.
    pub async fn start_with(&self, own: RunOverrides, tools: &Toolset) -> Ran {
        let request = ChatRequest::user("go").with_overrides(own);
        drive(
            self.model.agent(tools),
            request.with_context(self.world.context()),
        )
        .await
    }

    pub async fn resume(&self, tools: &Toolset, state: RunState, replies: Vec<Reply>) -> Ran {
        self.resume_in(self.world.context(), tools, state, replies)
            .await
    }

    pub async fn resume_in(
        &self,
        context: Context,
        tools: &Toolset,
        state: RunState,
        replies: Vec<Reply>,
    ) -> Ran {
        let request = ChatRequest::resume(state, replies).with_context(context);
        drive(self.model.agent(tools), request).await
    }

    pub async fn resume_with(
        &self,
        own: RunOverrides,
        tools: &Toolset,
        state: RunState,
        replies: Vec<Reply>,
    ) -> Ran {
        let request = ChatRequest::resume(state, replies).with_overrides(own);
        drive(
            self.model.agent(tools),
            request.with_context(self.world.context()),
        )
        .await
    }
}

// ---- tools ----

#[derive(Deserialize, JsonSchema)]
pub struct Number {
    pub n: u8,
}

/// A tool that logs what it ran with.
pub fn number(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool(name, "", move |Number { n }| {
        let log = log.clone();
        async move {
            log.add(format!("{name} {n}"));
            format!("{name} {n}")
        }
    })
}

/// One that logs, and fails.
pub fn failing(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool(name, "", move |Number { n }| {
        let log = log.clone();
        async move {
            log.add(format!("{name} {n}"));
            Err::<String, _>(ToolError::new("broken"))
        }
    })
}

/// One that logs, and panics.
pub fn panicking(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool(name, "", move |Number { n }| {
        let log = log.clone();
        async move {
            log.add(format!("{name} {n}"));
            if n < u8::MAX {
                panic!("on purpose");
            }
        }
    })
}

/// One that logs, and halts the run.
pub fn halting(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool(name, "", move |Number { n }| {
        let log = log.clone();
        async move {
            log.add(format!("{name} {n}"));
            ToolOutcome::done("halting").and_halt("enough")
        }
    })
}

/// Keeps panics out of the output of tests that panic on purpose.
pub fn quietly() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains("on purpose") {
            eprintln!("{text}");
        }
    }));
}

/// What a watcher is told.
pub fn told(log: &Log) -> impl Fn(&ApprovalEvent<'_>) + Send + Sync + 'static {
    let log = log.clone();
    move |event| {
        log.add(match event {
            ApprovalEvent::Requested { call, .. } => format!("requested {}", call.id()),
            ApprovalEvent::Approved { call } => {
                format!("approved {} {}", call.id(), call.arguments().as_str())
            }
            ApprovalEvent::Denied { call, reason } => {
                format!("denied {} {}", call.id(), reason.map_or("", |r| r.as_str()))
            }
            ApprovalEvent::Answered { call, result } => format!("answered {} {result}", call.id()),
            ApprovalEvent::Cancelled { call } => format!("cancelled {}", call.id()),
            other => format!("{other:?}"),
        });
    }
}

/// The protocol of a toolset.
#[derive(Clone, Default)]
pub struct Minutes(Arc<Mutex<Vec<TraceEntry>>>);

impl Minutes {
    pub fn sink(&self) -> impl Fn(TraceEntry) + Send + Sync + 'static {
        let minutes = self.clone();
        move |entry| minutes.0.lock().unwrap().push(entry)
    }

    pub fn all(&self) -> Vec<TraceEntry> {
        self.0.lock().unwrap().clone()
    }

    /// The steps of each call but those of its suspension, and without the delivery.
    pub fn lasting(&self) -> std::collections::BTreeMap<String, Vec<String>> {
        let mut calls = std::collections::BTreeMap::<String, Vec<String>>::new();
        for entry in self.all() {
            if matches!(entry.step, TraceStep::Suspended) {
                continue;
            }
            calls
                .entry(entry.call_id.unwrap().to_string())
                .or_default()
                .push(format!("{:?}", entry.step));
        }
        calls
    }
}

// ---- stores ----

/// A [`MemoryStore`] that answers at the pace of the test, and fails on demand.
#[derive(Clone, Default)]
pub struct Memory(Arc<Inner>);

#[derive(Default)]
struct Inner {
    store: MemoryStore,
    begun: Mutex<Vec<(EffectKey, Intent)>>,
    fails_begin: AtomicBool,
    fails_finish: AtomicBool,
    fails_rest: AtomicBool,
}

/// The result of `work`, which a [`MemoryStore`] has at the first poll.
fn now<T>(work: StoreFuture<T>) -> Result<T, StoreError> {
    work.now_or_never().unwrap()
}

fn done<T: Send + 'static>(work: StoreFuture<T>) -> StoreFuture<T> {
    let value = now(work);
    Box::pin(async {
        pace().pass(&Context::new()).await;
        value
    })
}

/// Does `work` unless it `fails`.
fn unless<T: Send + 'static>(
    fails: &AtomicBool,
    work: impl FnOnce() -> StoreFuture<T>,
) -> StoreFuture<T> {
    done(match fails.load(Ordering::SeqCst) {
        true => Box::pin(ready(Err(StoreError::failed("the disk is gone")))),
        false => work(),
    })
}

impl Memory {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn fail_begin(&self, fails: bool) {
        self.0.fails_begin.store(fails, Ordering::SeqCst);
    }

    pub fn fail_finish(&self, fails: bool) {
        self.0.fails_finish.store(fails, Ordering::SeqCst);
    }

    pub fn fail_rest(&self, fails: bool) {
        self.0.fails_rest.store(fails, Ordering::SeqCst);
    }

    /// The decisions of the default tenant.
    pub fn remembered(&self) -> Vec<StoredDecision> {
        now(self.0.store.list(Tenant::default())).unwrap()
    }

    pub fn begun(&self) -> Vec<(EffectKey, Intent)> {
        self.0.begun.lock().unwrap().clone()
    }

    /// The outcomes of the recorded effects, `None` for those without one.
    pub fn effects(&self) -> Vec<Option<ToolOutcome>> {
        let mut keys: Vec<_> = self.begun().into_iter().map(|(key, _)| key).collect();
        keys.sort_by(|a, b| a.key.cmp(&b.key));
        keys.dedup();
        let known = keys.into_iter().map(|key| now(self.0.store.known(key)));
        let recorded = known.filter_map(|effect| match effect.unwrap() {
            LedgerEntry::Started => Some(None),
            LedgerEntry::Finished(outcome) => Some(Some(*outcome)),
            _ => None,
        });
        recorded.collect()
    }
}

impl Once for Memory {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        unless(&self.0.fails_rest, || self.0.store.once(tenant, key, keep))
    }
}

impl Decisions for Memory {
    fn remember(&self, decision: StoredDecision) -> StoreFuture<()> {
        unless(&self.0.fails_rest, || self.0.store.remember(decision))
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
        session: Option<ThreadId>,
    ) -> StoreFuture<Vec<StoredDecision>> {
        unless(&self.0.fails_rest, || {
            self.0.store.recall(tenant, tool, run, thread, session)
        })
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        done(self.0.store.list(tenant))
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        done(self.0.store.revoke(tenant, id))
    }
}

impl Ledger for Memory {
    fn begin(&self, key: EffectKey, mut intent: Intent) -> StoreFuture<LedgerEntry> {
        unless(&self.0.fails_begin, || {
            let begun = (key.clone(), intent.clone());
            self.0.begun.lock().unwrap().push(begun);
            // The runs of these tests are not stored.
            intent.claim = None;
            Ledger::begin(&self.0.store, key, intent)
        })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        unless(&self.0.fails_finish, || self.0.store.finish(key, outcome))
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        done(self.0.store.known(key))
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        done(self.0.store.retract(key))
    }
}

pub fn id(id: &str) -> InterruptId {
    InterruptId::new(id)
}

/// A queue of numbers, for tests that need chance and want to repeat it.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
}

pub fn env_or(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}
