//! What the options of the stores set, beyond the contract of all stores.

use crate::kinds::{Kind, Store};

/// Makes a test of each function for each kind of store.
macro_rules! suite {
    ($($name:ident)*) => {
        for_each_kind!(of_kind, $($name)*);
    };
}

macro_rules! of_kind {
    ($kind:ty, $($name:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            if !<$kind as concentric_test::StoreHarness>::is_available() {
                return;
            }
            let clock = crate::common::clock();
            let kind: $kind = super::start(&clock).await;
            super::$name(concentric_test::StoreHarness::open(&kind).await, clock).await;
        })*
    };
}

mod limits;
mod retention;

use crate::common::{approve, at, client, key, question, running, secs, set, tenant, waiting};
use concentric_core::{
    CancelReason, Outcome, Reply, RunId, Str, ThreadId,
    store::{
        EffectKey, Intent, Ledger, LedgerEntry, MAX_TAKEOVERS, Memories, RunClaim, RunKey,
        RunRecord, RunStatus, RunStore, StoreError, StoredDecision, StoredScope, ThreadChange,
    },
};
use concentric_store::{Fault, Options};
use concentric_test::ManualClock;
use serde_json::{Value, json};
use std::time::Duration;

/// Removes the entries that have expired at `seconds`.
async fn expire<S: Store>(store: &S, clock: &ManualClock, seconds: u64) {
    set(clock, seconds);
    store.expire().await;
}

async fn start<K: Kind>(clock: &ManualClock) -> K {
    let options = Options::new()
        .clock(clock.clone())
        .max_state_bytes(100_000)
        .keep_waiting(Duration::from_secs(2_000_000))
        .keep_ended(Duration::from_secs(1000))
        .keep_effects(Duration::from_secs(2000))
        .keep_used_keys(2)
        .max_waiting_per_thread(3)
        .max_waiting_per_tenant(5)
        .max_cache_entries(100)
        .max_cache_bytes(10_000)
        .max_cached_value_bytes(2_000);
    K::with(options).await
}

fn code<T: std::fmt::Debug>(result: Result<T, StoreError>) -> &'static str {
    result.unwrap_err().code()
}

/// Creates a run that waits for a reply to the interrupt `id`.
async fn suspended<S: Store>(store: &S, run: &str, id: &str) -> RunRecord {
    let fence = RunStore::begin(store, key(run), client(run), running("hi").into(), secs(30))
        .await
        .unwrap();
    store
        .suspend(key(run), fence, waiting("hi", id).into())
        .await
        .unwrap();
    store.get(key(run)).await.unwrap()
}

/// Begins a run and suspends it.
async fn wait_in<S: Store>(store: &S, thread: &'static str, run: &str) -> Result<(), StoreError> {
    let key = RunKey::new(tenant("acme"), ThreadId::new(thread), RunId::new(run));
    let begun = RunStore::begin(
        store,
        key.clone(),
        client(run),
        running("hi").into(),
        secs(30),
    );
    let fence = begun.await.unwrap();
    store.suspend(key, fence, waiting("hi", run).into()).await
}
