//! One test per row of [`concentric_layers::suspend`]'s tables.

mod begin;
mod driver_task;
mod edits;
mod ends;
mod lease;
mod lookup;
mod messages;
mod overrides;
mod placement;
mod recovery;
mod store_waits;
mod sweep;
#[cfg(feature = "conversation")]
mod turns;
mod unwritable;
mod wait;
mod withdraw;

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, FinishReason, Interrupt, InterruptId, Message, MessageId, OpenRound,
    Outcome, Reply, Resume, ResumePoint, Role, RunId, Suspension, ThreadId, ToolCall, ToolOutcome,
    ToolSpec, Transcript, Turn, Usage, interrupt,
    store::{
        MAX_TAKEOVERS, OpenInterrupts, Renewed, RunChange, RunClaim, RunKey, RunRecord, RunStatus,
        RunStore, RunSummary, StoreError, StoreFuture, Tenant,
    },
};
use concentric_layers::SuspendLayer;
use concentric_store::{MemoryStore, Options, SqliteStore};
use concentric_test::{
    Gate, Pace, ScriptedModel, ScriptedTools, Spurious, TestEnvironment, assert_fails,
    assert_finishes, check_layer, drop_at_each_wait, shape, tools::question, watched,
};
use futures_util::{StreamExt, future::join_all, stream};
use serde_json::json;
use std::{
    cell::RefCell,
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio_test::task;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

const LEASE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Inner(Arc<dyn RunStore>);

impl Default for Inner {
    fn default() -> Self {
        Self(Arc::new(MemoryStore::new()))
    }
}

impl Deref for Inner {
    type Target = Arc<dyn RunStore>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// A store that counts the writes, and fails those it is told to.
#[derive(Clone, Default)]
struct Flaky {
    inner: Inner,
    // How many states were asked for.
    loads: Arc<AtomicUsize>,
    // What runs are stored under, by the ids of their requests.
    keys: Arc<Mutex<HashMap<RunId, RunKey>>>,
    writes: Arc<AtomicUsize>,
    renewals: Arc<AtomicUsize>,
    fails: Arc<Mutex<Vec<&'static str>>>,
    refuses: Arc<Mutex<Vec<&'static str>>>,
    hangs: Arc<AtomicBool>,
    // What is never read or written, though it is not refused either.
    stalls: Arc<Mutex<Vec<&'static str>>>,
    // Whether all it does takes a tick.
    slow: Arc<AtomicBool>,
    // Whether all it does is done elsewhere, also once nobody waits for it.
    elsewhere: Arc<AtomicBool>,
    // What is done elsewhere waits for it.
    gate: Arc<Mutex<Option<Gate>>>,
    // Whether the process that has this is dead: nothing comes from it any more.
    dead: Arc<AtomicBool>,
    dies_at: Option<&'static str>,
}

/// The store keeps the time of the environment.
fn world() -> (TestEnvironment, Flaky) {
    let world = TestEnvironment::new();
    let store = Flaky::with(MemoryStore::with_options(options(&world)));
    (world, store)
}

fn options(world: &TestEnvironment) -> Options {
    Options::new().clock(world.clock().clone())
}

/// Claims abandoned runs, as another process does.
async fn abandoned(
    store: &Flaky,
    world: &TestEnvironment,
    limit: usize,
) -> Result<Vec<ChatRequest>, StoreError> {
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    layer.claim_abandoned(&world.environment(), limit).await
}

impl Flaky {
    fn with(inner: impl RunStore) -> Self {
        Self {
            inner: Inner(Arc::new(inner)),
            ..Self::default()
        }
    }

    fn fail(&self, what: &'static str) {
        self.fails.lock().unwrap().push(what);
    }

    /// Says of what is written that no attempt can write it.
    fn refuse(&self, what: &'static str) {
        self.refuses.lock().unwrap().push(what);
    }

    fn heal(&self) {
        self.fails.lock().unwrap().clear();
        self.refuses.lock().unwrap().clear();
        self.stalls.lock().unwrap().clear();
    }

    fn writes(&self) -> usize {
        self.writes.load(Ordering::Relaxed)
    }

    fn write<T: Send + 'static>(&self, what: &str, work: StoreFuture<T>) -> StoreFuture<T> {
        match what {
            "renew" => self.renewals.fetch_add(1, Ordering::Relaxed),
            _ => self.writes.fetch_add(1, Ordering::Relaxed),
        };
        if self.dies_at == Some(what) {
            self.dead.store(true, Ordering::Relaxed);
        }
        let stalls = self.stalls.lock().unwrap().contains(&what);
        if stalls || self.hangs.load(Ordering::Relaxed) || self.dead.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        if self.refuses.lock().unwrap().contains(&what) {
            return Box::pin(async { Err(StoreError::unwritable("it is too large")) });
        }
        match self.fails.lock().unwrap().contains(&what) {
            true => Box::pin(async { Err(StoreError::failed("the disk is full")) }),
            false => self.in_time(work),
        }
    }

    /// One over a file, which is removed with what is returned beside it.
    fn in_file(world: &TestEnvironment) -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs");
        let store = Self::with(SqliteStore::open_with(path, options(world)).unwrap());
        (dir, store)
    }

    fn read<T: Send + 'static>(&self, what: &str, work: StoreFuture<T>) -> StoreFuture<T> {
        if ["get", "asking"].contains(&what) {
            self.loads.fetch_add(1, Ordering::Relaxed);
        }
        if self.stalls.lock().unwrap().contains(&what) {
            return Box::pin(std::future::pending());
        }
        match self.fails.lock().unwrap().contains(&what) {
            true => Box::pin(async { Err(StoreError::failed("the disk is full")) }),
            false => self.in_time(work),
        }
    }

    fn in_time<T: Send + 'static>(&self, work: StoreFuture<T>) -> StoreFuture<T> {
        if self.elsewhere.load(Ordering::Relaxed) {
            let gate = self.gate.lock().unwrap().clone();
            let work = async {
                if let Some(gate) = gate {
                    gate.pass().await;
                }
                work.await
            };
            return Box::pin(async { tokio::spawn(work).await.unwrap() });
        }
        if !self.slow.load(Ordering::Relaxed) {
            return work;
        }
        Box::pin(async {
            Pace::NextTick.pass(&Context::new()).await;
            work.await
        })
    }
}

impl RunStore for Flaky {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let begun = self
            .inner
            .begin(key.clone(), client_id.clone(), change, lease);
        let keys = Arc::clone(&self.keys);
        let begun = async move {
            let fence = begun.await?;
            keys.lock().unwrap().insert(client_id, key);
            Ok(fence)
        };
        self.write("begin", Box::pin(begun))
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        self.read("is_live", self.inner.is_live(tenant, thread, client_id))
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        self.read("get", self.inner.get(key))
    }

    fn claim(
        &self,
        record: RunRecord,
        replies: Vec<Reply>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        self.write("claim", self.inner.claim(record, replies, lease))
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        self.write("claim_abandoned", self.inner.claim_abandoned(limit, lease))
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        self.write("amend", self.inner.amend(key, version, change))
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        self.write("save", self.inner.save(key, fence, change, lease))
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        self.write("renew", self.inner.renew(key, fence, lease))
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        self.write("cancel", self.inner.cancel(key))
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        self.write("suspend", self.inner.suspend(key, fence, change))
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        self.write("end", self.inner.end(key, fence, outcome))
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        self.write("withdraw", self.inner.withdraw(tenant, thread))
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        self.write("release", self.inner.release(key))
    }

    fn purge(&self) -> StoreFuture<()> {
        self.write("purge", self.inner.purge())
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        self.read(
            "asking",
            self.inner.find_by_interrupt(tenant, thread, questions),
        )
    }

    fn find_by_client_id(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        client_id: RunId,
    ) -> StoreFuture<RunSummary> {
        let found = self.inner.find_by_client_id(tenant, thread, client_id);
        self.read("of_client", found)
    }

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        let found = self.inner.list_by_thread(tenant, thread, message, limit);
        self.read("of_thread", found)
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        self.read("waiting", self.inner.list_waiting(tenant, limit))
    }
}

/// A process with an agent that pays when it may.
struct Process {
    store: Flaky,
    tools: ScriptedTools,
    model: ScriptedModel,
    agent: BoxModel,
}

impl Process {
    fn new(store: &Flaky, tools: ScriptedTools, model: ScriptedModel) -> Self {
        let store = Flaky {
            dead: Arc::default(),
            ..store.clone()
        };
        let agent = ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::new(store.clone())).lease(LEASE))
            .layer(AgentLayer::new(tools.clone()))
            .service(model.clone());
        Self {
            store,
            tools,
            model,
            agent: BoxModel::new(agent),
        }
    }

    /// Leaves its run as a process does that dies.
    fn die(self, body: task::Spawn<EventStream>) {
        self.store.dead.store(true, Ordering::Relaxed);
        std::mem::forget(body);
    }

    /// One whose model pays, and whose tool asks before.
    fn paying(store: &Flaky) -> Self {
        Self::new(store, ScriptedTools::new().asks("pay", "paid"), payer())
    }

    /// Another one, which goes on after the payment.
    fn other(store: &Flaky) -> Self {
        let model = ScriptedModel::new().text("Done.").repeat();
        Self::new(store, ScriptedTools::new().asks("pay", "paid"), model)
    }

    async fn body(&self, request: ChatRequest) -> EventStream {
        self.agent.clone().oneshot(request).await.unwrap().body
    }

    async fn fails(&self, request: ChatRequest) -> Error {
        match self.agent.clone().oneshot(request).await {
            Ok(response) => panic!("{:?}", response.collect().await),
            Err(error) => error,
        }
    }

    /// A run up to its question.
    async fn interrupted(&self, world: &TestEnvironment, run: &'static str) -> Vec<InterruptId> {
        let (_, finish) = assert_finishes(self.body(request(world, run)).await).await;
        assert_eq!(finish.outcome, Outcome::Interrupted);
        let questions = finish.interrupts();
        questions.iter().map(|asked| asked.id.clone()).collect()
    }
}

fn payer() -> ScriptedModel {
    ScriptedModel::new()
        .tool_call("pay", json!({"to": "them"}))
        .then()
        .text("Done.")
}

fn context(world: &TestEnvironment, run: &'static str) -> Context {
    world
        .context_builder()
        .thread_id(ThreadId::new("thread"))
        .run_id(RunId::new(run))
        .build()
}

fn request(world: &TestEnvironment, run: &'static str) -> ChatRequest {
    ChatRequest::user("Pay them.").with_context(context(world, run))
}

/// A client's reply, which comes without the run.
fn reply(world: &TestEnvironment, run: &'static str, replies: Vec<Reply>) -> ChatRequest {
    let mut request = ChatRequest::new(Transcript::new()).with_context(context(world, run));
    request.resume = Some(Resume::new(ResumePoint::InStore, replies));
    request
}

fn approve(questions: &[InterruptId]) -> Vec<Reply> {
    questions.iter().cloned().map(Reply::approve).collect()
}

/// What the last run of that request is stored under.
fn key(store: &Flaky, run: &'static str) -> RunKey {
    store.keys.lock().unwrap()[&RunId::new(run)].clone()
}

async fn status(store: &Flaky, run: &'static str) -> RunStatus {
    store.get(key(store, run)).await.unwrap().status
}

/// How a run ended.
async fn outcome(store: &Flaky, run: &'static str) -> Option<Result<Outcome, ErrorKind>> {
    store.get(key(store, run)).await.unwrap().outcome
}

fn is_unknown(store: &Flaky, run: &'static str) -> bool {
    !store.keys.lock().unwrap().contains_key(&RunId::new(run))
}

fn is(error: &Error, kind: ErrorKind, code: &str) {
    assert_eq!(
        (error.kind(), error.code()),
        (kind, Some(code)),
        "{error:?}"
    );
}

/// Lets spawned work be done.
async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

/// A request for what its conversation has asked, of a client that has said `messages`.
fn again(world: &TestEnvironment, run: &'static str, messages: &[&'static str]) -> ChatRequest {
    let mut context = context(world, run);
    context.extensions_mut().insert(OpenInterrupts::Show);
    let mut transcript = Transcript::new();
    for id in messages {
        let message = Message::user("Pay them.").with_id(MessageId::new(*id));
        transcript.push(Turn::message(message).unwrap());
    }
    ChatRequest::new(transcript).with_context(context)
}

/// What the user has said, as the last request to the model has it.
fn told(process: &Process) -> Vec<String> {
    let requests = process.model.requests();
    let transcript = &requests.last().unwrap().transcript;
    let users = transcript.iter().map(Turn::as_message);
    let users = users.filter(|message| message.role == Role::User);
    users.map(Message::text).collect()
}

/// A tool that waits at a gate.
fn gated(gate: &Gate) -> ScriptedTools {
    let gate = gate.clone();
    ScriptedTools::new().tool("pay", move |_| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            ToolOutcome::done("paid")
        }
    })
}

/// A process whose tool waits at a gate, and its body, which has come there.
async fn at_the_gate(
    world: &TestEnvironment,
    store: &Flaky,
) -> (Process, task::Spawn<EventStream>, Gate, Context) {
    let gate = Gate::new();
    let process = Process::new(store, gated(&gate), payer());
    let request = request(world, "run");
    let context = request.context.clone();
    let mut body = task::spawn(process.body(request).await);
    drain(&mut body).await;
    assert_eq!(process.tools.live(), 1);
    (process, body, gate, context)
}

/// What comes once the run's task has come as far as it can.
async fn drain(body: &mut task::Spawn<EventStream>) -> Vec<Result<Event, Error>> {
    let mut items = Vec::new();
    for _ in 0..4 {
        while let std::task::Poll::Ready(Some(item)) = body.poll_next() {
            items.push(item);
        }
        settle().await;
    }
    items
}

/// A run that has accepted replies when its process dies; the questions expire meanwhile.
async fn died_with_replies(world: &TestEnvironment, store: &Flaky) -> Vec<InterruptId> {
    let expires = context(world, "x").now() + Duration::from_secs(1);
    let tools = ScriptedTools::new()
        .answers("pay", "paid")
        .waits("pay", move |call| {
            let id = call.context.interrupt_id().unwrap();
            let question = Interrupt::new(id, interrupt::TOOL_CALL).until(expires);
            Suspension::new(vec![question])
        });
    let questions = Process::new(store, tools, payer())
        .interrupted(world, "run")
        .await;
    let dies = Process::other(&Flaky {
        dies_at: Some("save"),
        ..store.clone()
    });
    let replied = dies.body(reply(world, "next", approve(&questions))).await;
    let mut body = task::spawn(replied);
    drain(&mut body).await;
    assert_eq!(dies.tools.done(), 0);
    dies.die(body);
    world.advance(LEASE);
    questions
}

/// Nobody takes the run up again.
async fn is_over(world: &TestEnvironment, store: &Flaky) {
    assert_eq!(status(store, "run").await, RunStatus::Ended);
    world.advance(LEASE);
    let left = abandoned(store, world, 9).await.unwrap();
    assert!(left.is_empty());
}
