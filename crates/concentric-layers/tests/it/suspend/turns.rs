//! The turns of runs in conversations of the same store.

use super::*;
use concentric_core::{
    CallId, ToolCallPart,
    store::{StoredThread, ThreadChange, ThreadStore, ThreadSummary},
};
use concentric_layers::ConversationLayer;
use concentric_tools::{Tool, Toolset};
use futures_util::FutureExt;
use std::future;
use tower::{BoxError, Service};

fn process(
    store: &Flaky,
    threads: &(impl ThreadStore + Clone),
    counted: &Arc<AtomicUsize>,
    model: BoxModel,
) -> BoxModel {
    let counted = Arc::clone(counted);
    let spec = ToolSpec::new("count", "", json!({"type": "object"}));
    let count = service_fn(move |_: ToolCall| {
        counted.fetch_add(1, Ordering::Relaxed);
        future::ready(Ok::<_, BoxError>(ToolOutcome::done("counted")))
    });
    let tools = Toolset::new().tool(Tool::new(spec, count).read_only());
    let agent = ServiceBuilder::new()
        .layer(SuspendLayer::new(Arc::new(store.clone())).lease(LEASE))
        .layer(ConversationLayer::new(threads.clone()).required())
        .layer(AgentLayer::new(tools))
        .service(model);
    BoxModel::new(agent)
}

/// Calls a tool, and answers with `text` after `wait`.
fn model(
    text: &'static str,
    wait: impl Future<Output = ()> + Clone + Send + Sync + 'static,
) -> BoxModel {
    BoxModel::new(service_fn(move |request: ChatRequest| {
        let wait = wait.clone();
        async move {
            let last = request.transcript.last().unwrap().as_message().role;
            let (event, reason) = match last {
                Role::User => {
                    let call = ToolCallPart::new(CallId::new("c"), "count", "{}");
                    (Event::tool_call(call), FinishReason::ToolCalls)
                }
                _ => {
                    wait.await;
                    (Event::text(text), FinishReason::Stop)
                }
            };
            let events = [event, Event::finish(reason, Usage::new(1, 1))];
            Ok::<_, Error>(ChatResponse::new(stream::iter(events.map(Ok))))
        }
    }))
}

async fn texts(threads: &MemoryStore) -> Vec<String> {
    let thread = threads.load(Tenant::default(), ThreadId::new("thread"));
    let history = thread.await.unwrap().unwrap_or_default().history;
    let texts = history.iter().map(|turn| turn.as_message().text());
    texts.collect()
}

/// How the first process loses its run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    /// It answers after another one has claimed the run.
    Answers,
    /// It finds that another one has claimed the run.
    Waits,
    /// It does not reach the store.
    IsCutOff,
}

#[tokio::test]
async fn the_turn_of_a_run_is_that_of_its_last_owner() {
    for lost in [Lost::Answers, Lost::Waits, Lost::IsCutOff] {
        let world = TestEnvironment::new();
        let threads = MemoryStore::with_options(options(&world));
        let store = Flaky::with(threads.clone());
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let wait = wait.map(drop).shared();
        let counted = Arc::new(AtomicUsize::new(0));
        let agent = process(&store, &threads, &counted, model("Late.", wait));
        let request = request(&world, "run");
        let first = async move { Ok::<_, Error>(agent.oneshot(request).await?.collect().await?) };
        let first = tokio::spawn(first);
        while counted.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        settle().await;
        if lost == Lost::IsCutOff {
            store.fail("renew");
            for _ in 0..9 {
                world.advance(LEASE / 10);
                settle().await;
            }
            assert!(first.is_finished());
            store.heal();
            world.advance(LEASE / 10);
        } else {
            world.advance(LEASE);
        }
        // Before the first process has noticed.
        let mut left = abandoned(&store, &world, 9).await.unwrap();
        let request = left.pop().unwrap();
        if lost == Lost::Answers {
            go.send(()).unwrap();
        }
        let error = first.await.unwrap().unwrap_err();
        let code = match lost {
            Lost::IsCutOff => "store_failed",
            _ => "stale_claim",
        };
        assert_eq!(error.code(), Some(code), "{lost:?}: {error:?}");
        settle().await;
        assert_eq!(texts(&threads).await, [""; 0], "{lost:?}");

        let agent = process(
            &store,
            &threads,
            &counted,
            model("Done.", future::ready(())),
        );
        let answer = agent.oneshot(request).await.unwrap().collect().await;
        assert_eq!(answer.unwrap().text(), "Done.");
        let expected = ["Pay them.", "", "Done."];
        assert_eq!(texts(&threads).await, expected, "{lost:?}");
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
        let completed = Some(Ok(Outcome::Completed));
        assert_eq!(outcome(&store, "run").await, completed);
    }
}

/// A process that dies after the turn is stored leaves no run to resume.
#[tokio::test]
async fn a_run_ends_with_its_turn() {
    let (world, threads) = (TestEnvironment::new(), MemoryStore::new());
    let store = Flaky::with(threads.clone());
    store.stalls.lock().unwrap().push("end");
    let agent = process(
        &store,
        &threads,
        &Arc::default(),
        model("Done.", future::ready(())),
    );
    let mut body = agent.oneshot(request(&world, "run")).await.unwrap().body;
    while texts(&threads).await.is_empty() {
        tokio::select! {
            item = body.next() => assert!(!item.unwrap().unwrap().is_finish()),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
    let completed = Some(Ok(Outcome::Completed));
    assert_eq!(outcome(&store, "run").await, completed);
}

/// A store that fails to append turns while it is told to.
#[derive(Clone)]
struct Threads {
    inner: MemoryStore,
    fails: Arc<AtomicBool>,
}

impl ThreadStore for Threads {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        self.inner.load(tenant, thread)
    }

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        self.inner.turns(tenant, thread, start, limit)
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        match self.fails.load(Ordering::Relaxed) {
            true => Box::pin(async { Err(StoreError::failed("the connection was lost")) }),
            false => self.inner.append(tenant, thread, version, change),
        }
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        self.inner.fork(tenant, thread, version, to, change)
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        self.inner.list_threads(tenant, before, limit)
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        ThreadStore::delete(&self.inner, tenant, thread)
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        self.inner.delete_tenant(tenant)
    }
}

#[tokio::test]
async fn a_run_whose_turn_is_not_stored_is_resumed() {
    // The run fails because of its turn, or its turn is not stored when it has failed.
    for is_down in [false, true] {
        let world = TestEnvironment::new();
        let inner = MemoryStore::with_options(options(&world));
        let store = Flaky::with(inner.clone());
        let threads = Threads {
            inner: inner.clone(),
            fails: Arc::new(AtomicBool::new(true)),
        };
        let counted = Arc::new(AtomicUsize::new(0));
        let down = service_fn(move |request: ChatRequest| {
            let mut ready = model("Done.", future::ready(()));
            let is_down = is_down && request.transcript.len() > 1;
            async move {
                match is_down {
                    true => Err(Error::new(ErrorKind::Server, "the model is down")),
                    false => ready.ready().await?.call(request).await,
                }
            }
        });
        let agent = process(&store, &threads, &counted, BoxModel::new(down));
        let body = agent.oneshot(request(&world, "run")).await.unwrap().body;
        let (_, error) = assert_fails(body).await;
        let code = (!is_down).then_some("store_failed");
        assert_eq!(error.code(), code, "{error:?}");
        // At once, since the claim was given up.
        let mut left = abandoned(&store, &world, 9).await.unwrap();
        threads.fails.store(false, Ordering::Relaxed);
        let agent = process(
            &store,
            &threads,
            &counted,
            model("Done.", future::ready(())),
        );
        let answer = agent
            .oneshot(left.pop().unwrap())
            .await
            .unwrap()
            .collect()
            .await;
        assert_eq!(answer.unwrap().text(), "Done.");
        assert_eq!(texts(&inner).await, ["Pay them.", "", "Done."]);
        assert_eq!(status(&store, "run").await, RunStatus::Ended);
    }
}

/// The store may have accepted it, and another process then continues it.
#[tokio::test]
async fn a_run_that_is_not_accepted_stores_no_turn() {
    let world = TestEnvironment::new();
    let threads = MemoryStore::with_options(options(&world));
    let store = Flaky::with(threads.clone());
    store.fail("begin");
    let agent = process(
        &store,
        &threads,
        &Arc::default(),
        model("Done.", future::ready(())),
    );
    let body = agent.oneshot(request(&world, "run")).await.unwrap().body;
    let (_, error) = assert_fails(body).await;
    assert_eq!(error.code(), Some("store_failed"), "{error:?}");
    settle().await;
    assert_eq!(texts(&threads).await, [""; 0]);
}

/// Another process continues it.
#[tokio::test]
async fn a_run_whose_state_is_not_stored_stores_its_turn_when_it_is_resumed() {
    let world = TestEnvironment::new();
    let threads = MemoryStore::with_options(options(&world));
    let store = Flaky::with(threads.clone());
    let counted = Arc::new(AtomicUsize::new(0));
    let counts = service_fn(|request: ChatRequest| async move {
        let id = CallId::new(format!("c{}", request.transcript.len()));
        let call = ToolCallPart::new(id, "count", "{}");
        let finish = Event::finish(FinishReason::ToolCalls, Usage::new(1, 1));
        let events = [Event::tool_call(call), finish];
        Ok::<_, Error>(ChatResponse::new(stream::iter(events.map(Ok))))
    });
    let agent = process(&store, &threads, &counted, BoxModel::new(counts));
    store.fail("save");
    let body = agent.oneshot(request(&world, "run")).await.unwrap().body;
    let (_, error) = assert_fails(body).await;
    assert_eq!(error.code(), Some("store_failed"), "{error:?}");
    settle().await;
    assert_eq!(counted.load(Ordering::Relaxed), 1);
    assert_eq!(texts(&threads).await, [""; 0]);
    store.heal();

    let mut left = abandoned(&store, &world, 9).await.unwrap();
    let agent = process(
        &store,
        &threads,
        &counted,
        model("Done.", future::ready(())),
    );
    let answer = agent.oneshot(left.pop().unwrap()).await.unwrap();
    assert_eq!(answer.collect().await.unwrap().text(), "Done.");
    assert_eq!(texts(&threads).await, ["Pay them.", "", "Done."]);
    assert_eq!(status(&store, "run").await, RunStatus::Ended);
}

#[tokio::test]
async fn the_turn_of_a_dropped_run_waits_until_the_run_is_stored() {
    let world = TestEnvironment::new();
    let threads = MemoryStore::with_options(options(&world));
    let store = Flaky::with(threads.clone());
    let counted = Arc::new(AtomicUsize::new(0));
    let agent = process(
        &store,
        &threads,
        &counted,
        model("Done.", future::ready(())),
    );
    let mut body = agent.oneshot(request(&world, "run")).await.unwrap().body;
    let gate = Gate::new();
    store.gate.lock().unwrap().replace(gate.clone());
    store.elsewhere.store(true, Ordering::Relaxed);
    while store.writes() == 0 {
        let _ = body.next().now_or_never();
        tokio::task::yield_now().await;
    }
    // Its client disconnects while the run is being stored.
    drop(body);
    settle().await;
    assert_eq!(texts(&threads).await, [""; 0]);
    gate.open();
    settle().await;
    // The turn and the end of the run are one write: it is not resumed, to store its turn again.
    assert_eq!(texts(&threads).await[0], "Pay them.");
    world.advance(LEASE);
    assert_eq!(abandoned(&store, &world, 9).await.unwrap().len(), 0);
    assert_eq!(counted.load(Ordering::Relaxed), 0);
}

/// The message of the user has no id.
#[tokio::test]
async fn a_turn_after_that_of_another_run_is_appended_once() {
    let world = TestEnvironment::new();
    let threads = MemoryStore::with_options(options(&world));
    let store = Flaky::with(threads.clone());
    let counted = Arc::new(AtomicUsize::new(0));
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let wait = wait.map(drop).shared();
    let agent = process(&store, &threads, &counted, model("Done.", wait));
    let begun = agent.oneshot(request(&world, "run")).await.unwrap();
    let first = tokio::spawn(begun.collect());
    while counted.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    settle().await;
    // Another run ends before.
    let other = ConversationLayer::new(threads.clone());
    let other =
        other.layer(AgentLayer::new(Toolset::new()).layer(ScriptedModel::new().text("Hi.")));
    let mut talk = request(&world, "other");
    talk.transcript = Transcript::new();
    talk.transcript.push_user("Hello.");
    other.oneshot(talk).await.unwrap().collect().await.unwrap();
    // The process has appended its turn as one that waits, and dies.
    let change = |history: &Transcript| {
        let mut change = ThreadChange::default();
        change.keep = history.len();
        change.turns = vec![concentric_core::Turn::user("Pay them.")];
        change
    };
    let load = || threads.load(Tenant::default(), ThreadId::new("thread"));
    let found = load().await.unwrap().unwrap();
    let change = change(&found.history);
    let append = threads.append(
        Tenant::default(),
        ThreadId::new("thread"),
        found.version,
        change,
    );
    append.await.unwrap();
    store.dead.store(true, Ordering::Relaxed);
    first.abort();
    drop(go);
    world.advance(LEASE);
    let store = Flaky::with(threads.clone());
    for request in abandoned(&store, &world, 9).await.unwrap() {
        let agent = process(
            &store,
            &threads,
            &counted,
            model("Done.", future::ready(())),
        );
        agent
            .oneshot(request)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
    }
    let texts = texts(&threads).await;
    let messages = texts.iter().filter(|text| *text == "Pay them.");
    assert_eq!(
        (messages.count(), texts.last().unwrap().as_str()),
        (1, "Done."),
        "{texts:?}"
    );
}
