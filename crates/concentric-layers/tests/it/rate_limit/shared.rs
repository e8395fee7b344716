//! Quotas that layers of several processes share: each layer value acts as a process.

use super::{Duration, SECOND, answers, call, full, second};
use concentric_core::{
    ChatRequest, Error, ErrorKind, Str, Usage,
    store::{
        Quota, QuotaChange, QuotaStore, QuotaTaken, QuotaWant, StoreError, StoreFuture, Tenant,
    },
};
use concentric_layers::{OnOutage, RateLimitLayer, Shared, rate_limit::RATE_LIMITED};
use concentric_store::{MemoryStore, Options};
use concentric_test::{ScriptedModel, TestEnvironment};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tower::{Layer, ServiceExt};

/// A store that may be out, not answer, or panic once, and the numbers of its requests and of their changes.
struct Store {
    inner: MemoryStore,
    is_out: AtomicBool,
    hangs: AtomicBool,
    panics: AtomicBool,
    changes: AtomicUsize,
    requests: AtomicUsize,
}

impl Store {
    fn new(env: &TestEnvironment) -> Arc<Self> {
        let options = Options::new().clock(env.clock().clone());
        Arc::new(Self {
            inner: MemoryStore::with_options(options),
            is_out: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            changes: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        })
    }

    fn or_out<T: Send + 'static>(&self, future: StoreFuture<T>) -> StoreFuture<T> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a panic");
        if self.hangs.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        match self.is_out.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(StoreError::failed("out")) }),
            false => future,
        }
    }
}

impl QuotaStore for Store {
    fn take(
        &self,
        bucket: Str,
        quota: Quota,
        caller: Str,
        wants: Vec<QuotaWant>,
        ahead: [u64; 3],
    ) -> StoreFuture<QuotaTaken> {
        self.or_out(self.inner.take(bucket, quota, caller, wants, ahead))
    }

    fn record(&self, bucket: Str, quota: Quota, changes: Vec<QuotaChange>) -> StoreFuture<()> {
        self.changes.fetch_add(changes.len(), Ordering::SeqCst);
        self.or_out(self.inner.record(bucket, quota, changes))
    }

    fn hold(
        &self,
        bucket: Str,
        max: u64,
        caller: (Str, u64),
        used: u64,
        wanted: u64,
        lease: Duration,
    ) -> StoreFuture<u64> {
        self.or_out(self.inner.hold(bucket, max, caller, used, wanted, lease))
    }
}

fn process(store: &Arc<Store>, quota: Quota) -> RateLimitLayer {
    let shared = Shared::new(Arc::clone(store) as Arc<dyn QuotaStore>, "key").batch(Duration::ZERO);
    RateLimitLayer::new(quota).shared(shared)
}

/// Lets the tasks of the layers do what they can.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// The number of calls of a process that begin without a wait, of so many.
async fn begun(layer: &RateLimitLayer, env: &TestEnvironment, calls: usize) -> usize {
    let layer = layer.clone().wait(Duration::ZERO);
    let mut begun = 0;
    for _ in 0..calls {
        begun += usize::from(call(&layer, &answers(), env.request("four")).await.is_ok());
    }
    begun
}

fn of(env: &TestEnvironment, tenant: &'static str) -> ChatRequest {
    let mut request = env.request("hi");
    request
        .context
        .extensions_mut()
        .insert(Tenant(tenant.into()));
    request
}

#[tokio::test]
async fn processes_share_a_quota() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let [one, other] = [(); 2].map(|()| process(&store, second().requests(5)));
    assert_eq!(begun(&one, &env, 3).await, 3);
    assert_eq!(begun(&other, &env, 5).await, 2);
    env.advance(SECOND);
    assert_eq!(begun(&other, &env, 9).await, 5);
    assert_eq!(begun(&one, &env, 1).await, 0);
}

#[tokio::test]
async fn a_quota_without_a_queue_asks_the_store_first() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let layer = process(&store, Quota::per(SECOND).requests(3)).queue(0);
    assert_eq!(begun(&layer, &env, 4).await, 3);
}

#[tokio::test]
async fn a_key_is_not_the_name_of_another_quota() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let of = |name: &'static str, limit| {
        let shared = Shared::new(Arc::clone(&store) as Arc<dyn QuotaStore>, name);
        RateLimitLayer::new(Quota::per(SECOND).requests(limit)).shared(shared.batch(Duration::ZERO))
    };
    for key in ["", "b", "/b"] {
        let keyed = of("a", 3).by(move |_| key.into());
        assert_eq!(begun(&keyed, &env, 9).await, 3, "{key}");
    }
    assert_eq!(begun(&of("a", 5), &env, 9).await, 5);
    assert_eq!(begun(&of("a/b", 5), &env, 9).await, 5);
    assert_eq!(begun(&of("a/", 5).by(|_| "b".into()), &env, 9).await, 5);
}

#[tokio::test]
async fn a_call_waits_for_the_shared_quota() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let [one, other] = [(); 2].map(|()| process(&store, second().requests(2)));
    assert_eq!(begun(&one, &env, 2).await, 2);
    let model = answers();
    let request = env.request("hi");
    let waiting = tokio::spawn(async move { call(&other, &model, request).await });
    settle().await;
    assert!(!waiting.is_finished());
    env.advance(SECOND);
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_short_period_frees_calls_in_its_time() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let tenth = SECOND / 10;
    let layer = process(&store, Quota::per(tenth).requests(2));
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let (layer, request) = (layer.clone(), env.request("hi"));
            tokio::spawn(async move { call(&layer, &answers(), request).await })
        })
        .collect();
    for periods in 1..=5 {
        settle().await;
        let begun = calls.iter().filter(|it| it.is_finished()).count();
        assert_eq!(begun, 2 * periods);
        env.advance(tenth);
    }
}

#[tokio::test]
async fn a_rejected_call_of_one_process_stops_all() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let processes = [(); 4].map(|()| process(&store, second().requests(100)));
    let rejected = full().with_retry_after(3 * SECOND).with_status(429);
    let model = ScriptedModel::new().error(rejected);
    let error = call(&processes[0], &model, env.request("hi"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited);
    settle().await;
    for process in &processes {
        assert_eq!(begun(process, &env, 2).await, 0);
    }
    env.advance(3 * SECOND);
    // Half of the quota, and three tenths more.
    let mut all = 0;
    for process in &processes {
        all += begun(process, &env, 50).await;
    }
    assert_eq!(all, 80);
}

/// A tenant waits with many calls, and another one makes one; returns the number of calls that were served before it.
async fn served_before_a_single_call(layers: [RateLimitLayer; 2], env: &TestEnvironment) -> usize {
    let served: Arc<Mutex<Vec<Str>>> = Arc::default();
    let start = |layer: &RateLimitLayer, tenant: &'static str| {
        let (layer, served) = (layer.clone(), Arc::clone(&served));
        let request = of(env, tenant);
        tokio::spawn(async move {
            call(&layer, &answers(), request).await.unwrap();
            served.lock().unwrap().push(tenant.into());
        })
    };
    let mut calls: Vec<_> = (0..1_000).map(|n| start(&layers[n % 2], "many")).collect();
    settle().await;
    let before = served.lock().unwrap().len();
    calls.push(start(&layers[1], "one"));
    settle().await;
    for _ in 0..3_000 {
        if served.lock().unwrap().contains(&"one".into()) {
            break;
        }
        env.advance(Duration::from_millis(20));
        settle().await;
    }
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    let served = served.lock().unwrap();
    served.iter().position(|it| it == "one").unwrap() - before
}

#[tokio::test]
async fn many_calls_of_a_tenant_delay_another_by_a_turn() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let layers = [(); 2].map(|()| process(&store, second().requests(4)).wait(1_000 * SECOND));
    let before = served_before_a_single_call(layers, &env).await;
    // The turn of the other tenant, and those calls that begin at the same time.
    assert!(before <= 4, "{before}");
}

#[tokio::test]
async fn many_calls_of_a_tenant_delay_another_by_a_turn_in_one_process() {
    let env = TestEnvironment::new();
    let layer = RateLimitLayer::new(second().requests(4)).wait(1_000 * SECOND);
    let before = served_before_a_single_call([layer.clone(), layer], &env).await;
    assert!(before <= 4, "{before}");
}

#[tokio::test]
async fn unused_tokens_are_returned_to_all() {
    let env = TestEnvironment::new();
    let quota = Quota::per(60 * SECOND).output_tokens(100);
    let finishes = || ScriptedModel::new().text("hi").usage(Usage::new(1, 10));
    let not_connected = || {
        let error = Error::new(ErrorKind::Connection, "no connection").with_code("not_connected");
        ScriptedModel::new().error(error)
    };
    let is_dropped = true;
    for (model, is_dropped, left) in [
        (finishes(), !is_dropped, 90),
        (not_connected(), !is_dropped, 100),
        (finishes(), is_dropped, 20),
    ] {
        let store = Store::new(&env);
        let estimate = |request: &ChatRequest| {
            Usage::new(0, request.options.max_output_tokens.unwrap_or(80).into())
        };
        let [one, other] = [(); 2].map(|()| process(&store, quota).estimate(estimate));
        let answer = one.layer(model).oneshot(env.request("hi")).await;
        if let (Ok(answer), false) = (answer, is_dropped) {
            answer.collect().await.unwrap();
        }
        env.advance(Duration::from_millis(1));
        settle().await;
        let fits = async |tokens| {
            let mut request = env.request("hi");
            request.options_mut().max_output_tokens = Some(tokens);
            let other = other.clone().wait(Duration::ZERO);
            let response = other.layer(answers()).oneshot(request).await;
            response.is_ok()
        };
        assert!(!fits(left + 1).await, "{left}");
        assert!(fits(left).await, "{left}");
    }
}

#[tokio::test]
async fn a_dropped_call_that_waited_leaves_its_place() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let [one, other] = [(); 2].map(|()| process(&store, second().requests(1)));
    assert_eq!(begun(&one, &env, 1).await, 1);
    let (layer, request) = (one.clone(), env.request("hi"));
    let waiting = tokio::spawn(async move { call(&layer, &answers(), request).await });
    settle().await;
    waiting.abort();
    settle().await;
    // At the latest when it would ask again, and half a second more.
    env.advance(3 * SECOND);
    settle().await;
    assert_eq!(begun(&other, &env, 2).await, 1);
}

#[tokio::test]
async fn a_process_takes_ahead_and_returns_the_rest() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let batch = Duration::from_millis(200);
    let shared = || Shared::new(Arc::clone(&store) as Arc<dyn QuotaStore>, "key");
    let quota = Quota::per(60 * SECOND).requests(100);
    let layer = RateLimitLayer::new(quota).shared(shared().batch(batch));
    assert_eq!(begun(&layer, &env, 10).await, 10);
    env.advance(batch);
    settle().await;
    let before = store.requests.load(Ordering::SeqCst);
    // The first call takes as many as the last batch had.
    assert_eq!(begun(&layer, &env, 11).await, 11);
    assert_eq!(store.requests.load(Ordering::SeqCst), before + 1);
    env.advance(batch);
    settle().await;
    // It takes 21 ahead, and returns 20 of them.
    let other = RateLimitLayer::new(quota).shared(shared().batch(Duration::ZERO));
    assert_eq!(begun(&layer, &env, 1).await, 1);
    env.advance(batch);
    settle().await;
    env.advance(batch);
    settle().await;
    assert_eq!(begun(&other, &env, 100).await, 100 - 22);
}

#[tokio::test]
async fn a_policy_applies_while_the_store_is_out() {
    for (policy, expected) in [
        (OnOutage::LocalShare(0.25), 2),
        (OnOutage::Refuse, 0),
        (OnOutage::Allow, 50),
    ] {
        let env = TestEnvironment::new();
        let store = Store::new(&env);
        let shared =
            Shared::new(Arc::clone(&store) as Arc<dyn QuotaStore>, "key").on_outage(policy);
        let layer = RateLimitLayer::new(second().requests(8)).shared(shared.clone());
        assert_eq!(begun(&layer, &env, 8).await, 8);
        store.is_out.store(true, Ordering::SeqCst);
        env.advance(2 * SECOND);
        settle().await;
        let found = begun(&layer, &env, 50).await;
        assert_eq!(found, expected, "{policy:?}");
        assert_eq!(shared.outages(), 1, "{policy:?}");
        let error = call(
            &layer.clone().wait(Duration::ZERO),
            &answers(),
            env.request("hi"),
        )
        .await;
        if let Err(error) = error {
            assert_eq!(error.code(), Some(RATE_LIMITED), "{policy:?}");
            assert!(error.retry_after().is_some(), "{policy:?}");
        }
        store.is_out.store(false, Ordering::SeqCst);
        for _ in 0..3 {
            env.advance(SECOND);
            settle().await;
        }
        assert_eq!(begun(&layer, &env, 50).await, 8, "{policy:?}");
    }
}

#[tokio::test]
async fn an_attempt_to_reach_the_store_does_not_suspend_the_policy() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let shared = Shared::new(Arc::clone(&store) as Arc<dyn QuotaStore>, "key");
    let layer = RateLimitLayer::new(second().requests(8)).shared(shared);
    store.is_out.store(true, Ordering::SeqCst);
    let begins = async || {
        let (layer, request) = (layer.clone(), env.request("hi"));
        let call = tokio::spawn(async move { call(&layer, &answers(), request).await });
        settle().await;
        call.is_finished()
    };
    assert!(begins().await);
    store.hangs.store(true, Ordering::SeqCst);
    let before = store.requests.load(Ordering::SeqCst);
    env.advance(SECOND);
    settle().await;
    assert_eq!(store.requests.load(Ordering::SeqCst), before + 1);
    assert!(begins().await);
}

#[tokio::test]
async fn a_call_costs_one_request_if_only_requests_are_limited() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let layer = process(&store, second().requests(8));
    // Its usage is not its estimate.
    let model = ScriptedModel::new().text("hi").usage(Usage::new(900, 10));
    call(&layer, &model, env.request("hi")).await.unwrap();
    settle().await;
    env.advance(SECOND);
    settle().await;
    assert_eq!(store.requests.load(Ordering::SeqCst), 1);
}

/// A store that serves one call of one owner at a time, since others are served in other processes.
struct ServesFew;

impl QuotaStore for ServesFew {
    fn take(
        &self,
        _: Str,
        _: Quota,
        _: Str,
        wants: Vec<QuotaWant>,
        _: [u64; 3],
    ) -> StoreFuture<QuotaTaken> {
        let granted = wants.iter().map(|want| usize::from(want.owner == "few"));
        let taken = QuotaTaken::new(granted.collect(), false, Duration::from_millis(10));
        Box::pin(async { Ok(taken) })
    }

    fn record(&self, _: Str, _: Quota, _: Vec<QuotaChange>) -> StoreFuture<()> {
        Box::pin(async { Ok(()) })
    }

    fn hold(&self, _: Str, _: u64, _: (Str, u64), _: u64, _: u64, _: Duration) -> StoreFuture<u64> {
        Box::pin(async { Ok(0) })
    }
}

#[tokio::test]
async fn the_store_is_asked_for_each_owner_however_often_it_was_served() {
    let env = TestEnvironment::new();
    let shared = Shared::new(Arc::new(ServesFew), "key");
    let layer = RateLimitLayer::new(second().requests(100))
        .shared(shared)
        .wait(1_000 * SECOND);
    let start = |tenant| {
        let (layer, request) = (layer.clone(), of(&env, tenant));
        tokio::spawn(async move { call(&layer, &answers(), request).await })
    };
    let many: Vec<_> = (0..200).map(|_| start("many")).collect();
    for served in 0..300 {
        let few = start("few");
        settle().await;
        env.advance(Duration::from_millis(10));
        settle().await;
        assert!(few.is_finished(), "{served}");
    }
    many.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_store_that_has_panicked_is_asked_again() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let layer = process(&store, second().requests(8));
    store.panics.store(true, Ordering::SeqCst);
    let (waits, request) = (layer.clone(), env.request("hi"));
    let first = tokio::spawn(async move { call(&waits, &answers(), request).await });
    settle().await;
    assert!(!first.is_finished());
    assert_eq!(begun(&layer, &env, 1).await, 1);
    first.await.unwrap().unwrap();
}

#[tokio::test]
async fn changes_of_a_long_outage_are_bounded() {
    let env = TestEnvironment::new();
    let store = Store::new(&env);
    let shared = Shared::new(Arc::clone(&store) as Arc<dyn QuotaStore>, "key");
    let shared = shared.on_outage(OnOutage::Allow);
    let layer = RateLimitLayer::new(second().requests(8)).shared(shared);
    store.is_out.store(true, Ordering::SeqCst);
    for _ in 0..3_000 {
        let model = ScriptedModel::new().error(full());
        call(&layer, &model, env.request("hi")).await.unwrap_err();
    }
    store.is_out.store(false, Ordering::SeqCst);
    for _ in 0..10 {
        env.advance(SECOND);
        settle().await;
    }
    let sent = store.changes.load(Ordering::SeqCst);
    assert!((1..=512).contains(&sent), "{sent}");
}
