//! Permits that layers of several processes share: each layer value acts as a process.

use super::request;
use concentric_core::{
    BoxModel, ChatResponse, Error, ErrorKind, EventStream, Str,
    store::{Quota, QuotaChange, QuotaStore, QuotaTaken, QuotaWant, StoreError, StoreFuture},
};
use concentric_layers::{InFlightLimitLayer, OnOutage, Shared};
use concentric_store::MemoryStore;
use concentric_test::ScriptedModel;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};
use tower::{Layer, ServiceExt};

type Answer = ChatResponse<EventStream>;

/// A store that may be out, panic once, or keep an answer back.
struct Store {
    inner: MemoryStore,
    is_out: AtomicBool,
    panics: AtomicBool,
    keeps: AtomicBool,
    kept: Arc<Notify>,
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
        self.inner.take(bucket, quota, caller, wants, ahead)
    }

    fn record(&self, bucket: Str, quota: Quota, changes: Vec<QuotaChange>) -> StoreFuture<()> {
        self.inner.record(bucket, quota, changes)
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
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a panic");
        match self.is_out.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(StoreError::failed("out")) }),
            false => {
                let held = self.inner.hold(bucket, max, caller, used, wanted, lease);
                if !self.keeps.swap(false, Ordering::SeqCst) {
                    return held;
                }
                let kept = Arc::clone(&self.kept);
                Box::pin(async move {
                    let held = held.await;
                    kept.notified().await;
                    held
                })
            }
        }
    }
}

fn store() -> Arc<Store> {
    Arc::new(Store {
        inner: MemoryStore::new(),
        is_out: AtomicBool::new(false),
        panics: AtomicBool::new(false),
        keeps: AtomicBool::new(false),
        kept: Arc::default(),
    })
}

fn process(store: &Arc<Store>, max: usize, policy: OnOutage) -> InFlightLimitLayer {
    let shared = Shared::new(Arc::clone(store) as Arc<dyn QuotaStore>, "key").on_outage(policy);
    InFlightLimitLayer::new(max).shared(shared)
}

async fn call(layer: &InFlightLimitLayer) -> Result<Answer, Error> {
    let model = ScriptedModel::new().text("hi").repeat();
    BoxModel::new(layer.layer(model)).oneshot(request()).await
}

/// Calls until one waits.
async fn begun(layer: &InFlightLimitLayer) -> Vec<Answer> {
    let mut begun = Vec::new();
    while let Ok(answer) = timeout(Duration::from_millis(500), call(layer)).await {
        begun.push(answer.unwrap());
    }
    begun
}

#[tokio::test]
async fn processes_share_permits() {
    let store = store();
    let [one, other] = [(); 2].map(|()| process(&store, 3, OnOutage::Refuse));
    let mut answers = begun(&one).await;
    assert_eq!(answers.len(), 3);
    let waiting = tokio::spawn(async move { call(&other).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    // It is given up, since the other process waits.
    drop(answers.pop());
    let answer = timeout(Duration::from_secs(30), waiting).await;
    drop(answer.unwrap().unwrap().unwrap());
}

#[tokio::test]
async fn a_process_gives_up_permits_that_its_own_calls_wait_for() {
    let store = store();
    let [one, other] = [(); 2].map(|()| process(&store, 2, OnOutage::Refuse));
    let mut answers = begun(&one).await;
    assert_eq!(answers.len(), 2);
    let own = one.clone();
    let own = tokio::spawn(async move { call(&own).await });
    let others = tokio::spawn(async move { call(&other).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(answers.pop());
    let answer = timeout(Duration::from_secs(30), others).await;
    assert!(!own.is_finished());
    drop(answer.unwrap().unwrap().unwrap());
    let answer = timeout(Duration::from_secs(30), own).await;
    drop(answer.unwrap().unwrap().unwrap());
}

#[tokio::test]
async fn more_processes_than_permits_have_them_in_turn() {
    let store = store();
    let served = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    let calls: Vec<_> = served
        .iter()
        .map(|served| (process(&store, 1, OnOutage::Refuse), Arc::clone(served)))
        .flat_map(|process| [process.clone(), process.clone(), process])
        .map(|(layer, served)| {
            tokio::spawn(async move {
                loop {
                    let answer = call(&layer).await.unwrap();
                    served.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    drop(answer);
                }
            })
        })
        .collect();
    let all = async {
        while served.iter().any(|it| it.load(Ordering::SeqCst) < 10) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), all).await.unwrap();
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A store that fails once when permits are returned does not keep them.
#[tokio::test]
async fn permits_that_were_not_returned_are_returned_later() {
    let store = store();
    let [one, other] = [(); 2].map(|()| process(&store, 2, OnOutage::Refuse));
    let answers = begun(&one).await;
    assert_eq!(answers.len(), 2);
    drop(answers);
    store.is_out.store(true, Ordering::SeqCst);
    // The process has no calls, and cannot return what it had.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    store.is_out.store(false, Ordering::SeqCst);
    // The lease takes 30 seconds.
    let calls = async { tokio::join!(call(&other), call(&other)) };
    let (first, second) = timeout(Duration::from_secs(15), calls).await.unwrap();
    drop((first.unwrap(), second.unwrap()));
}

#[tokio::test]
async fn a_permit_that_is_returned_is_not_used() {
    let store = store();
    let process = || {
        let shared = Shared::new(Arc::clone(&store) as Arc<dyn QuotaStore>, "key");
        InFlightLimitLayer::new(2).shared(shared.patience(Duration::from_secs(600)))
    };
    let (one, other) = (process(), process());
    let mut answers = begun(&one).await;
    drop(answers.pop());
    store.keeps.store(true, Ordering::SeqCst);
    while store.keeps.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The other process has the permit before the first one receives an answer.
    let answer = timeout(Duration::from_secs(30), call(&other)).await;
    answers.push(answer.unwrap().unwrap());
    assert_eq!(begun(&one).await.len(), 0);
    store.kept.notify_one();
    drop(answers);
    let calls = async { tokio::join!(call(&one), call(&one)) };
    let (first, second) = timeout(Duration::from_secs(30), calls).await.unwrap();
    drop((first.unwrap(), second.unwrap()));
}

#[tokio::test]
async fn a_limit_without_a_queue_asks_the_store_first() {
    let store = store();
    let layer = process(&store, 2, OnOutage::Refuse).queue(0);
    let (one, other) = tokio::join!(call(&layer), call(&layer));
    let _both = (one.unwrap(), other.unwrap());
    // Two wait, and the third is refused.
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let layer = layer.clone();
            tokio::spawn(async move { call(&layer).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        call(&layer).await.unwrap_err().kind(),
        ErrorKind::Overloaded
    );
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_policy_applies_while_the_store_is_out() {
    for (policy, expected) in [(OnOutage::LocalShare(0.5), 2), (OnOutage::Refuse, 0)] {
        let store = store();
        store.is_out.store(true, Ordering::SeqCst);
        let layer = process(&store, 4, policy);
        if expected == 0 {
            assert_eq!(
                call(&layer).await.unwrap_err().kind(),
                ErrorKind::Overloaded
            );
        } else {
            assert_eq!(begun(&layer).await.len(), expected);
        }
        store.is_out.store(false, Ordering::SeqCst);
        // It is asked again within a second.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(begun(&layer).await.len(), 4, "{policy:?}");
    }
    let store = store();
    store.is_out.store(true, Ordering::SeqCst);
    let layer = process(&store, 1, OnOutage::Allow);
    let mut answers = Vec::new();
    for _ in 0..5 {
        let answer = timeout(Duration::from_secs(30), call(&layer)).await;
        answers.push(answer.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_store_that_has_panicked_is_asked_again() {
    let store = store();
    let layer = process(&store, 2, OnOutage::Refuse);
    store.panics.store(true, Ordering::SeqCst);
    let waits = layer.clone();
    let first = tokio::spawn(async move { call(&waits).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!first.is_finished());
    let second = timeout(Duration::from_secs(30), call(&layer)).await;
    drop(second.unwrap().unwrap());
    drop(first.await.unwrap().unwrap());
}

#[tokio::test]
async fn permits_whose_task_has_ended_are_not_used() {
    let store = store();
    let lease = Duration::from_secs(1);
    let [one, other] = [(); 2].map(|()| {
        let shared = Shared::new(Arc::clone(&store) as Arc<dyn QuotaStore>, "key");
        InFlightLimitLayer::new(1).shared(shared.lease(lease))
    });
    let first = one.clone();
    let thread = std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            drop(call(&first).await.unwrap());
        });
    });
    tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap();
    let answer = timeout(Duration::from_secs(30), call(&other)).await;
    let answer = answer.unwrap().unwrap();
    assert!(
        timeout(Duration::from_millis(500), call(&one))
            .await
            .is_err()
    );
    drop(answer);
    let answer = timeout(Duration::from_secs(30), call(&one)).await;
    drop(answer.unwrap().unwrap());
}
