//! Clients that hang up after they replied about a call, with runs that are kept in a SQLite file.

use concentric_core::{
    AgentLayer, Answer, BoxModel, CallId, ChatRequest, ChatResponse, Context, Error, Event,
    FinishReason, InterruptId, Reply, RunId, Str, ThreadId, ToolCallPart, ToolOutcome, Turn, Usage,
    store::{
        Decisions, EffectKey, Intent, Ledger, LedgerEntry, RunStatus, RunStore, StoreFuture,
        StoredDecision, Tenant,
    },
};
use concentric_layers::SuspendLayer;
use concentric_store::SqliteStore;
use concentric_tools::{Approval, NoArguments, Toolset, tool};
use futures_util::stream;
use serde_json::json;
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use tokio::{sync::Notify, task::yield_now, time::timeout};
use tower::{Layer, ServiceExt, service_fn};

const LONG: Duration = Duration::from_secs(60);

/// A store, and what was paid.
struct Scene {
    store: SqliteStore,
    paid: Arc<AtomicUsize>,
    _dir: TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: SqliteStore::open(dir.path().join("runs.db")).unwrap(),
            paid: Arc::default(),
            _dir: dir,
        }
    }

    fn paid(&self) -> usize {
        self.paid.load(Ordering::SeqCst)
    }

    /// An agent that pays once that is approved, and then says so.
    fn agent(&self, ledger: impl Ledger, decisions: impl Decisions) -> BoxModel {
        let paid = Arc::clone(&self.paid);
        let pay = tool("pay", "Pays.", move |NoArguments {}| {
            paid.fetch_add(1, Ordering::SeqCst);
            async { "paid" }
        });
        let tools = Toolset::new()
            .tool(pay)
            .gate(Approval::for_tools(["pay"]).remember(decisions))
            .ledger(ledger);
        let model = service_fn(async |request: ChatRequest| {
            let event = match request.transcript.last().map(Turn::results) {
                Some([_, ..]) => Event::text("Done."),
                _ => Event::tool_call(ToolCallPart::new(CallId::new("call_1"), "pay", "{}")),
            };
            let finish = Event::finish(FinishReason::Stop, Usage::new(1, 1));
            Ok::<_, Error>(ChatResponse::new(stream::iter([Ok(event), Ok(finish)])))
        });
        let suspend = SuspendLayer::new(Arc::new(self.store.clone()));
        BoxModel::new(suspend.layer(AgentLayer::new(tools).layer(model)))
    }

    /// The agent with the store as it is.
    fn plain(&self) -> BoxModel {
        self.agent(self.store.clone(), self.store.clone())
    }

    /// Runs until the call waits for approval, or to its end.
    async fn start(&self) -> Option<InterruptId> {
        let request = ChatRequest::user("Pay.").with_context(context());
        question(&answer(self.plain(), request).await.unwrap())
    }

    /// Runs until the call waits for approval.
    async fn asked(&self) -> InterruptId {
        self.start().await.unwrap()
    }

    /// The remembered decisions: whether each allows its calls.
    async fn remembered(&self) -> Vec<bool> {
        let decisions = self.store.list(Tenant::default()).await.unwrap();
        decisions.iter().map(|decision| decision.allow).collect()
    }

    /// Waits until no process drives the run; whether it waits for replies.
    async fn waits(&self) -> bool {
        timeout(LONG, async {
            loop {
                let thread = ThreadId::new("t");
                let runs = self
                    .store
                    .list_by_thread(Tenant::default(), thread, None, 2);
                match runs.await.unwrap().first().map(|run| run.status) {
                    Some(RunStatus::Running) => yield_now().await,
                    status => return status == Some(RunStatus::Suspended),
                }
            }
        })
        .await
        .unwrap()
    }

    /// Replies again about the call, of which nothing has begun.
    async fn replied_again(&self, reply: &Reply) -> Answer {
        assert_eq!(self.paid(), 0);
        let agent = self.plain();
        let again = timeout(LONG, async {
            loop {
                match answer(agent.clone(), replying(reply.clone())).await {
                    // What became of the first claim is still being recorded.
                    Err(error) if error.code() == Some("already_resumed") => {}
                    again => return again,
                }
            }
        });
        again.await.unwrap().unwrap()
    }
}

fn context() -> Context {
    Context::builder().thread_id(ThreadId::new("t")).build()
}

fn replying(reply: Reply) -> ChatRequest {
    ChatRequest::replying(vec![reply]).with_context(context())
}

fn approve(question: &InterruptId) -> Reply {
    Reply::approve(question.clone())
}

/// A reply that holds for all calls with these arguments.
fn remember(question: &InterruptId, approved: bool) -> Reply {
    let remember = json!({"what": "arguments", "for": "always"});
    let payload = json!({"approved": approved, "remember": remember});
    Reply::resolve(question.clone(), payload)
}

async fn answer(agent: BoxModel, request: ChatRequest) -> Result<Answer, Error> {
    Ok(agent.oneshot(request).await?.collect().await?)
}

fn question(answer: &Answer) -> Option<InterruptId> {
    answer
        .finish
        .interrupts()
        .first()
        .map(|asked| asked.id.clone())
}

/// When a record of the ledger is held up.
#[derive(Clone, Copy, Debug)]
enum HeldUp {
    Before,
    After,
}

/// A ledger that never resolves the beginning of an effect, and notifies that it has come to it.
struct Held {
    inner: SqliteStore,
    held_up: HeldUp,
    reached: Arc<Notify>,
    resolves: Arc<Notify>,
}

impl Ledger for Held {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        let (inner, held_up) = (self.inner.clone(), self.held_up);
        let (reached, resolves) = (Arc::clone(&self.reached), Arc::clone(&self.resolves));
        Box::pin(async move {
            match held_up {
                HeldUp::Before => {
                    reached.notify_one();
                    pending().await
                }
                HeldUp::After => {
                    let begun = Ledger::begin(&inner, key, intent).await;
                    reached.notify_one();
                    resolves.notified().await;
                    begun
                }
            }
        })
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.inner.finish(key, outcome)
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        self.inner.known(key)
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        let (inner, reached) = (self.inner.clone(), Arc::clone(&self.reached));
        Box::pin(async move {
            let retracted = inner.retract(key).await;
            reached.notify_one();
            retracted
        })
    }
}

#[tokio::test]
async fn an_approval_is_not_lost_before_its_call_begins() {
    for held_up in [HeldUp::Before, HeldUp::After] {
        let scene = Scene::new();
        let question = scene.asked().await;
        let (reached, resolves) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let ledger = Held {
            inner: scene.store.clone(),
            held_up,
            reached: Arc::clone(&reached),
            resolves: Arc::clone(&resolves),
        };
        let agent = scene.agent(ledger, scene.store.clone());
        let run = tokio::spawn(answer(agent, replying(approve(&question))));
        timeout(LONG, reached.notified()).await.unwrap();
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        assert!(scene.waits().await, "{held_up:?}");
        if let HeldUp::After = held_up {
            // The record that was made after all is retracted.
            resolves.notify_one();
            timeout(LONG, reached.notified()).await.unwrap();
        }
        let again = scene.replied_again(&approve(&question)).await;
        assert_eq!((again.text().as_str(), scene.paid()), ("Done.", 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_at_any_time_loses_no_approval() {
    let (mut waited, mut ended) = (0, 0);
    for at in 0..60 {
        let scene = Scene::new();
        let question = scene.asked().await;
        let run = answer(scene.plain(), replying(approve(&question)));
        // Later each time, until the run has ended by then.
        drop(timeout(Duration::from_micros(150 * at), run).await);
        if !scene.waits().await {
            assert_eq!(scene.paid(), 1, "{at}");
            ended += 1;
            continue;
        }
        let again = scene.replied_again(&approve(&question)).await;
        match self::question(&again) {
            None => assert_eq!((again.text().as_str(), scene.paid()), ("Done.", 1)),
            // The record of the call was not retracted yet, so a person is asked what it did.
            Some(_) => assert_eq!(scene.paid(), 0),
        }
        waited += 1;
    }
    println!("{waited} runs waited again, {ended} had begun");
}

/// When a store of decisions is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    BeforeWrite,
    DuringWrite,
    AfterWrite,
    /// Never: it only yields before and after each write.
    Never,
}

/// A store of decisions that never resolves from its stage on, and notifies that it has come to it.
struct HeldDecisions {
    inner: SqliteStore,
    stage: Stage,
    reached: Arc<Notify>,
    resolves: Arc<Notify>,
}

impl Decisions for HeldDecisions {
    fn remember(&self, decision: StoredDecision) -> StoreFuture<()> {
        let (inner, stage) = (self.inner.clone(), self.stage);
        let (reached, resolves) = (Arc::clone(&self.reached), Arc::clone(&self.resolves));
        Box::pin(async move {
            yield_now().await;
            if stage == Stage::DuringWrite {
                // The write takes place although its future is dropped.
                reached.notify_one();
                tokio::spawn(async move {
                    resolves.notified().await;
                    inner.remember(decision).await.unwrap();
                    reached.notify_one();
                });
                return pending().await;
            }
            inner.remember(decision).await?;
            yield_now().await;
            if stage == Stage::AfterWrite {
                reached.notify_one();
                pending::<()>().await;
            }
            Ok(())
        })
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
        session: Option<ThreadId>,
    ) -> StoreFuture<Vec<StoredDecision>> {
        if self.stage == Stage::BeforeWrite {
            self.reached.notify_one();
            return Box::pin(pending());
        }
        self.inner.recall(tenant, tool, run, thread, session)
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<StoredDecision>> {
        self.inner.list(tenant)
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        self.inner.revoke(tenant, id)
    }
}

impl Scene {
    /// Replies the opposite to a question that waits again: nothing else may hold.
    async fn contradict(&self, question: &InterruptId, approved: bool) {
        assert!(self.remembered().await.is_empty());
        let opposite = Reply::resolve(question.clone(), json!({"approved": !approved}));
        let again = self.replied_again(&opposite).await;
        assert_eq!(
            (again.text().as_str(), self.paid()),
            ("Done.", usize::from(!approved))
        );
        assert!(self.remembered().await.is_empty());
        assert!(self.start().await.is_some(), "the next call is asked about");
    }
}

#[tokio::test]
async fn a_reply_that_is_remembered_is_not_given_back() {
    let stages = [Stage::BeforeWrite, Stage::DuringWrite, Stage::AfterWrite];
    for (stage, approved) in stages.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let scene = Scene::new();
        let question = scene.asked().await;
        let (reached, resolves) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let decisions = HeldDecisions {
            inner: scene.store.clone(),
            stage,
            reached: Arc::clone(&reached),
            resolves: Arc::clone(&resolves),
        };
        let agent = scene.agent(scene.store.clone(), decisions);
        let reply = remember(&question, approved);
        let run = tokio::spawn(answer(agent, replying(reply.clone())));
        timeout(LONG, reached.notified()).await.unwrap();
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        if scene.waits().await {
            assert_eq!(stage, Stage::BeforeWrite, "{approved}");
            scene.contradict(&question, approved).await;
            continue;
        }
        assert_ne!(stage, Stage::BeforeWrite, "{approved}");
        if stage == Stage::DuringWrite {
            resolves.notify_one();
            timeout(LONG, reached.notified()).await.unwrap();
        }
        // The reply counts: nobody can reply otherwise, and it holds for the next call.
        let again = answer(scene.plain(), replying(reply)).await;
        assert_eq!(again.unwrap_err().code(), Some("run_ended"));
        assert_eq!(
            (scene.remembered().await, scene.paid()),
            (vec![approved], 0)
        );
        assert_eq!(scene.start().await, None);
        assert_eq!(scene.paid(), usize::from(approved));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_given_back_leaves_no_decision() {
    let (mut waited, mut ended) = (0, 0);
    for (at, approved) in (0..60).flat_map(|at| [(at, true), (at, false)]) {
        let scene = Scene::new();
        let question = scene.asked().await;
        let decisions = HeldDecisions {
            inner: scene.store.clone(),
            stage: Stage::Never,
            reached: Arc::default(),
            resolves: Arc::default(),
        };
        let agent = scene.agent(scene.store.clone(), decisions);
        let run = answer(agent, replying(remember(&question, approved)));
        // Later each time, until the run has ended by then.
        drop(timeout(Duration::from_micros(150 * at), run).await);
        if scene.waits().await {
            scene.contradict(&question, approved).await;
            waited += 1;
        } else {
            ended += 1;
        }
    }
    println!("{waited} runs waited again, {ended} had counted");
}
