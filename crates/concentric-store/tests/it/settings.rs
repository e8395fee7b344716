//! Each option with zero, one and its maximum.

use crate::common::{client, clock, key, question, running, secs, set, tenant, waiting};
use crate::kinds::Store;
use concentric_core::{
    Outcome,
    store::{CacheKey, EffectKey, Intent, Ledger, RunChange, RunStatus, RunStore, StoreError},
};
#[cfg(feature = "sqlite")]
use concentric_store::SqliteStore;
use concentric_store::{MemoryStore, Options};
use concentric_test::ManualClock;
use std::time::Duration;

/// Removes the entries that have expired at `seconds`.
async fn forget<S: Store>(store: &S, clock: &ManualClock, seconds: u64) {
    set(clock, seconds);
    store.expire().await;
}

/// Checks an option with each kind of store.
macro_rules! each {
    ($check:ident, $set:expr) => {
        for (options, expected) in $set {
            let time = clock();
            let options = options.clock(time.clone());
            $check(MemoryStore::with_options(options.clone()), &time, expected).await;
            #[cfg(feature = "sqlite")]
            {
                set(&time, 0);
                let store = SqliteStore::open_in_memory_with(options).unwrap();
                $check(store, &time, expected).await;
            }
        }
    };
}

fn code<T: std::fmt::Debug>(result: Result<T, StoreError>) -> &'static str {
    result.map_or_else(|error| error.code(), |_| "ok")
}

async fn begin<S: Store>(store: &S, run: &str) -> u64 {
    let begun = RunStore::begin(store, key(run), client(run), running("hi").into(), secs(30));
    begun.await.unwrap()
}

async fn suspend<S: Store>(store: &S, run: &str) -> Result<(), StoreError> {
    let fence = begin(store, run).await;
    store
        .suspend(key(run), fence, waiting("hi", run).into())
        .await
}

#[tokio::test]
async fn the_state_limit_is_enforced() {
    async fn check<S: Store>(store: S, _: &ManualClock, expected: &str) {
        let begun = RunStore::begin(
            &store,
            key("r"),
            client("r"),
            running("hi").into(),
            secs(30),
        );
        assert_eq!(code(begun.await), expected);
    }
    let change = RunChange::new(&running("hi"));
    let turn = serde_json::to_string(&change.turns[0]).unwrap();
    let size = change.head.to_json().unwrap().len() + turn.len();
    let max = |bytes| Options::new().max_state_bytes(bytes);
    each!(
        check,
        [
            (max(0), "unwritable"),
            (max(1), "unwritable"),
            (max(size - 1), "unwritable"),
            (max(size), "ok"),
            (max(usize::MAX), "ok"),
        ]
    );
}

#[tokio::test]
async fn a_waiting_run_ends_after_its_retention() {
    async fn check<S: Store>(store: S, clock: &ManualClock, (before, at): (u64, Option<u64>)) {
        suspend(&store, "r").await.unwrap();
        let status = async || store.get(key("r")).await.unwrap().status;
        forget(&store, clock, before).await;
        if at != Some(before) {
            assert_eq!(status().await, RunStatus::Suspended);
        }
        forget(&store, clock, at.unwrap_or(1 << 32)).await;
        let expected = at.map_or(RunStatus::Suspended, |_| RunStatus::Ended);
        assert_eq!(status().await, expected);
    }
    let keep = |time| Options::new().keep_waiting(time);
    each!(
        check,
        [
            (keep(Duration::ZERO), (0, Some(0))),
            (keep(Duration::from_secs(1)), (0, Some(1))),
            (keep(Duration::MAX), (0, None)),
        ]
    );
}

#[tokio::test]
async fn an_ended_run_is_removed_after_its_retention() {
    async fn check<S: Store>(store: S, clock: &ManualClock, (before, at): (&str, Option<u64>)) {
        let fence = begin(&store, "r").await;
        store
            .end(key("r"), fence, Ok(Outcome::Completed))
            .await
            .unwrap();
        assert_eq!(code(store.get(key("r")).await), before);
        forget(&store, clock, at.unwrap_or(1 << 32)).await;
        let expected = at.map_or("ok", |_| "run_not_found");
        assert_eq!(code(store.get(key("r")).await), expected);
    }
    let keep = |time| Options::new().keep_ended(time);
    each!(
        check,
        [
            (keep(Duration::ZERO), ("run_not_found", Some(0))),
            (keep(Duration::from_secs(1)), ("ok", Some(1))),
            (keep(Duration::MAX), ("ok", None)),
        ]
    );
}

#[tokio::test]
async fn an_effect_without_a_run_is_removed_after_its_retention() {
    async fn check<S: Store>(store: S, clock: &ManualClock, forgotten: bool) {
        let effect = || EffectKey::new(tenant("acme"), "e");
        let context = concentric_core::Context::new();
        let intent = Intent::new("t".into(), "{}".into(), &context);
        Ledger::begin(&store, effect(), intent).await.unwrap();
        forget(&store, clock, 0).await;
        forget(&store, clock, 1).await;
        let known = store.known(effect()).await.unwrap();
        assert_eq!(known == concentric_core::store::LedgerEntry::New, forgotten);
    }
    let keep = |time| Options::new().keep_effects(time);
    each!(
        check,
        [
            (keep(Duration::ZERO), true),
            (keep(Duration::from_secs(1)), true),
            (keep(Duration::from_secs(2)), false),
            (keep(Duration::MAX), false),
        ]
    );
}

#[tokio::test]
async fn the_configured_number_of_used_keys_is_kept() {
    async fn check<S: Store>(store: S, clock: &ManualClock, kept: [bool; 3]) {
        for name in ["0", "1", "2"] {
            assert!(
                store
                    .once(tenant("acme"), name.into(), secs(0))
                    .await
                    .unwrap()
            );
        }
        forget(&store, clock, 9).await;
        for (name, kept) in ["0", "1", "2"].into_iter().zip(kept) {
            let first = store.once(tenant("acme"), name.into(), secs(0)).await;
            assert_eq!(first.unwrap(), !kept, "{name}");
        }
    }
    let keep = |keys| Options::new().keep_used_keys(keys);
    each!(
        check,
        [
            (keep(0), [false; 3]),
            (keep(1), [false, false, true]),
            (keep(usize::MAX), [true; 3]),
        ]
    );
}

#[tokio::test]
async fn the_limit_of_waiting_runs_is_enforced() {
    async fn check<S: Store>(store: S, _: &ManualClock, expected: [&str; 2]) {
        for (run, expected) in ["a", "b"].into_iter().zip(expected) {
            assert_eq!(code(suspend(&store, run).await), expected);
        }
        let asking = store.find_by_interrupt(
            tenant("acme"),
            concentric_core::ThreadId::new("thread"),
            vec![question("a")],
        );
        assert_eq!(code(asking.await) == "ok", expected[0] == "ok");
    }
    let thread = |runs| Options::new().max_waiting_per_thread(runs);
    let tenant = |runs| Options::new().max_waiting_per_tenant(runs);
    each!(
        check,
        [
            (thread(0), ["too_many_waiting"; 2]),
            (tenant(0), ["too_many_waiting"; 2]),
            (thread(1), ["ok", "too_many_waiting"]),
            (tenant(1), ["ok", "too_many_waiting"]),
            (thread(usize::MAX), ["ok"; 2]),
            (tenant(usize::MAX), ["ok"; 2]),
        ]
    );
}

#[tokio::test]
async fn the_limits_of_the_cache_are_enforced() {
    async fn check<S: Store>(store: S, _: &ManualClock, (expected, kept): (&str, [bool; 2])) {
        let cached = |n| CacheKey::new(tenant("acme"), None, "s", [n; 32]);
        for n in [0, 1] {
            let keep = secs(60 + u64::from(n));
            let put = store.put_entry(cached(n), vec![n; 9], keep).await;
            assert_eq!(code(put), expected);
        }
        for (n, kept) in [0, 1].into_iter().zip(kept) {
            let found = store.get_entry(cached(n)).await.unwrap();
            assert_eq!(found.is_some(), kept, "{n}");
        }
    }
    let entries = |entries| Options::new().max_cache_entries(entries);
    let bytes = |bytes| Options::new().max_cache_bytes(bytes);
    let value = |bytes| Options::new().max_cached_value_bytes(bytes);
    // Each entry has 37 bytes beside its value.
    each!(
        check,
        [
            (entries(0), ("ok", [false, false])),
            (entries(1), ("ok", [false, true])),
            (entries(usize::MAX), ("ok", [true, true])),
            (bytes(0), ("ok", [false, false])),
            (bytes(45), ("ok", [false, false])),
            (bytes(46), ("ok", [false, true])),
            (bytes(92), ("ok", [true, true])),
            (bytes(usize::MAX), ("ok", [true, true])),
            (value(0), ("unwritable", [false, false])),
            (value(8), ("unwritable", [false, false])),
            (value(9), ("ok", [true, true])),
            (value(usize::MAX), ("ok", [true, true])),
        ]
    );
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_write_waits_up_to_the_busy_timeout() {
    let dir = tempfile::tempdir().unwrap();
    for timeout in [
        Duration::ZERO,
        Duration::from_millis(1),
        Duration::from_millis(i32::MAX as u64 + 1),
        Duration::MAX,
    ] {
        // A new file each time, since dropping the previous store does not wait for its threads.
        let path = dir.path().join(format!("runs-{}.db", timeout.as_nanos()));
        let options = Options::new().busy_timeout(timeout);
        let store = SqliteStore::open_with(&path, options).unwrap();
        let run = format!("{timeout:?}");
        begin(&store, &run).await;
        let copy = dir.path().join(format!("{}.db", timeout.as_nanos()));
        store.back_up(copy).await.unwrap();
        if timeout > Duration::from_millis(1) {
            continue;
        }
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let fence = store.get(key(&run)).await.unwrap().fence;
        let renewed = store.renew(key(&run), fence, secs(60)).await;
        assert_eq!(code(renewed), "store_failed");
        let ended = store.end(key(&run), fence, Ok(Outcome::Completed)).await;
        assert_eq!(code(ended), "store_failed");
    }
}
