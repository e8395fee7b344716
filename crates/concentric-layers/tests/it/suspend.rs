//! One test per row of [`concentric_layers::suspend`]'s tables.

use concentric_core::{
    AgentLayer, BoxModel, CancelReason, ChatRequest, ChatResponse, Context, Error, ErrorKind,
    Event, EventStream, FinishReason, Interrupt, InterruptId, Message, MessageId, OpenRound,
    Outcome, Reply, Resume, Role, RunId, Suspended, Suspension, ThreadId, ToolCall, ToolOutcome,
    ToolSpec, Transcript, Turn, Usage, interrupt,
    machine::MachineState,
    store::{
        OpenInterrupts, RunClaim, RunKey, RunRecord, RunStatus, RunStore, RunSummary, StoreError,
        StoreFuture, Tenant,
    },
};
use concentric_layers::{SuspendLayer, suspend::abandoned};
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
    time::{Duration, SystemTime},
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
    // Whether the process that has this is dead: nothing comes from it any more.
    dead: Arc<AtomicBool>,
    dies_at: Option<&'static str>,
}

impl Flaky {
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
    fn in_file() -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().unwrap();
        let inner = Inner(Arc::new(
            SqliteStore::open(dir.path().join("runs")).unwrap(),
        ));
        let store = Self {
            inner,
            ..Self::default()
        };
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
        state: MachineState,
        until: SystemTime,
    ) -> StoreFuture<u64> {
        let begun = self
            .inner
            .begin(key.clone(), client_id.clone(), state, until);
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
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        until: SystemTime,
    ) -> StoreFuture<RunRecord> {
        self.write("claim", self.inner.claim(key, version, replies, now, until))
    }

    fn amend(
        &self,
        key: RunKey,
        version: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<u64> {
        self.write("amend", self.inner.amend(key, version, state, now))
    }

    fn save(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        until: SystemTime,
    ) -> StoreFuture<()> {
        self.write("save", self.inner.save(key, fence, state, until))
    }

    fn renew(&self, key: RunKey, fence: u64, until: SystemTime) -> StoreFuture<()> {
        self.write("renew", self.inner.renew(key, fence, until))
    }

    fn suspend(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<()> {
        self.write("suspend", self.inner.suspend(key, fence, state, now))
    }

    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()> {
        self.write("end", self.inner.end(key, fence, now))
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize> {
        self.write("withdraw", self.inner.withdraw(tenant, thread, now))
    }

    fn asking(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        self.read("asking", self.inner.asking(tenant, thread, questions))
    }

    fn of_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        let found = self.inner.of_thread(tenant, thread, message, limit);
        self.read("of_thread", found)
    }

    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>> {
        self.inner.abandoned(now, limit)
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
    request.resume = Some(Resume::new(Suspended::Elsewhere, replies));
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

#[tokio::test(start_paused = true)]
async fn it_is_a_layer() {
    check_layer(SuspendLayer::new(Arc::new(MemoryStore::new()))).await;
    let store: Arc<dyn RunStore> = Arc::new(MemoryStore::new());
    check_layer(SuspendLayer::new(store)).await;
}

// ---- a run that begins ----

#[tokio::test]
async fn a_run_that_calls_no_tool_costs_no_write() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let talks = Process::new(
        &store,
        ScriptedTools::new(),
        ScriptedModel::new().text("Hi!"),
    );
    assert_finishes(talks.body(request(&world, "run")).await).await;
    assert_eq!(store.writes(), 0);
    assert!(is_unknown(&store, "run"));
}

#[tokio::test]
async fn a_run_is_written_down_before_its_tools_run_and_ended_before_its_finish() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let seen = Arc::new(Mutex::new(None));
    let tools = ScriptedTools::new().tool("pay", {
        let (store, seen) = (store.clone(), seen.clone());
        move |call| {
            let (store, seen) = (store.clone(), seen.clone());
            async move {
                let record = store.get(key(&store, "run")).await.unwrap();
                *seen.lock().unwrap() = Some((RunClaim::of(&call.context), record));
                ToolOutcome::done("paid")
            }
        }
    });
    let process = Process::new(&store, tools, payer());
    let mut body = process.body(request(&world, "run")).await;
    while let Some(event) = body.next().await {
        if event.unwrap().is_finish() {
            assert_eq!(status(&store, "run").await, RunStatus::Ended);
        }
    }
    let (claim, record) = seen.lock().unwrap().take().unwrap();
    assert_eq!(record.status, RunStatus::Running);
    assert_eq!(record.lease_until, context(&world, "x").now() + LEASE);
    assert_eq!(claim, Some(RunClaim::new(key(&store, "run"), record.fence)));
}

#[tokio::test]
async fn a_round_does_not_begin_if_the_run_is_not_written_down() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    store.fail("begin");
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    assert!(process.tools.calls().is_empty());
    assert!(is_unknown(&store, "run"));
}

#[tokio::test]
async fn a_run_id_that_repeats_starts_another_run() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = || Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    let mut keys = Vec::new();
    for _ in 0..3 {
        let process = process();
        let (_, finish) = assert_finishes(process.body(request(&world, "run")).await).await;
        assert_eq!(
            (finish.outcome, process.tools.done()),
            (Outcome::Completed, 1)
        );
        let record = store.get(key(&store, "run")).await.unwrap();
        assert_eq!(record.client_id, RunId::new("run"));
        assert!(!keys.contains(&record.key));
        keys.push(record.key);
    }
    // One that waits has ended for its client, too.
    for _ in 0..2 {
        Process::paying(&store).interrupted(&world, "run").await;
    }
}

#[tokio::test]
async fn a_run_id_of_a_live_run_calls_no_model() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (process, body, gate, _) = at_the_gate(&world, &store).await;
    // In this process, and in another one.
    let calls = process.model.requests().len();
    let error = process.fails(request(&world, "run")).await;
    is(&error, ErrorKind::Conflict, "run_live");
    assert!(error.to_string().contains("is still running"), "{error}");
    let other = Process::paying(&store);
    let error = other.fails(request(&world, "run")).await;
    is(&error, ErrorKind::Conflict, "run_live");
    assert_eq!(process.model.requests().len(), calls);
    assert!(other.model.requests().is_empty());
    // Other ids, conversations and tenants are not concerned.
    let mut elsewhere = request(&world, "run");
    let context = elsewhere.context.extensions_mut();
    context.insert(Tenant("other".into()));
    assert_finishes(other.body(elsewhere).await).await;
    gate.open();
    assert_finishes(body.into_inner()).await;
}

#[tokio::test]
async fn a_run_that_is_in_no_store_yet_is_live() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let model = ScriptedModel::new().never().repeat();
    let process = Process::new(&store, ScriptedTools::new(), model);
    let mut first = task::spawn(process.agent.clone().oneshot(request(&world, "run")));
    assert!(first.poll().is_pending());
    settle().await;
    assert!(first.poll().is_pending());
    let error = process.fails(request(&world, "run")).await;
    is(&error, ErrorKind::Conflict, "run_live");
    assert_eq!(process.model.requests().len(), 1);
    // Its consumer leaves.
    drop(first);
    let mut second = task::spawn(process.agent.clone().oneshot(request(&world, "run")));
    assert!(second.poll().is_pending());
    assert_eq!(process.model.requests().len(), 2);
}

#[tokio::test]
async fn attempts_at_one_request_may_overlap() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let model = ScriptedModel::new().text("Hi!").repeat();
    let process = Process::new(&store, ScriptedTools::new(), model);
    let asked = request(&world, "run");
    let first = process.body(asked.clone()).await;
    let second = process.body(asked).await;
    assert_finishes(first).await;
    assert_finishes(second).await;
}

#[tokio::test]
async fn a_run_begins_though_it_is_not_known_whether_it_is_live() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    store.fail("is_live");
    let talks = ScriptedModel::new().text("Hi!");
    let process = Process::new(&store, ScriptedTools::new(), talks);
    assert_finishes(process.body(request(&world, "run")).await).await;
}

// ---- a run that waits ----

#[tokio::test]
async fn a_run_waits_in_the_store_before_its_question_is_shown() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = Process::paying(&store);
    let mut body = process.body(request(&world, "run")).await;
    while let Some(event) = body.next().await {
        if let Event::Finish(finish) = event.unwrap() {
            let record = store.get(key(&store, "run")).await.unwrap();
            assert_eq!(record.status, RunStatus::Suspended);
            assert_eq!(Some(&record.state), finish.state.as_deref());
        }
    }
}

#[tokio::test]
async fn a_question_that_cannot_be_written_down_is_not_shown() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    store.fail("suspend");
    let process = Process::paying(&store);
    let (events, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    assert!(!events.iter().any(Event::is_finish));
}

#[tokio::test]
async fn a_run_that_waits_for_its_client_is_written_down_though_no_tool_ran() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let client_tools = ScriptedTools::new().answers("pay", "");
    let mut asked = request(&world, "run");
    asked.tools = concentric_core::ToolSource::specs(&client_tools);
    let (_, finish) = assert_finishes(process.body(asked).await).await;
    let question = finish.interrupts()[0].clone();
    assert_eq!(question.reason, interrupt::CLIENT_TOOL);
    assert_eq!(status(&store, "run").await, RunStatus::Suspended);

    let answer = vec![Reply::answer(question.id, "paid")];
    let body = Process::other(&store)
        .body(reply(&world, "next", answer))
        .await;
    let (events, finish) = assert_finishes(body).await;
    assert_eq!(shape(&events).split(' ').next(), Some("resumed"));
    assert_eq!(finish.transcript.unwrap().len(), 3);
}

/// A run up to where it waits for its client, whose tools are `names`.
async fn waits_for_its_client(
    world: &TestEnvironment,
    process: &Process,
    names: &[&'static str],
) -> OpenRound {
    let client = names
        .iter()
        .fold(ScriptedTools::new(), |tools, name| tools.answers(*name, ""));
    let mut asked = request(world, "run");
    asked.tools = concentric_core::ToolSource::specs(&client);
    let (_, finish) = assert_finishes(process.body(asked).await).await;
    finish.state.unwrap().open_round().unwrap()
}

/// What a client says that has the results of its tools, and nothing to reply to.
fn history(world: &TestEnvironment, open: OpenRound, outcome: &ToolOutcome) -> ChatRequest {
    let mut transcript = Transcript::new();
    transcript.push(Turn::user("Pay them."));
    transcript.push(open.close(|_| outcome.clone()));
    ChatRequest::new(transcript).with_context(context(world, "next"))
}

#[tokio::test]
async fn results_of_the_clients_tools_are_taken_from_the_history() {
    for outcome in [
        ToolOutcome::done("paid"),
        ToolOutcome::failed("no money"),
        ToolOutcome::denied("no"),
    ] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let process = Process::new(&store, ScriptedTools::new(), payer());
        let open = waits_for_its_client(&world, &process, &["pay"]).await;
        let body = Process::other(&store)
            .body(history(&world, open, &outcome))
            .await;
        let (events, finish) = assert_finishes(body).await;
        assert_eq!(shape(&events).split(' ').next(), Some("resumed"));
        let transcript = finish.transcript.unwrap();
        assert_eq!(transcript.len(), 3);
        let results = transcript.iter().flat_map(Turn::results);
        let results: Vec<_> = results.map(|result| &result.outcome).collect();
        assert_eq!(results.len(), 1);
        assert_eq!(
            (results[0].status, results[0].content.text()),
            (outcome.status, outcome.content.text())
        );
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
        assert!(is_unknown(&store, "next"));
    }
}

#[tokio::test]
async fn results_of_the_clients_tools_go_with_the_replies() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let model = ScriptedModel::new()
        .tool_call("pay", json!({"to": "them"}))
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let process = Process::new(&store, ScriptedTools::new().asks("pay", "paid"), model);
    let mut open = waits_for_its_client(&world, &process, &["look"]).await;
    let questions: Vec<_> = open.questions().map(|(id, _)| id).collect();
    let look = open.calls()[1].call.id.clone();
    open.settle(&look, ToolOutcome::done("it is nice")).unwrap();
    let replies = approve(&questions[..1]);
    let request = ChatRequest::resume_history(Transcript::new(), open, replies);
    let other = Process::other(&store);
    let body = other
        .body(request.with_context(context(&world, "next")))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn what_else_it_waits_for_is_asked_again() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let model = ScriptedModel::new()
        .tool_call("pay", json!({"to": "them"}))
        .tool_call("look", json!({}))
        .then()
        .text("Done.");
    let process = Process::new(&store, ScriptedTools::new().asks("pay", "paid"), model);
    let open = waits_for_its_client(&world, &process, &["look"]).await;
    let questions: Vec<_> = open.questions().map(|(id, _)| id).collect();
    // The second time there is nothing new in it.
    for _ in 0..2 {
        let other = Process::other(&store);
        let said = history(&world, open.clone(), &ToolOutcome::done("it is nice"));
        let (_, finish) = assert_finishes(other.body(said).await).await;
        let asked = finish.interrupts();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].id, questions[0]);
    }
}

#[tokio::test]
async fn a_history_that_no_run_waits_for_is_a_conversation_like_any_other() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let open = waits_for_its_client(&world, &process, &["pay"]).await;
    let said = || history(&world, open.clone(), &ToolOutcome::done("paid"));

    let unknown = Process::other(&Flaky::default());
    let (events, _) = assert_finishes(unknown.body(said()).await).await;
    assert_ne!(shape(&events).split(' ').next(), Some("resumed"));

    assert_finishes(Process::other(&store).body(said()).await).await;
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let again = Process::other(&store);
    let (events, finish) = assert_finishes(again.body(said()).await).await;
    assert_ne!(shape(&events).split(' ').next(), Some("resumed"));
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn only_results_of_the_clients_tools_have_the_store_asked() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let open = waits_for_its_client(&world, &process, &["pay"]).await;
    store.fail("asking");
    let mut said = history(&world, open, &ToolOutcome::done("paid"));
    let error = Process::other(&store).fails(said.clone()).await;
    is(&error, ErrorKind::Server, "store_failed");
    said.transcript.push(Turn::user("And now?"));
    assert_finishes(Process::other(&store).body(said).await).await;
}

#[tokio::test]
async fn results_that_come_twice_are_taken_once() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = Process::new(&store, ScriptedTools::new(), payer());
    let open = waits_for_its_client(&world, &process, &["pay"]).await;
    let said = || history(&world, open.clone(), &ToolOutcome::done("paid"));
    let first = Process::other(&store);
    let _body = first.body(said()).await;
    let error = Process::other(&store).fails(said()).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
}

#[tokio::test]
async fn another_process_goes_on_once_it_is_replied_to() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let body = other.body(reply(&world, "next", approve(&questions))).await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 1);
    // The user's message, the round, the answer: as if nothing had happened between.
    assert_eq!(finish.transcript.unwrap().len(), 3);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    assert!(is_unknown(&store, "next"));
}

#[tokio::test]
async fn what_a_client_claims_gives_way_to_what_was_written_down() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let record = store.get(key(&store, "run")).await.unwrap();
    // A history with other arguments.
    let open = record.state.open_round().unwrap();
    let forged = serde_json::to_string(&open).unwrap().replace("them", "me");
    let open: OpenRound = serde_json::from_str(&forged).unwrap();
    let request = ChatRequest::resume_history(Transcript::new(), open, approve(&questions));
    let other = Process::other(&store);
    let body = other
        .body(request.with_context(context(&world, "next")))
        .await;
    assert_finishes(body).await;
    let calls = other.tools.calls();
    assert_eq!(calls[0].arguments.as_str(), r#"{"to":"them"}"#);
}

#[tokio::test]
async fn a_claim_of_a_run_that_was_never_written_down_is_for_the_agent_to_judge() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let record = store.get(key(&store, "run")).await.unwrap();
    let open = record.state.open_round().unwrap();
    let request = ChatRequest::resume_history(Transcript::new(), open, approve(&questions));
    let elsewhere = Process::other(&Flaky::default());
    let body = elsewhere
        .body(request.with_context(context(&world, "next")))
        .await;
    let (_, finish) = assert_finishes(body).await;
    // Nobody there has asked.
    assert_eq!(elsewhere.tools.calls(), []);
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_reply_to_nothing_is_not_found() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let other = Process::other(&store);
    let error = other
        .fails(reply(&world, "next", approve(&[InterruptId::new("q")])))
        .await;
    is(&error, ErrorKind::NotFound, "run_not_found");
    let error = other.fails(reply(&world, "next", vec![])).await;
    is(&error, ErrorKind::NotFound, "run_not_found");
}

#[tokio::test]
async fn another_tenants_reply_is_not_found() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let mut request = reply(&world, "next", approve(&questions));
    request
        .context
        .extensions_mut()
        .insert(Tenant("other".into()));
    let error = Process::other(&store).fails(request).await;
    is(&error, ErrorKind::NotFound, "run_not_found");
    assert_eq!(status(&store, "run").await, RunStatus::Suspended);
}

#[tokio::test]
async fn a_wrong_reply_runs_nothing_and_the_run_waits_on() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let writes = store.writes();
    let question = questions[0].clone();
    let wrong = [
        (
            vec![Reply::resolve(question.clone(), json!({}))],
            "malformed_reply",
        ),
        (
            vec![
                Reply::approve(question.clone()),
                Reply::cancel(question.clone()),
            ],
            "duplicate_reply",
        ),
        (
            vec![
                Reply::approve(question),
                Reply::approve(InterruptId::new("q")),
            ],
            "unknown_interrupt",
        ),
    ];
    for (replies, code) in wrong {
        let request = reply(&world, "next", replies);
        let again = request.clone();
        is(&other.fails(request).await, ErrorKind::InvalidRequest, code);
        // Another attempt is told the same.
        is(&other.fails(again).await, ErrorKind::InvalidRequest, code);
    }
    assert_eq!(store.writes(), writes);
    assert!(other.tools.calls().is_empty());
    let body = other.body(reply(&world, "next", approve(&questions))).await;
    assert_finishes(body).await;
}

#[tokio::test]
async fn a_store_that_fails_leaves_the_reply_for_another_attempt() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let request = reply(&world, "next", approve(&questions));
    for what in ["asking", "claim"] {
        store.fail(what);
        let error = other.fails(request.clone()).await;
        is(&error, ErrorKind::Server, "store_failed");
        assert!(error.is_retryable());
        store.heal();
    }
    assert_finishes(other.body(request).await).await;
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn an_attempt_that_is_dropped_leaves_the_reply_for_another() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let request = reply(&world, "next", approve(&questions));
    store.hangs.store(true, Ordering::Relaxed);
    let mut attempt = task::spawn(other.agent.clone().oneshot(request.clone()));
    assert!(attempt.poll().is_pending());
    drop(attempt);
    store.hangs.store(false, Ordering::Relaxed);
    assert_finishes(other.body(request).await).await;
}

#[tokio::test]
async fn a_claim_that_is_made_for_nobody_is_given_back() {
    for is_left in [false, true] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        let other = Process::other(&store);
        if is_left {
            let dying = Process::other(&store);
            let body = dying.body(reply(&world, "next", approve(&questions))).await;
            dying.die(task::spawn(body));
            world.advance(LEASE);
        }
        let before = store.get(key(&store, "run")).await.unwrap();
        store.elsewhere.store(true, Ordering::Relaxed);
        let request = reply(&world, "another", approve(&questions));
        let mut attempt = task::spawn(other.agent.clone().oneshot(request.clone()));
        // It looks for the run, and claims it; it is dropped before it knows.
        assert!(attempt.poll().is_pending());
        settle().await;
        let writes = store.writes();
        assert!(attempt.poll().is_pending());
        assert_eq!(store.writes(), writes + 1, "a claim");
        drop(attempt);
        settle().await;
        let after = store.get(key(&store, "run")).await.unwrap();
        assert!(after.version > before.version, "it was claimed");
        let now = context(&world, "x").now();
        match is_left {
            false => assert_eq!(after.status, RunStatus::Suspended),
            true => assert!(after.lease_until <= now, "{after:?}"),
        }
        assert_eq!((other.model.calls(), other.tools.done()), (0, 0));
        assert_finishes(other.body(request).await).await;
        assert_eq!(other.tools.done(), 1);
    }
}

#[tokio::test]
async fn what_is_not_answered_waits_on() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let model = ScriptedModel::new()
        .tool_call("pay", json!({"n": 1}))
        .tool_call("pay", json!({"n": 2}));
    let tools = ScriptedTools::new().asks("pay", "paid");
    let questions = Process::new(&store, tools, model)
        .interrupted(&world, "run")
        .await;
    assert_eq!(questions.len(), 2);

    let other = Process::other(&store);
    let body = other
        .body(reply(&world, "next", approve(&questions[..1])))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Interrupted);
    assert_eq!(other.tools.done(), 1);
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Suspended);
    assert_eq!(record.asked.len(), 2);

    // The first is answered: who says so again comes too late, and the other one is still open.
    let error = other
        .fails(reply(&world, "late", approve(&questions[..1])))
        .await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    let body = other
        .body(reply(&world, "last", approve(&questions[1..])))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 2);
}

#[tokio::test]
async fn without_a_reply_the_question_is_asked_again() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let (_, finish) = assert_finishes(other.body(reply(&world, "next", vec![])).await).await;
    assert_eq!(finish.interrupts()[0].id, questions[0]);
    // As with a history that makes the same calls.
    let open = finish.state.unwrap().open_round().unwrap();
    let request = ChatRequest::resume_history(Transcript::new(), open, vec![]);
    let body = other
        .body(request.with_context(context(&world, "next")))
        .await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.interrupts()[0].id, questions[0]);
    // Of two that wait, none is meant.
    Process::paying(&store).interrupted(&world, "second").await;
    let error = other.fails(reply(&world, "next", vec![])).await;
    is(&error, ErrorKind::InvalidRequest, "ambiguous_resume");
}

// ---- questions that are withdrawn ----

/// A request that withdraws what its conversation has asked.
fn instead(world: &TestEnvironment, run: &'static str) -> ChatRequest {
    let mut request = request(world, run);
    let extensions = request.context.extensions_mut();
    extensions.insert(OpenInterrupts::Withdraw);
    request
}

#[tokio::test]
async fn a_new_message_withdraws_what_waits() {
    for slow in [false, true] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        store.slow.store(slow, Ordering::Relaxed);
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        // A request that does not say so leaves it.
        let beside = Process::paying(&store).interrupted(&world, "beside").await;
        let other = Process::other(&store);
        assert_finishes(other.body(instead(&world, "next")).await).await;
        for (run, questions) in [("run", &questions), ("beside", &beside)] {
            assert_eq!(status(&store, run).await, RunStatus::Ended);
            let late = other.fails(reply(&world, "late", approve(questions))).await;
            is(&late, ErrorKind::Conflict, "run_ended");
        }
        assert_eq!(other.tools.done(), 0);
    }
}

#[tokio::test]
async fn where_nothing_waits_nothing_is_written() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let other = Process::other(&store);
    assert_finishes(other.body(instead(&world, "run")).await).await;
    assert_eq!(store.writes(), 0);
    // Requests without a conversation are of many.
    let nowhere = || {
        let run = world.context_builder().build();
        ChatRequest::user("Pay them.").with_context(run)
    };
    let asking = Process::paying(&store);
    let (_, finish) = assert_finishes(asking.body(nowhere()).await).await;
    let writes = store.writes();
    let mut request = nowhere();
    let extensions = request.context.extensions_mut();
    extensions.insert(OpenInterrupts::Withdraw);
    assert_finishes(other.body(request).await).await;
    assert_eq!(store.writes(), writes);
    let mut replies =
        ChatRequest::replying(vec![Reply::approve(finish.interrupts()[0].id.clone())]);
    replies = replies.with_context(world.context_builder().build());
    let (_, finish) = assert_finishes(other.body(replies).await).await;
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn a_run_that_goes_on_is_not_withdrawn() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let record = store.get(key(&store, "run")).await.unwrap();
    let now = context(&world, "reply").now();
    let claim = store.claim(
        record.key.clone(),
        record.version,
        approve(&questions),
        now,
        now + LEASE,
    );
    let claimed = claim.await.unwrap();
    let other = Process::other(&store);
    assert_finishes(other.body(instead(&world, "next")).await).await;
    assert_eq!(store.get(record.key).await.unwrap(), claimed);
}

#[tokio::test]
async fn a_run_does_not_begin_if_nothing_can_be_withdrawn() {
    for fails in ["of_thread", "withdraw"] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        store.fail(fails);
        let other = Process::other(&store);
        let error = other.fails(instead(&world, "next")).await;
        is(&error, ErrorKind::Server, "store_failed");
        assert_eq!(other.model.requests().len(), 0);
        store.heal();
        let replied = reply(&world, "late", approve(&questions));
        let (_, finish) = assert_finishes(other.body(replied).await).await;
        assert_eq!(finish.outcome, Outcome::Completed);
    }
}

#[tokio::test]
async fn of_a_reply_and_a_new_message_one_is_first() {
    for race in 0..16 {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        store.elsewhere.store(race % 2 == 0, Ordering::Relaxed);
        store.slow.store(race % 3 == 0, Ordering::Relaxed);
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        let (replying, other) = (Process::other(&store), Process::other(&store));
        let replied = async {
            let request = reply(&world, "reply", approve(&questions));
            let response = replying.agent.clone().oneshot(request).await?;
            let answer = response.collect().await;
            answer.map(drop).map_err(|incomplete| incomplete.error)
        };
        let said = async { assert_finishes(other.body(instead(&world, "next")).await).await };
        let replied = match race % 4 < 2 {
            true => tokio::join!(replied, said).0,
            false => tokio::join!(said, replied).1,
        };
        if let Err(error) = &replied {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let code = error.code().unwrap();
            assert!(["run_ended", "already_resumed"].contains(&code), "{code}");
        }
        assert_eq!(replying.tools.done(), usize::from(replied.is_ok()));
        settle().await;
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
    }
}

// ---- questions that are asked again ----

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

#[tokio::test]
async fn a_client_that_has_said_nothing_since_is_asked_again() {
    for slow in [false, true] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        store.slow.store(slow, Ordering::Relaxed);
        let mut first = Vec::new();
        for (run, messages) in [("first", &["m1"][..]), ("second", &["m1", "m2"])] {
            let mut request = again(&world, run, messages);
            let extensions = request.context.extensions_mut();
            extensions.remove::<OpenInterrupts>();
            let process = Process::paying(&store);
            let (_, finish) = assert_finishes(process.body(request).await).await;
            first.push(finish);
        }
        let (other, writes) = (Process::other(&store), store.writes());
        // The newest of several.
        for messages in [&["m1", "m2"][..], &["m0", "m1"], &[]] {
            let body = other.body(again(&world, "again", messages)).await;
            let (events, finish) = assert_finishes(body).await;
            assert_eq!(finish.outcome, Outcome::Interrupted);
            assert_eq!(finish.state, first[1].state);
            // Nothing was done, or used.
            assert_eq!(events.len(), 1, "{events:?}");
            assert_eq!(finish.usage, first[1].usage);
            assert_eq!(finish.attempt_usage(), Usage::default());
        }
        assert_eq!((other.model.requests().len(), store.writes()), (0, writes));
        // The other one, once that is answered.
        let asked = approve(&[first[1].interrupts()[0].id.clone()]);
        assert_finishes(other.body(reply(&world, "reply", asked)).await).await;
        let body = other.body(again(&world, "again", &["m1"])).await;
        let (_, finish) = assert_finishes(body).await;
        assert_eq!(finish.state, first[0].state);
        // A newer message withdraws it.
        let body = other.body(again(&world, "next", &["m1", "m3"])).await;
        let (_, finish) = assert_finishes(body).await;
        assert_eq!(finish.outcome, Outcome::Completed);
        assert_eq!(status(&store, "first").await, RunStatus::Ended);
        let error = other.fails(again(&world, "again", &[])).await;
        is(&error, ErrorKind::NotFound, "run_not_found");
    }
}

#[tokio::test]
async fn of_many_runs_that_wait_one_state_is_loaded() {
    let (_dir, file) = Flaky::in_file();
    for store in [Flaky::default(), file] {
        let world = TestEnvironment::new();
        for _ in 0..30 {
            Process::paying(&store).interrupted(&world, "run").await;
        }
        let other = Process::other(&store);
        let mut ended = again(&world, "again", &["other"]);
        ended
            .transcript
            .push(Turn::message(Message::assistant("Done.")).unwrap());
        for (request, loads) in [
            (again(&world, "again", &[]), 1),
            (ended, 1),
            (again(&world, "next", &["other"]), 1),
            (again(&world, "again", &[]), 0),
        ] {
            store.loads.store(0, Ordering::Relaxed);
            if let Ok(response) = other.agent.clone().oneshot(request).await {
                assert_finishes(response.body).await;
            }
            assert_eq!(store.loads.load(Ordering::Relaxed), loads);
        }
    }
}

#[tokio::test]
async fn two_that_look_at_once_are_both_asked() {
    for (slow, elsewhere) in [(false, false), (true, false), (false, true)] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        Process::paying(&store).interrupted(&world, "run").await;
        store.slow.store(slow, Ordering::Relaxed);
        store.elsewhere.store(elsewhere, Ordering::Relaxed);
        let processes = [Process::other(&store), Process::other(&store)];
        let looks = ["one", "another"].into_iter().zip(&processes);
        let looks = looks.map(|(run, process)| process.body(again(&world, run, &[])));
        let bodies = join_all(looks).await;
        for (_, finish) in join_all(bodies.into_iter().map(assert_finishes)).await {
            assert_eq!(finish.outcome, Outcome::Interrupted);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_wins_over_a_look() {
    let (_dir, file) = Flaky::in_file();
    for store in [Flaky::default(), file] {
        let world = TestEnvironment::new();
        for race in 0..50 {
            let questions = Process::paying(&store).interrupted(&world, "run").await;
            let (looking, replying) = (Process::other(&store), Process::other(&store));
            let requests = [
                again(&world, "again", &[]),
                reply(&world, "reply", approve(&questions)),
            ];
            let [look, reply] = requests;
            let run = |process: &Process, request: ChatRequest| {
                let agent = process.agent.clone();
                tokio::spawn(async move {
                    let response = agent.oneshot(request).await?;
                    let answer = response.collect().await;
                    answer.map(drop).map_err(|incomplete| incomplete.error)
                })
            };
            let (looked, replied) = (run(&looking, look), run(&replying, reply));
            replied.await.unwrap().unwrap();
            if let Err(error) = looked.await.unwrap() {
                let codes = ["already_resumed", "run_ended", "run_not_found"];
                assert!(codes.contains(&error.code().unwrap()), "{race}: {error}");
            }
            assert_eq!((replying.tools.done(), looking.tools.done()), (1, 0));
            assert_eq!(status(&store, "run").await, RunStatus::Ended);
        }
    }
}

#[tokio::test]
async fn a_look_that_is_dropped_keeps_no_reply_away() {
    for elsewhere in [false, true] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let asked = RefCell::new(Process::paying(&store).interrupted(&world, "run").await);
        store.slow.store(!elsewhere, Ordering::Relaxed);
        store.elsewhere.store(elsewhere, Ordering::Relaxed);
        let look = || {
            let (agent, request) = (Process::other(&store).agent, again(&world, "again", &[]));
            async move {
                let response = agent.oneshot(request).await.unwrap();
                drop(response.collect().await);
            }
        };
        let drops = drop_at_each_wait(look, async |polls| {
            let replies = approve(&asked.take());
            let other = Process::other(&store);
            let body = other.body(reply(&world, "reply", replies)).await;
            let (_, finish) = assert_finishes(body).await;
            assert_eq!(finish.outcome, Outcome::Completed, "{polls}");
            assert_eq!(other.tools.done(), 1);
            asked.replace(Process::paying(&store).interrupted(&world, "run").await);
        });
        assert!(drops.await > 2);
    }
}

#[tokio::test]
async fn a_message_beside_a_driven_run_does_not_begin_it_again() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    Process::paying(&store).interrupted(&world, "waits").await;
    let (_process, body, _gate, _) = at_the_gate(&world, &store).await;
    let other = Process::other(&store);
    let error = other.fails(again(&world, "again", &["m"])).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    assert_eq!(status(&store, "waits").await, RunStatus::Suspended);
    drop(body);
}

#[tokio::test]
async fn a_run_that_is_driven_is_not_asked_again() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (_process, body, _gate, _) = at_the_gate(&world, &store).await;
    let other = Process::other(&store);
    let error = other.fails(again(&world, "again", &[])).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    drop(body);
}

// ---- messages that come with replies ----

/// A reply, with a message of that id.
fn reply_and_say(
    world: &TestEnvironment,
    run: &'static str,
    replies: Vec<Reply>,
    id: &'static str,
) -> ChatRequest {
    let mut request = reply(world, run, replies);
    let message = Message::user(id).with_id(MessageId::new(id));
    request.resume = request
        .resume
        .map(|resume| resume.with_messages(vec![message]));
    request
}

/// What the user has said, as the last request to the model has it.
fn told(process: &Process) -> Vec<String> {
    let requests = process.model.requests();
    let transcript = &requests.last().unwrap().transcript;
    let users = transcript.iter().map(Turn::as_message);
    let users = users.filter(|message| message.role == Role::User);
    users.map(Message::text).collect()
}

#[tokio::test]
async fn a_message_that_comes_with_replies_is_as_durable_as_they_are() {
    for (dies_at, slow) in [("claim", false), ("save", false), ("save", true)] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let questions = Process::paying(&store).interrupted(&world, "run").await;
        let dying = Process::other(&Flaky {
            dies_at: Some(dies_at),
            ..store.clone()
        });
        let request = reply_and_say(&world, "next", approve(&questions), "more");
        let agent = dying.agent.clone();
        let mut left = task::spawn(async move {
            let response = agent.oneshot(request).await.unwrap();
            response.collect().await.map(drop)
        });
        assert!(left.poll().is_pending());
        settle().await;
        assert!(left.poll().is_pending());
        std::mem::forget(left);
        assert!(dying.store.dead.load(Ordering::Relaxed));

        world.advance(LEASE);
        store.slow.store(slow, Ordering::Relaxed);
        let other = Process::other(&store);
        // A client that has no answer sends it again.
        let request = reply_and_say(&world, "again", approve(&questions), "more");
        let (_, finish) = assert_finishes(other.body(request).await).await;
        assert_eq!(finish.outcome, Outcome::Completed);
        assert_eq!(told(&other), ["Pay them.", "more"]);
        assert_eq!(other.tools.done(), 1);
    }
}

#[tokio::test]
async fn a_message_with_wrong_replies_is_not_taken() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();
    let other = Process::other(&store);
    let twice = [approve(&questions), approve(&questions)].concat();
    let error = other
        .fails(reply_and_say(&world, "next", twice, "more"))
        .await;
    is(&error, ErrorKind::InvalidRequest, "duplicate_reply");
    assert_eq!(store.get(before.key.clone()).await.unwrap(), before);
}

#[tokio::test]
async fn a_message_that_the_run_cannot_take_is_refused() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let tools = ScriptedTools::new().asks("pay", "paid");
    let inner = AgentLayer::new(tools.clone()).layer(payer());
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(AgentLayer::new(ScriptedTools::new()))
        .service(BoxModel::new(inner));
    let agent = BoxModel::new(agent);
    let body = agent
        .clone()
        .oneshot(request(&world, "run"))
        .await
        .unwrap()
        .body;
    let (_, finish) = assert_finishes(body).await;
    let questions: Vec<_> = finish.interrupts().iter().map(|it| it.id.clone()).collect();
    let request = reply_and_say(&world, "next", approve(&questions), "more");
    let error = agent.clone().oneshot(request).await.map(drop).unwrap_err();
    is(&error, ErrorKind::InvalidRequest, "unexpected_message");
    assert!(error.message().contains("`more`"), "{error}");
    assert_eq!(tools.done(), 0);
    // Without it, the replies are taken.
    let body = agent.oneshot(reply(&world, "next", approve(&questions)));
    let (_, finish) = assert_finishes(body.await.unwrap().body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
}

#[tokio::test]
async fn of_several_that_reply_one_goes_on() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    for run in ["a", "b", "c"] {
        let questions = Process::paying(&store).interrupted(&world, run).await;
        let others: Vec<_> = (0..4).map(|_| Process::other(&store)).collect();
        let replied = others.iter().map(|other| {
            other
                .agent
                .clone()
                .oneshot(reply(&world, "next", approve(&questions)))
        });
        let mut won = 0;
        for replied in join_all(replied).await {
            match replied {
                Ok(response) => {
                    won += 1;
                    assert_finishes(response.body).await;
                }
                Err(error) => is(&error, ErrorKind::Conflict, "already_resumed"),
            }
        }
        assert_eq!(won, 1);
        assert_eq!(
            others.iter().map(|other| other.tools.done()).sum::<usize>(),
            1
        );
        let late = others[0]
            .fails(reply(&world, "late", approve(&questions)))
            .await;
        is(&late, ErrorKind::Conflict, "run_ended");
    }
}

#[tokio::test]
async fn a_file_does_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    let world = TestEnvironment::new();
    let agent = |model| {
        let tools = ScriptedTools::new().asks("pay", "paid");
        ServiceBuilder::new()
            .layer(SuspendLayer::new(Arc::new(
                SqliteStore::open(&path).unwrap(),
            )))
            .layer(AgentLayer::new(tools))
            .service::<ScriptedModel>(model)
    };
    let first = agent(payer())
        .oneshot(request(&world, "run"))
        .await
        .unwrap();
    let (_, finish) = assert_finishes(first.body).await;
    let questions: Vec<_> = finish
        .interrupts()
        .iter()
        .map(|asked| asked.id.clone())
        .collect();
    let others = (0..3).map(|_| {
        let other = agent(ScriptedModel::new().text("Done."));
        other.oneshot(reply(&world, "next", approve(&questions)))
    });
    let mut won = 0;
    for replied in join_all(others).await {
        match replied {
            Ok(response) => {
                won += 1;
                assert_finishes(response.body).await;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
        }
    }
    assert_eq!(won, 1);
}

// ---- the lease ----

/// A process whose tool waits at a gate, and its body, which has come there.
async fn at_the_gate(
    world: &TestEnvironment,
    store: &Flaky,
) -> (Process, task::Spawn<EventStream>, Gate, Context) {
    let gate = Gate::new();
    let tools = ScriptedTools::new().tool("pay", {
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                ToolOutcome::done("paid")
            }
        }
    });
    let process = Process::new(store, tools, payer());
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

#[tokio::test]
async fn a_lease_is_renewed_while_a_tool_runs() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (_process, mut body, gate, context) = at_the_gate(&world, &store).await;
    for n in 1..=12 {
        world.advance(LEASE / 3);
        assert!(drain(&mut body).await.is_empty());
        assert_eq!(store.renewals.load(Ordering::Relaxed), n);
        let record = store.get(key(&store, "run")).await.unwrap();
        assert_eq!(record.lease_until, context.now() + LEASE);
        assert!(store.abandoned(context.now(), 1).await.unwrap().is_empty());
    }
    gate.open();
    assert!(
        drain(&mut body)
            .await
            .last()
            .unwrap()
            .as_ref()
            .unwrap()
            .is_finish()
    );
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    assert_eq!(world.clock().sleepers(), 0);
}

#[tokio::test]
async fn a_run_that_another_has_taken_over_is_cancelled_and_fails() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (process, mut body, _gate, context) = at_the_gate(&world, &store).await;
    // It slept through its lease.
    world.advance(LEASE);
    let record = store.get(key(&store, "run")).await.unwrap();
    let (now, until) = (context.now(), context.now() + LEASE);
    let claim = store.claim(key(&store, "run"), record.version, vec![], now, until);
    let record = claim.await.unwrap();

    let items = drain(&mut body).await;
    assert_eq!(items.len(), 1);
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Conflict,
        "stale_claim",
    );
    assert!(!items[0].as_ref().unwrap_err().is_retryable());
    assert_eq!(
        context.cancel_reason(),
        Some(CancelReason::Other("lease lost".into()))
    );
    // Its tool has stopped, before the body is dropped.
    assert_eq!((process.tools.live(), process.tools.dropped()), (0, 1));
    drop(body);
    settle().await;
    assert_eq!(store.get(key(&store, "run")).await.unwrap(), record);
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_lost_when_it_is_over() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (_process, mut body, _gate, context) = at_the_gate(&world, &store).await;
    store.fail("renew");
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    // It is tried again, and succeeds.
    store.heal();
    world.advance(LEASE / 6);
    assert!(drain(&mut body).await.is_empty());
    let until = store.get(key(&store, "run")).await.unwrap().lease_until;
    assert_eq!(until, context.now() + LEASE);
    // It fails until the end.
    store.fail("renew");
    for _ in 0..4 {
        world.advance(LEASE / 6);
        assert!(drain(&mut body).await.is_empty());
    }
    world.advance(LEASE / 3);
    let items = drain(&mut body).await;
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Server,
        "store_failed",
    );
    assert!(context.is_cancelled());
}

#[tokio::test]
async fn a_renewal_that_hangs_is_lost_when_the_lease_is_over() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (_process, mut body, _gate, _) = at_the_gate(&world, &store).await;
    store.hangs.store(true, Ordering::Relaxed);
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    world.advance(LEASE / 3);
    assert!(drain(&mut body).await.is_empty());
    world.advance(LEASE / 3);
    let items = drain(&mut body).await;
    is(
        items[0].as_ref().unwrap_err(),
        ErrorKind::Server,
        "store_failed",
    );
}

#[tokio::test]
async fn a_lease_is_looked_at_while_events_keep_coming() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let agent = service_fn(async |_: ChatRequest| {
        let events = (0..1000).map(|_| Ok::<_, Error>(Event::text("and ")));
        Ok::<_, Error>(ChatResponse::new(stream::iter(events)))
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let request = reply(&world, "next", approve(&questions));
    let context = request.context.clone();
    let mut body = layer.layer(agent).oneshot(request).await.unwrap().body;
    for _ in 0..64 {
        body.next().await.unwrap().unwrap();
    }
    world.advance(LEASE);
    let record = store.get(key(&store, "run")).await.unwrap();
    let (now, until) = (context.now(), context.now() + LEASE);
    let claim = store.claim(key(&store, "run"), record.version, vec![], now, until);
    claim.await.unwrap();
    let (events, error) = assert_fails(body).await;
    is(&error, ErrorKind::Conflict, "stale_claim");
    // What it was ahead of its consumer, and what it had in hand.
    assert!(events.len() <= 2 * 64 + 1, "{}", events.len());
}

// ---- the task ----

#[tokio::test]
async fn a_consumer_that_does_not_read_loses_no_run() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (process, mut body, gate, context) = at_the_gate(&world, &store).await;
    for n in 1..=12 {
        world.advance(LEASE / 3);
        settle().await;
        assert_eq!(store.renewals.load(Ordering::Relaxed), n);
        assert!(store.abandoned(context.now(), 1).await.unwrap().is_empty());
    }
    // It ends, too, since there is room for what it has to say.
    gate.open();
    settle().await;
    assert_eq!(process.tools.done(), 1);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let items = drain(&mut body).await;
    assert!(items.last().unwrap().as_ref().unwrap().is_finish());
}

/// A service in an agent's place that has `events` to say once a run was resumed, and how many of them
/// were taken from it.
async fn resumed_with_events(
    world: &TestEnvironment,
    store: &Flaky,
    buffer: usize,
    events: usize,
) -> (task::Spawn<EventStream>, Arc<AtomicUsize>, Context) {
    let questions = Process::paying(store).interrupted(world, "run").await;
    let taken = Arc::new(AtomicUsize::new(0));
    let agent = service_fn({
        let taken = Arc::clone(&taken);
        move |_: ChatRequest| {
            let taken = Arc::clone(&taken);
            let events = (0..events).map(move |n| {
                taken.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(Event::text(format!("{n} ")))
            });
            let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
            let events = events.chain([Ok(finish)]);
            async move { Ok::<_, Error>(ChatResponse::new(stream::iter(events))) }
        }
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let request = reply(world, "next", approve(&questions));
    let context = request.context.clone();
    let agent = BoxModel::new(layer.buffer(buffer).layer(agent));
    let body = agent.oneshot(request).await.unwrap().body;
    (task::spawn(body), taken, context)
}

#[tokio::test]
async fn a_run_is_ahead_of_its_consumer_by_the_buffer() {
    for (buffer, most) in [(0, 1), (1, 1), (5, 5), (usize::MAX, 1000)] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let (mut body, taken, context) = resumed_with_events(&world, &store, buffer, 1000).await;
        settle().await;
        for n in 1..=6 {
            world.advance(LEASE / 3);
            settle().await;
            // Besides, one is in hand, and one was taken before the run had its task.
            let taken = taken.load(Ordering::Relaxed);
            assert!(taken <= most + 2, "{taken}");
            if most < 1000 {
                // It waits, and is alive.
                assert_eq!(store.renewals.load(Ordering::Relaxed), n);
                assert!(store.abandoned(context.now(), 1).await.unwrap().is_empty());
            }
        }
        let mut text = String::new();
        while text.len() < 3890 {
            for item in drain(&mut body).await {
                match item.unwrap() {
                    Event::Finish(_) => {}
                    Event::TextDelta(delta) => text.push_str(&delta),
                    other => panic!("{other:?}"),
                }
            }
        }
        let all: String = (0..1000).map(|n| format!("{n} ")).collect();
        assert_eq!(text, all);
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
    }
}

#[tokio::test]
async fn a_run_that_waits_for_its_consumer_ends_when_cancelled_or_late() {
    for late in [false, true] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let layer = SuspendLayer::new(Arc::new(store.clone()))
            .lease(LEASE)
            .buffer(1);
        let tools = ScriptedTools::new().answers("pay", "paid");
        let model = ScriptedModel::new().tool_call("pay", json!({})).repeat();
        let agent = ServiceBuilder::new()
            .layer(layer)
            .layer(AgentLayer::new(tools.clone()))
            .service(model);
        let now = context(&world, "x").now();
        let limited = world.context_builder().thread_id(ThreadId::new("thread"));
        let limited = limited.run_id(RunId::new("run")).deadline(now + LEASE / 2);
        let request = ChatRequest::user("Pay.").with_context(limited.build());
        let cancel = request.context.clone();
        let mut body = task::spawn(agent.oneshot(request).await.unwrap().body);
        // Until it is stored, and driven by its task.
        while is_unknown(&store, "run") {
            let _ = body.poll_next();
            tokio::task::yield_now().await;
        }
        settle().await;
        assert_eq!(status(&store, "run").await, RunStatus::Running);
        match late {
            true => world.advance(LEASE / 2),
            false => cancel.cancel(CancelReason::User),
        }
        settle().await;
        assert_eq!(
            status(&store, "run").await,
            RunStatus::Ended,
            "late: {late}"
        );
        assert_eq!(tools.live(), 0);
    }
}

#[tokio::test]
async fn a_panic_in_a_stored_run_is_its_last_item() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();
    let agent = service_fn(|_: ChatRequest| async {
        let mut polls = 0;
        let body = stream::poll_fn(move |_| {
            polls += 1;
            assert!(polls < 4, "over the fourth event");
            std::task::Poll::Ready(Some(Ok::<_, Error>(Event::text("and "))))
        });
        Ok::<_, Error>(ChatResponse::new(body))
    });
    let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
    let agent = BoxModel::new(layer.layer(agent));
    let body = agent.oneshot(reply(&world, "next", approve(&questions)));
    let (events, error) = assert_fails(body.await.unwrap().body).await;
    assert_eq!(events.len(), 3);
    assert!(
        error.to_string().contains("over the fourth event"),
        "{error}"
    );
    // Nothing was done, so it waits on.
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(
        (record.status, record.state),
        (RunStatus::Suspended, before.state)
    );
}

#[test]
fn a_runtime_that_shuts_down_ends_the_body() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let (process, mut body, _gate, _) = first.block_on(at_the_gate(&world, &store));
    drop(first);
    let item = second.block_on(async { body.next().await }).unwrap();
    is(&item.unwrap_err(), ErrorKind::Cancelled, "task_stopped");
    assert_eq!(process.tools.live(), 0);
    // It is resumed like that of a process that died.
    world.advance(LEASE);
    let left = second.block_on(abandoned(&store, &world.environment(), 9));
    assert_eq!(left.unwrap().len(), 1);
}

#[tokio::test]
async fn a_lease_of_any_length_is_kept() {
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let layer = SuspendLayer::new(Arc::new(store.clone())).lease(lease);
        let tools = ScriptedTools::new().answers("pay", "paid");
        let agent = ServiceBuilder::new()
            .layer(layer)
            .layer(AgentLayer::new(tools.clone()))
            .service(payer());
        let response = agent.oneshot(request(&world, "run")).await.unwrap();
        let (_, finish) = assert_finishes(response.body).await;
        assert_eq!(
            (finish.outcome, tools.done()),
            (Outcome::Completed, 1),
            "{lease:?}"
        );
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
    }
}

// ---- waits for the store ----

/// How many tasks of the runtime are alive.
fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

#[tokio::test]
async fn a_run_that_is_looked_for_ends_when_cancelled_or_late() {
    for stalls in ["is_live", "asking", "of_thread", "get", "claim"] {
        for late in [false, true] {
            let (world, store) = (TestEnvironment::new(), Flaky::default());
            let questions = Process::paying(&store).interrupted(&world, "run").await;
            store.stalls.lock().unwrap().push(stalls);
            let limited = world.context_builder().thread_id(ThreadId::new("thread"));
            let limited = limited.deadline(context(&world, "x").now() + LEASE / 2);
            let mut request = match stalls {
                "is_live" => ChatRequest::user("hi"),
                _ => ChatRequest::new(Transcript::new()),
            };
            request = request.with_context(limited.build());
            let replies = match stalls {
                "of_thread" | "get" => Vec::new(),
                _ => approve(&questions),
            };
            if stalls != "is_live" {
                request.resume = Some(Resume::new(Suspended::Elsewhere, replies));
            }
            let cancel = request.context.clone();
            let process = Process::other(&store);
            let mut call = task::spawn(process.agent.clone().oneshot(request.clone()));
            for _ in 0..32 {
                assert!(call.poll().is_pending(), "{stalls}");
                tokio::task::yield_now().await;
            }
            match late {
                true => world.advance(LEASE / 2),
                false => cancel.cancel(CancelReason::User),
            }
            assert!(call.is_woken(), "{stalls}, late: {late}");
            let kind = match late {
                true => ErrorKind::Timeout,
                false => ErrorKind::Cancelled,
            };
            let error = call.await.unwrap_err();
            assert_eq!(error.kind(), kind, "{stalls}: {error}");
            assert_eq!((process.model.calls(), process.tools.done()), (0, 0));
            // Its replies came to nothing, and the run waits for them.
            assert!(request.resume.is_none_or(|it| it.take().is_some()));
            store.heal();
            assert_eq!(status(&store, "run").await, RunStatus::Suspended);
        }
    }
}

#[tokio::test]
async fn an_end_that_the_store_does_not_record_in_time_is_an_error() {
    for (tools, stalls) in [
        (ScriptedTools::new().answers("pay", "paid"), "end"),
        (ScriptedTools::new().asks("pay", "paid"), "suspend"),
    ] {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        store.stalls.lock().unwrap().push(stalls);
        let process = Process::new(&store, tools, payer());
        let mut body = task::spawn(process.body(request(&world, "run")).await);
        let shown = drain(&mut body).await;
        assert!(shown.iter().all(|item| !item.as_ref().unwrap().is_finish()));
        world.advance(Duration::from_secs(29));
        assert!(drain(&mut body).await.is_empty(), "{stalls}");
        world.advance(Duration::from_secs(1));
        let items = drain(&mut body).await;
        let error = items.last().unwrap().as_ref().unwrap_err();
        is(error, ErrorKind::Server, "store_failed");
        // Another process resumes it.
        store.heal();
        world.advance(LEASE);
        assert_eq!(status(&store, "run").await, RunStatus::Running);
        let left = abandoned(&store, &world.environment(), 9).await.unwrap();
        assert_eq!(left.len(), 1, "{stalls}");
    }
}

#[tokio::test]
async fn the_end_of_a_dropped_run_is_given_up_in_time() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (_process, body, _gate, _) = at_the_gate(&world, &store).await;
    store.stalls.lock().unwrap().push("end");
    drop(body);
    settle().await;
    assert_eq!(tasks(), 1);
    world.advance(Duration::from_secs(30));
    settle().await;
    assert_eq!(tasks(), 0);
}

/// A run that asks, and the reply, which another process resumes it with. All of it takes ticks, and
/// is woken for nothing now and then.
async fn asks_and_resumes(
    world: TestEnvironment,
    store: Flaky,
    tools: ScriptedTools,
    buffer: usize,
) -> Result<(), Error> {
    let agent = |model: ScriptedModel| {
        let layer = SuspendLayer::new(Arc::new(store.clone())).lease(LEASE);
        ServiceBuilder::new()
            .layer(layer.buffer(buffer))
            .layer(AgentLayer::new(tools.clone()))
            .service(model.paced(Pace::NextTick))
    };
    let first = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .pause()
        .tool_call("pay", json!({}));
    let answer = Spurious::new(agent(first).oneshot(request(&world, "run"))).await?;
    let answer = answer.map_body(Spurious::new).collect().await?;
    let asked = answer.finish.interrupts();
    let questions: Vec<_> = asked.iter().map(|asked| asked.id.clone()).collect();
    let reply = reply(&world, "next", approve(&questions));
    let second = ScriptedModel::new().text("Do").pause().text("ne.");
    let answer = Spurious::new(agent(second).oneshot(reply)).await?;
    let answer = answer.map_body(Spurious::new).collect().await?;
    assert_eq!(answer.text(), "Done.");
    Ok(())
}

fn slow_tools() -> ScriptedTools {
    let look = |_| async {
        tokio::task::yield_now().await;
        ToolOutcome::done("seen")
    };
    let tools = ScriptedTools::new().tool("look", look).asks("pay", "paid");
    tools.paced(Pace::NextTick)
}

#[test]
fn a_stored_run_that_is_polled_without_a_wake_ends() {
    for buffer in [1, 64] {
        watched(async move {
            let (world, store) = (TestEnvironment::new(), Flaky::default());
            store.slow.store(true, Ordering::Relaxed);
            let tools = slow_tools();
            let run = asks_and_resumes(world, store.clone(), tools.clone(), buffer);
            run.await.unwrap();
            assert_eq!(status(&store, "run").await, RunStatus::Ended);
            assert_eq!((tools.done(), tasks()), (2, 0));
        });
    }
}

#[tokio::test]
async fn a_stored_run_that_is_dropped_where_it_waits_is_not_driven() {
    for buffer in [1, 64] {
        let scene = RefCell::new(None);
        let run = || {
            let (store, tools) = (Flaky::default(), slow_tools());
            store.slow.store(true, Ordering::Relaxed);
            *scene.borrow_mut() = Some((store.clone(), tools.clone()));
            asks_and_resumes(TestEnvironment::new(), store, tools, buffer)
        };
        let drops = drop_at_each_wait(run, async |polls| {
            let (store, tools) = scene.take().unwrap();
            settle().await;
            assert_eq!((tools.live(), tasks()), (0, 0), "{polls}");
            if !is_unknown(&store, "run") {
                assert_ne!(status(&store, "run").await, RunStatus::Running, "{polls}");
            }
        });
        let drops = drops.await;
        assert!(drops > 5, "{drops}");
    }
}

#[tokio::test]
async fn more_replies_than_a_request_may_have_are_refused() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let replies = |n: u32| {
        (0..n)
            .map(|n| Reply::approve(InterruptId::new(format!("{n}"))))
            .collect()
    };
    let error = other.fails(reply(&world, "next", replies(257))).await;
    is(&error, ErrorKind::InvalidRequest, "too_many_replies");
    let error = other.fails(reply(&world, "next", replies(256))).await;
    is(&error, ErrorKind::NotFound, "run_not_found");
}

#[tokio::test]
async fn a_run_that_may_not_wait_is_over() {
    let (world, mut store) = (TestEnvironment::new(), Flaky::default());
    let inner = MemoryStore::with_options(Options::new().max_waiting_per_thread(1));
    store.inner = Inner(Arc::new(inner));
    Process::paying(&store).interrupted(&world, "first").await;
    let second = Process::paying(&store);
    let (events, error) = assert_fails(second.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Conflict, "too_many_waiting");
    assert!(!events.iter().any(Event::is_finish));
    is_over(&world, &store).await;
    assert_eq!(status(&store, "first").await, RunStatus::Suspended);
}

// ---- the ends ----

#[tokio::test]
async fn a_finish_that_cannot_be_written_down_is_an_error() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    store.fail("end");
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_run_that_fails_is_over() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let broken = Error::new(ErrorKind::Server, "it broke").with_code("E7");
    let model = ScriptedModel::new()
        .tool_call("pay", json!({}))
        .then()
        .error(broken);
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), model);
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::Server, "E7");
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
}

#[tokio::test]
async fn a_run_whose_body_is_dropped_is_over() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (process, body, _gate, _context) = at_the_gate(&world, &store).await;
    drop(body);
    settle().await;
    assert_eq!(process.tools.dropped(), 1);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
}

#[tokio::test]
async fn a_run_that_is_dropped_while_it_is_first_written_down_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("runs.db")).unwrap();
    let world = TestEnvironment::new();
    let run = RunId::new("stored_1");
    let key = RunKey::new(Tenant::default(), ThreadId::new("thread"), run);
    let tools = ScriptedTools::new().answers("pay", "paid");
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store.clone())))
        .layer(AgentLayer::new(tools.clone()))
        .service(payer());
    let mut body = task::spawn(agent.oneshot(request(&world, "run")).await.unwrap().body);
    // It is pending first when it waits for the store's thread.
    while body.poll_next().is_ready() {}
    drop(body);
    assert!(tools.calls().is_empty());
    for _ in 0..500 {
        if let Ok(record) = store.get(key.clone()).await
            && record.status == RunStatus::Ended
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", store.get(key.clone()).await);
}

#[tokio::test]
async fn a_reply_that_came_to_nothing_can_be_given_again() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let other = Process::other(&store);
    let before = store.get(key(&store, "run")).await.unwrap();
    let waits_on = async || {
        let record = store.get(key(&store, "run")).await.unwrap();
        assert_eq!(
            (record.status, &record.state),
            (RunStatus::Suspended, &before.state)
        );
        assert!(record.replies.is_empty());
    };

    // The round is not begun.
    store.fail("save");
    let body = other.body(reply(&world, "next", approve(&questions))).await;
    let (_, error) = assert_fails(body).await;
    is(&error, ErrorKind::Server, "store_failed");
    waits_on().await;
    store.heal();

    // The body is dropped before it.
    store.stalls.lock().unwrap().push("save");
    let mut body = other.body(reply(&world, "next", approve(&questions))).await;
    assert!(matches!(body.next().await, Some(Ok(Event::Resumed))));
    assert_eq!(status(&store, "run").await, RunStatus::Running);
    drop(body);
    settle().await;
    waits_on().await;
    store.heal();

    let body = other.body(reply(&world, "next", approve(&questions))).await;
    assert_finishes(body).await;
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn a_reply_after_which_only_what_changes_nothing_was_done_can_be_given_again() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let mut look = ToolSpec::new("look", "", json!({"type": "object"}));
    look.annotations.read_only = true;
    let seen = service_fn(|_: ToolCall| async { Ok::<_, Error>(ToolOutcome::done("seen")) });
    let tools = ScriptedTools::new()
        .service(look, seen)
        .waits("look", |call| Suspension::new(vec![question(call)]));
    let model = ScriptedModel::new()
        .tool_call("look", json!({}))
        .then()
        .error(Error::new(ErrorKind::Server, "broken"))
        .then()
        .text("Seen.");
    let process = Process::new(&store, tools, model);
    let questions = process.interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();

    let body = process
        .body(reply(&world, "next", approve(&questions)))
        .await;
    assert_fails(body).await;
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(
        (record.status, &record.state),
        (RunStatus::Suspended, &before.state)
    );

    let body = process
        .body(reply(&world, "next", approve(&questions)))
        .await;
    assert_finishes(body).await;
    assert_eq!(process.tools.done(), 2);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
}

// ---- hooks ----

#[cfg(feature = "hooks")]
#[tokio::test]
async fn a_run_that_a_hook_halts_is_over_if_the_hook_is_inside_and_else_waits_on() {
    use concentric_core::BoxError;
    use concentric_layers::hooks::{Hooks, RunFlow, hooks};

    struct Closed;
    impl Hooks for Closed {
        fn id(&self) -> &str {
            "closed"
        }
        async fn before_run(&self, request: &mut ChatRequest) -> Result<RunFlow, BoxError> {
            Ok(match request.resume {
                Some(_) => RunFlow::halt("closed"),
                None => RunFlow::Continue,
            })
        }
    }
    let halted = Outcome::Halted {
        reason: "closed".into(),
    };
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let suspend = || SuspendLayer::new(Arc::new(store.clone()));
    let tools = ScriptedTools::new().asks("pay", "paid");
    let agent = || AgentLayer::new(tools.clone()).layer(payer());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let before = store.get(key(&store, "run")).await.unwrap();

    let outside = hooks(Closed).run().layer(suspend().layer(agent()));
    let response = outside.oneshot(reply(&world, "1", approve(&questions)));
    let (_, finish) = assert_finishes(response.await.unwrap().body).await;
    assert_eq!((&finish.outcome, &finish.transcript), (&halted, &None));
    let record = store.get(key(&store, "run")).await.unwrap();
    assert_eq!(
        (record.status, record.state),
        (RunStatus::Suspended, before.state)
    );

    let inside = suspend().layer(hooks(Closed).run().layer(agent()));
    let response = inside.oneshot(reply(&world, "2", approve(&questions)));
    let (_, finish) = assert_finishes(response.await.unwrap().body).await;
    assert_eq!((&finish.outcome, tools.done()), (&halted, 0));
    assert_eq!(finish.transcript.unwrap().len(), 2);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
}

// ---- a process that dies ----

#[tokio::test]
async fn a_run_whose_process_died_is_taken_up_once() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (process, body, _gate, _) = at_the_gate(&world, &store).await;
    process.die(body);
    let environment = world.environment();
    assert!(abandoned(&store, &environment, 9).await.unwrap().is_empty());
    world.advance(LEASE);

    let mut first = abandoned(&store, &environment, 9).await.unwrap();
    let mut second = abandoned(&store, &environment, 9).await.unwrap();
    assert_eq!((first.len(), second.len()), (1, 1));
    let request = first.remove(0);
    assert_eq!(request.context.thread_id(), Some(&ThreadId::new("thread")));
    assert_eq!(request.context.run_id(), &RunId::new("run"));
    assert_eq!(request.transcript.len(), 1);

    let other = Process::other(&store);
    let (events, finish) = assert_finishes(other.body(request).await).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(shape(&events).split(' ').next(), Some("resumed"));
    // What the tool did is not known, and it is not run again.
    assert!(other.tools.calls().is_empty());
    assert_eq!(status(&store, "run").await, RunStatus::Ended);

    let error = other.fails(second.remove(0)).await;
    is(&error, ErrorKind::Conflict, "run_ended");
}

#[tokio::test]
async fn of_several_that_take_up_a_run_one_goes_on() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let (process, body, _gate, _) = at_the_gate(&world, &store).await;
    process.die(body);
    world.advance(LEASE);
    let other = Process::other(&store);
    let mut taken = Vec::new();
    for _ in 0..4 {
        let request = abandoned(&store, &world.environment(), 1)
            .await
            .unwrap()
            .remove(0);
        taken.push(other.agent.clone().oneshot(request));
    }
    let taken = join_all(taken).await;
    assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 1);
    for error in taken.into_iter().filter_map(Result::err) {
        is(&error, ErrorKind::Conflict, "already_resumed");
    }
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

#[tokio::test]
async fn replies_that_were_accepted_outlive_the_process() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    died_with_replies(&world, &store).await;
    let request = abandoned(&store, &world.environment(), 1)
        .await
        .unwrap()
        .remove(0);
    let other = Process::other(&store);
    let (_, finish) = assert_finishes(other.body(request).await).await;
    assert_eq!(
        (finish.outcome, other.tools.done()),
        (Outcome::Completed, 1)
    );
}

#[tokio::test]
async fn a_reply_takes_up_a_run_whose_process_died_and_the_first_reply_counts() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = died_with_replies(&world, &store).await;
    let other = Process::other(&store);
    // Who replies otherwise is told so, and runs nothing.
    let denied = vec![Reply::deny(questions[0].clone(), "no")];
    let error = other.fails(reply(&world, "late", denied)).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    assert_eq!(other.tools.done(), 0);
    // Who says the same again takes it up.
    let same = vec![Reply::approve(questions[0].clone())];
    let body = other.body(reply(&world, "next", same)).await;
    assert_finishes(body).await;
    assert_eq!(other.tools.done(), 1);
}

#[tokio::test]
async fn a_denial_after_its_call_was_written_down_as_approved_is_refused() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let questions = Process::paying(&store).interrupted(&world, "run").await;
    let never = ScriptedTools::new().asks("pay", "paid").never("look");
    let dies = Process::new(&store, never, ScriptedModel::new().never());
    let body = dies.body(reply(&world, "next", approve(&questions))).await;
    // The round is written down, with the reply, and then the process dies.
    let mut body = task::spawn(body);
    drain(&mut body).await;
    assert_eq!(dies.tools.done(), 1);
    dies.die(body);
    world.advance(LEASE);
    let other = Process::other(&store);
    let denied = vec![Reply::deny(questions[0].clone(), "no")];
    let error = other.fails(reply(&world, "late", denied)).await;
    is(&error, ErrorKind::Conflict, "already_resumed");
    // Who says the same again takes it up.
    let again = reply(&world, "again", approve(&questions));
    assert_finishes(other.body(again).await).await;
}

#[tokio::test]
async fn a_run_that_was_taken_up_and_comes_to_nothing_is_left_for_the_next() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    died_with_replies(&world, &store).await;
    let take_up = async || abandoned(&store, &world.environment(), 1).await.unwrap();
    let other = Process::other(&store);
    store.fail("save");
    let request = take_up().await.remove(0);
    let (_, error) = assert_fails(other.body(request).await).await;
    is(&error, ErrorKind::Server, "store_failed");
    store.heal();

    let request = take_up().await.remove(0);
    drop(other.body(request).await);
    settle().await;

    let request = take_up().await.remove(0);
    let (_, finish) = assert_finishes(other.body(request).await).await;
    assert_eq!(
        (finish.outcome, other.tools.done()),
        (Outcome::Completed, 1)
    );
    assert!(take_up().await.is_empty());
}

#[tokio::test]
async fn a_run_that_was_taken_up_is_over_only_if_the_error_is_its_own() {
    use ErrorKind::*;
    let own = [
        InvalidRequest,
        ContextWindow,
        ContentFilter,
        TooLarge,
        Tool,
        Conflict,
    ];
    let others = [
        Configuration,
        Authentication,
        Permission,
        NotFound,
        Quota,
        RateLimited,
        Overloaded,
        Server,
        Timeout,
        Connection,
        Truncated,
        Protocol,
        Cancelled,
        Other,
    ];
    for kind in own.into_iter().chain(others) {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        died_with_replies(&world, &store).await;
        let left = async || abandoned(&store, &world.environment(), 1).await.unwrap();
        let agent = service_fn(move |_: ChatRequest| async move {
            Err::<ChatResponse<EventStream>, _>(Error::new(kind, "no").with_code("E7"))
        });
        let layer = SuspendLayer::new(Arc::new(store.clone()));
        let request = left().await.remove(0);
        let error = layer.layer(agent).oneshot(request).await.unwrap_err();
        is(&error, kind, "E7");
        let expected = match own.contains(&kind) {
            true => (RunStatus::Ended, 0),
            false => (RunStatus::Running, 1),
        };
        let now = (status(&store, "run").await, left().await.len());
        assert_eq!(now, expected, "{kind}");
    }
}

#[tokio::test]
async fn a_run_that_a_deployment_lacks_something_for_goes_on_once_that_is_mended() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    died_with_replies(&world, &store).await;
    let left = async || abandoned(&store, &world.environment(), 1).await.unwrap();
    let other = Process::other(&store);
    let without_a_key = service_fn(|_: ChatRequest| async {
        let error = Error::new(ErrorKind::Configuration, "no key");
        Err::<ChatResponse<EventStream>, _>(error)
    });
    let layer = SuspendLayer::new(Arc::new(store.clone()));
    let request = left().await.remove(0);
    let error = layer
        .layer(without_a_key)
        .oneshot(request)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);

    let body = other.body(left().await.remove(0)).await;
    let (_, finish) = assert_finishes(body).await;
    assert_eq!(finish.outcome, Outcome::Completed);
    assert_eq!(other.tools.done(), 1);
}

// ---- a state that no attempt can write ----

/// Nobody takes the run up again.
async fn is_over(world: &TestEnvironment, store: &Flaky) {
    assert_eq!(status(store, "run").await, RunStatus::Ended);
    world.advance(LEASE);
    let left = abandoned(store, &world.environment(), 9).await.unwrap();
    assert!(left.is_empty());
}

#[tokio::test]
async fn a_run_that_cannot_be_written_down_is_not_begun() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    store.refuse("begin");
    let process = Process::new(&store, ScriptedTools::new().answers("pay", "paid"), payer());
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert!(!error.is_retryable());
    assert!(process.tools.calls().is_empty());
    assert!(is_unknown(&store, "run"));
}

#[tokio::test]
async fn a_question_that_no_attempt_can_write_down_ends_the_run() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    store.refuse("suspend");
    let process = Process::paying(&store);
    let (events, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert!(!events.iter().any(Event::is_finish));
    is_over(&world, &store).await;
}

#[tokio::test]
async fn a_run_that_was_taken_up_and_that_no_attempt_can_write_down_is_over() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    died_with_replies(&world, &store).await;
    store.refuse("save");
    let left = abandoned(&store, &world.environment(), 1).await.unwrap();
    let other = Process::other(&store);
    let body = other.body(left.into_iter().next().unwrap()).await;
    let (_, error) = assert_fails(body).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert!(other.tools.calls().is_empty());
    is_over(&world, &store).await;
}

#[tokio::test]
async fn a_run_that_has_grown_too_large_to_be_written_down_is_over() {
    let (world, mut store) = (TestEnvironment::new(), Flaky::default());
    let inner = MemoryStore::with_options(Options::new().max_state_bytes(10_000));
    store.inner = Inner(Arc::new(inner));
    let tools = ScriptedTools::new().answers("pay", "x".repeat(10_000));
    let model = ScriptedModel::new().tool_call("pay", json!({})).repeat();
    let process = Process::new(&store, tools, model);
    let (_, error) = assert_fails(process.body(request(&world, "run")).await).await;
    is(&error, ErrorKind::TooLarge, "unwritable");
    assert_eq!(process.tools.done(), 1);
    is_over(&world, &store).await;
}

// ---- where it stands ----

#[tokio::test]
async fn inside_another_loop_it_is_refused() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let tools = ScriptedTools::new().answers("pay", "paid");
    let inner = Process::new(&store, tools, payer());
    let outer = AgentLayer::new(concentric_core::NoTools);
    let agent = ServiceBuilder::new()
        .layer(outer)
        .service(inner.agent.clone());
    let error = match agent.oneshot(request(&world, "run")).await {
        Ok(response) => assert_fails(response.body).await.1,
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("SuspendLayer") && said.contains("AgentLayer"),
        "{said}"
    );
    assert_eq!((inner.tools.done(), inner.store.writes()), (0, 0));
}

#[tokio::test]
async fn around_itself_it_is_refused() {
    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let tools = ScriptedTools::new().asks("pay", "paid");
    let model = payer();
    let layer = || SuspendLayer::new(Arc::new(store.clone()));
    let agent = ServiceBuilder::new()
        .layer(layer())
        .layer(layer())
        .layer(AgentLayer::new(tools))
        .service(model.clone());
    let error = agent.oneshot(request(&world, "run")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    let said = error.to_string();
    assert_eq!(said.matches("SuspendLayer").count(), 2, "{said}");
    assert!(model.requests().is_empty());
}

#[tokio::test]
async fn a_model_beside_an_agent_is_called_and_not_stored() {
    for pace in Pace::ALL {
        let (world, store) = (TestEnvironment::new(), Flaky::default());
        let tools = ScriptedTools::new().paced(pace).asks("pay", "paid");
        let agent = AgentLayer::new(tools.clone()).layer(payer().paced(pace));
        let agent = BoxModel::new(agent);
        let model = ScriptedModel::new().paced(pace).text("Hello.");
        let small_talk = BoxModel::new(model);
        let router = service_fn(move |request: ChatRequest| {
            let to = match request.context.run_id().as_str() {
                "talk" => &small_talk,
                _ => &agent,
            };
            to.clone().oneshot(request)
        });
        let stored = SuspendLayer::new(Arc::new(store.clone())).layer(router);

        let answer = stored.clone().oneshot(request(&world, "talk")).await;
        assert_eq!(answer.unwrap().text().await.unwrap(), "Hello.");
        assert_eq!(store.writes(), 0);

        let asked = stored.clone().oneshot(request(&world, "run")).await;
        let (_, finish) = assert_finishes(asked.unwrap().body).await;
        let questions = finish.interrupts();
        let replies = questions.iter().map(|it| Reply::approve(it.id.clone()));
        let replied = stored.oneshot(reply(&world, "next", replies.collect()));
        let (_, finish) = assert_finishes(replied.await.unwrap().body).await;
        assert_eq!(finish.outcome, Outcome::Completed);
        assert_eq!(tools.done(), 1);
    }
}

#[cfg(feature = "detach")]
#[tokio::test]
async fn around_detach_it_is_refused() {
    use concentric_layers::DetachLayer;

    let (world, store) = (TestEnvironment::new(), Flaky::default());
    let model = payer();
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store)))
        .layer(DetachLayer::new())
        .layer(AgentLayer::new(ScriptedTools::new().asks("pay", "paid")))
        .service(model.clone());
    let error = agent.oneshot(request(&world, "run")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("SuspendLayer") && said.contains("DetachLayer"),
        "{said}"
    );
    assert!(model.requests().is_empty());
}
