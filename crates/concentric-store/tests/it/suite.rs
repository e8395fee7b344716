//! The contract of a store, checked for each implementation.

use crate::common::{at, client, key, question, running, tenant, waiting};
use concentric_core::{
    MessageId, Reply, RunId, Str, ThreadId, ToolOutcome,
    store::{
        Decisions, Effect, EffectKey, Intent, Ledger, Once, Remembered, RunClaim, RunKey,
        RunStatus, RunStore, Span, StoreError, Tenant,
    },
};
#[cfg(feature = "sqlite")]
use concentric_store::SqliteStore;
use concentric_store::{Fault, MemoryStore, Options};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// A store, with its `purge`.
trait Store: RunStore + Ledger + Once + Decisions + Clone {
    async fn forget(&self, now: SystemTime);
}

impl Store for MemoryStore {
    async fn forget(&self, now: SystemTime) {
        self.purge(now).await.unwrap();
    }
}

#[cfg(feature = "sqlite")]
impl Store for concentric_store::SqliteStore {
    async fn forget(&self, now: SystemTime) {
        self.purge(now).await.unwrap();
    }
}

macro_rules! suite {
    ($($name:ident)*) => {
        mod in_memory {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                super::$name(MemoryStore::with_options(options())).await;
            })*
        }

        #[cfg(feature = "sqlite")]
        mod sqlite {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("runs.db");
                super::$name(SqliteStore::open_with(path, options()).unwrap()).await;
            })*
        }

        #[cfg(feature = "sqlite")]
        mod sqlite_in_memory {
            use super::*;

            $(#[tokio::test]
            async fn $name() {
                super::$name(SqliteStore::open_in_memory_with(options()).unwrap()).await;
            })*
        }
    };
}

fn options() -> Options {
    Options::new()
        .max_state_bytes(100_000)
        .keep_waiting(Duration::from_secs(2_000_000))
        .keep_ended(Duration::from_secs(1000))
        .keep_effects(Duration::from_secs(2000))
        .keep_used_keys(2)
        .max_waiting_per_thread(3)
        .max_waiting_per_tenant(5)
}

suite! {
    a_key_identifies_one_run
    an_unknown_run_is_not_found
    writes_are_visible_to_reads
    a_running_run_is_claimed_only_after_its_lease
    a_suspended_run_is_claimed_once
    a_claim_of_an_older_version_fails
    replies_are_kept_until_the_next_state
    accepted_replies_are_not_replaced
    writes_with_an_older_fence_are_rejected
    writes_with_a_released_claim_are_rejected
    an_ended_run_stays_ended
    a_run_is_found_by_each_of_its_interrupts
    tenants_and_threads_are_isolated
    the_runs_of_a_thread_are_listed_oldest_first
    abandoned_runs_are_those_with_an_expired_lease
    ended_runs_are_removed_after_their_retention
    runs_that_wait_too_long_are_ended
    a_client_id_may_repeat_when_its_run_is_not_running
    a_client_id_of_a_live_run_is_rejected
    waiting_runs_are_limited
    waiting_runs_are_withdrawn_together
    a_withdrawn_run_cannot_be_claimed
    a_state_is_amended_only_while_the_run_is_claimable
    replies_to_further_interrupts_are_added_to_accepted_ones
    a_reused_key_gets_new_versions_and_fences
    a_state_over_the_size_limit_is_not_written
    a_state_nested_too_deeply_is_not_written
    an_effect_begins_once
    an_effect_requires_the_newest_claim
    the_first_outcome_of_an_effect_stays
    a_success_replaces_a_failure_of_a_repeatable_effect
    an_effect_with_another_tool_or_arguments_is_rejected
    an_effect_without_an_outcome_is_retracted
    effects_are_removed_with_their_run
    effects_without_a_run_are_removed_after_their_retention
    a_key_is_used_once
    recently_used_keys_are_kept_after_their_time
    a_decision_applies_within_its_span
    a_run_decision_does_not_apply_in_another_thread
    a_decision_replaces_one_for_the_same_calls
    a_decision_is_revoked
    decisions_for_a_run_are_removed_with_it
}

fn code<T: std::fmt::Debug>(result: Result<T, StoreError>) -> &'static str {
    result.unwrap_err().code()
}

fn approve(id: &str) -> Vec<Reply> {
    vec![Reply::approve(question(id))]
}

/// Creates a run that waits for a reply to the interrupt `id`; returns its version.
async fn suspended<S: Store>(store: &S, run: &str, id: &str) -> u64 {
    let fence = RunStore::begin(store, key(run), client(run), running("hi"), at(30))
        .await
        .unwrap();
    store
        .suspend(key(run), fence, waiting("hi", id), at(0))
        .await
        .unwrap();
    store.get(key(run)).await.unwrap().version
}

async fn a_key_identifies_one_run<S: Store>(store: S) {
    let begin = || RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30));
    assert!(begin().await.unwrap() > 0);
    assert_eq!(code(begin().await), "run_exists");
}

async fn an_unknown_run_is_not_found<S: Store>(store: S) {
    let state = || running("hi");
    let none = key("none");
    assert_eq!(code(store.get(none.clone()).await), "run_not_found");
    let claim = store.claim(none.clone(), 1, vec![], at(0), at(30)).await;
    assert_eq!(code(claim), "run_not_found");
    assert_eq!(
        code(store.save(none.clone(), 1, state(), at(30)).await),
        "run_not_found"
    );
    assert_eq!(
        code(store.renew(none.clone(), 1, at(30)).await),
        "run_not_found"
    );
    assert_eq!(
        code(store.suspend(none.clone(), 1, state(), at(0)).await),
        "run_not_found"
    );
    assert_eq!(code(store.end(none, 1, at(0)).await), "run_not_found");
    assert!(store.abandoned(at(9999), 10).await.unwrap().is_empty());
}

async fn writes_are_visible_to_reads<S: Store>(store: S) {
    let fence = RunStore::begin(&store, key("run"), client("run"), running("1"), at(30))
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!((record.status, record.fence), (RunStatus::Running, fence));
    assert_eq!(record.lease_until, at(30));
    assert_eq!(record.state, running("1"));
    let begun = record.version;

    store
        .save(key("run"), fence, running("2"), at(60))
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!((record.state, record.lease_until), (running("2"), at(60)));
    assert!(record.version > begun);

    store.renew(key("run"), fence, at(90)).await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap().lease_until, at(90));

    store
        .suspend(key("run"), fence, waiting("3", "q"), at(0))
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Suspended);
    assert_eq!(record.state, waiting("3", "q"));
    assert_eq!(record.asked, [question("q")]);
}

async fn a_running_run_is_claimed_only_after_its_lease<S: Store>(store: S) {
    let fence = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    let claim = |now| store.claim(key("run"), version, vec![], now, at(90));
    assert_eq!(code(claim(at(29)).await), "already_resumed");
    let record = claim(at(30)).await.unwrap();
    assert!(record.fence > fence);
    assert_eq!(record.status, RunStatus::Running);
    assert_eq!(record, store.get(key("run")).await.unwrap());
}

async fn a_suspended_run_is_claimed_once<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let claim = || store.claim(key("run"), version, approve("q"), at(0), at(30));
    let record = claim().await.unwrap();
    assert_eq!(record.replies, approve("q"));
    assert_eq!(record, store.get(key("run")).await.unwrap());
    assert_eq!(code(claim().await), "already_resumed");
}

async fn a_claim_of_an_older_version_fails<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let claim = |version| store.claim(key("run"), version, vec![], at(0), at(30));
    assert_eq!(code(claim(version - 1).await), "already_resumed");
    assert_eq!(code(claim(version + 1).await), "already_resumed");
    claim(version).await.unwrap();
}

async fn replies_are_kept_until_the_next_state<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), at(0), at(30));
    let fence = claim.await.unwrap().fence;
    store.renew(key("run"), fence, at(60)).await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap().replies, approve("q"));
    store
        .save(key("run"), fence, running("on"), at(60))
        .await
        .unwrap();
    assert!(store.get(key("run")).await.unwrap().replies.is_empty());
}

async fn accepted_replies_are_not_replaced<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), at(0), at(30));
    let version = claim.await.unwrap().version;
    // The process that holds the claim dies.
    let denied = vec![Reply::deny(question("q"), "no")];
    let record = store
        .claim(key("run"), version, denied, at(30), at(60))
        .await
        .unwrap();
    assert_eq!(record.replies, approve("q"));
    // The time of the first claim counts, not that of the later ones.
    assert_eq!(record.replied_at, Some(at(0)));
}

async fn writes_with_an_older_fence_are_rejected<S: Store>(store: S) {
    let old = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    let new = store
        .claim(key("run"), version, vec![], at(30), at(60))
        .await
        .unwrap();
    let state = || running("zombie");
    assert_eq!(
        code(store.save(key("run"), old, state(), at(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.renew(key("run"), old, at(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.suspend(key("run"), old, state(), at(0)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.end(key("run"), old, at(40)).await),
        "stale_claim"
    );
    // A future fence is rejected as well.
    assert_eq!(
        code(store.renew(key("run"), new.fence + 1, at(90)).await),
        "stale_claim"
    );
    assert_eq!(store.get(key("run")).await.unwrap(), new);
    // The same holds after the run has ended.
    store.end(key("run"), new.fence, at(40)).await.unwrap();
    assert_eq!(
        code(store.save(key("run"), old, state(), at(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.end(key("run"), old, at(40)).await),
        "stale_claim"
    );
}

async fn writes_with_a_released_claim_are_rejected<S: Store>(store: S) {
    let fence = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    store
        .suspend(key("run"), fence, waiting("hi", "q"), at(0))
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    let state = || running("on");
    assert_eq!(
        code(store.save(key("run"), fence, state(), at(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.renew(key("run"), fence, at(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.suspend(key("run"), fence, state(), at(0)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.end(key("run"), fence, at(40)).await),
        "stale_claim"
    );
    assert_eq!(store.get(key("run")).await.unwrap(), record);
}

async fn an_ended_run_stays_ended<S: Store>(store: S) {
    let fence = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    store.end(key("run"), fence, at(10)).await.unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Ended);
    let claim = store
        .claim(key("run"), record.version, vec![], at(99), at(120))
        .await;
    assert_eq!(code(claim), "run_ended");
    assert_eq!(
        code(store.save(key("run"), fence, running("on"), at(90)).await),
        "run_ended"
    );
    assert_eq!(
        code(store.renew(key("run"), fence, at(90)).await),
        "run_ended"
    );
    assert_eq!(
        code(store.suspend(key("run"), fence, running("on"), at(0)).await),
        "run_ended"
    );
    // Ending it again is no error and changes nothing.
    store.end(key("run"), fence, at(20)).await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap(), record);
    let begin = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30)).await;
    assert_eq!(code(begin), "run_exists");
}

/// Begins a run with the client id `name`.
async fn begin_as<S: Store>(store: &S, run: &str, name: &str) -> Result<u64, StoreError> {
    RunStore::begin(store, key(run), client(name), running("hi"), at(30)).await
}

async fn a_client_id_may_repeat_when_its_run_is_not_running<S: Store>(store: S) {
    let live = || store.is_live(tenant("acme"), ThreadId::new("thread"), client("r1"));
    assert!(!live().await.unwrap());
    let fence = begin_as(&store, "over", "r1").await.unwrap();
    assert_eq!(
        store.get(key("over")).await.unwrap().client_id,
        client("r1")
    );
    store.end(key("over"), fence, at(1)).await.unwrap();
    assert!(!live().await.unwrap());
    let fence = begin_as(&store, "waits", "r1").await.unwrap();
    let state = waiting("hi", "q");
    store
        .suspend(key("waits"), fence, state, at(1))
        .await
        .unwrap();
    assert!(!live().await.unwrap());
    begin_as(&store, "third", "r1").await.unwrap();
    assert!(live().await.unwrap());
    for run in ["over", "waits", "third"] {
        assert_eq!(store.get(key(run)).await.unwrap().client_id, client("r1"));
    }
}

async fn a_client_id_of_a_live_run_is_rejected<S: Store>(store: S) {
    let fence = begin_as(&store, "first", "r1").await.unwrap();
    assert_eq!(code(begin_as(&store, "second", "r1").await), "run_live");
    assert_eq!(code(store.get(key("second")).await), "run_not_found");
    // Even after its lease has expired, since another process will resume it.
    store.renew(key("first"), fence, at(0)).await.unwrap();
    assert_eq!(code(begin_as(&store, "second", "r1").await), "run_live");
    begin_as(&store, "second", "r2").await.unwrap();
    // Client ids are scoped to a tenant and a conversation.
    for (of, thread) in [("other", "thread"), ("acme", "other")] {
        let live = store.is_live(tenant(of), ThreadId::new(thread), client("r1"));
        assert!(!live.await.unwrap());
        let key = RunKey::new(tenant(of), ThreadId::new(thread), RunId::new("x"));
        let begun = RunStore::begin(&store, key, client("r1"), running("hi"), at(30));
        begun.await.unwrap();
    }
}

/// Begins a run and suspends it.
async fn wait_in<S: Store>(store: &S, thread: &'static str, run: &str) -> Result<(), StoreError> {
    let key = RunKey::new(tenant("acme"), ThreadId::new(thread), RunId::new(run));
    let begun = RunStore::begin(store, key.clone(), client(run), running("hi"), at(30));
    let fence = begun.await.unwrap();
    store.suspend(key, fence, waiting("hi", run), at(0)).await
}

async fn waiting_runs_are_limited<S: Store>(store: S) {
    for run in ["1", "2", "3"] {
        wait_in(&store, "thread", run).await.unwrap();
    }
    let refused = wait_in(&store, "thread", "4").await.unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::TooManyWaiting {
                limit: 3,
                of_tenant: false
            }
        ),
        "{refused:?}"
    );
    // The rejected suspension leaves the run unchanged.
    assert_eq!(
        store.get(key("4")).await.unwrap().status,
        RunStatus::Running
    );
    wait_in(&store, "other", "5").await.unwrap();
    wait_in(&store, "other", "6").await.unwrap();
    let refused = wait_in(&store, "third", "7").await.unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::TooManyWaiting {
                limit: 5,
                of_tenant: true
            }
        ),
        "{refused:?}"
    );

    // A run that has waited keeps its place in the limit while it runs.
    let version = store.get(key("1")).await.unwrap().version;
    let claim = store.claim(key("1"), version, approve("1"), at(0), at(30));
    let fence = claim.await.unwrap().fence;
    assert_eq!(
        code(wait_in(&store, "thread", "8").await),
        "too_many_waiting"
    );
    let state = waiting("hi", "again");
    store.suspend(key("1"), fence, state, at(0)).await.unwrap();

    // Its end lets another run wait.
    let version = store.get(key("1")).await.unwrap().version;
    let claim = store.claim(key("1"), version, approve("again"), at(0), at(30));
    let fence = claim.await.unwrap().fence;
    store.end(key("1"), fence, at(0)).await.unwrap();
    wait_in(&store, "thread", "9").await.unwrap();
}

async fn waiting_runs_are_withdrawn_together<S: Store>(store: S) {
    let withdraw = |of, thread| store.withdraw(tenant(of), ThreadId::new(thread), at(40));
    let status = async |run| store.get(key(run)).await.unwrap().status;
    for run in ["1", "2", "3"] {
        suspended(&store, run, run).await;
    }
    wait_in(&store, "other", "1").await.unwrap();
    let version = store.get(key("3")).await.unwrap().version;
    let claim = store.claim(key("3"), version, approve("3"), at(0), at(30));
    let fence = claim.await.unwrap().fence;
    let begun = RunStore::begin(&store, key("4"), client("4"), running("hi"), at(30));
    begun.await.unwrap();

    assert_eq!(withdraw("nobody", "thread").await.unwrap(), 0);
    assert_eq!(withdraw("acme", "none").await.unwrap(), 0);
    assert_eq!(withdraw("acme", "thread").await.unwrap(), 2);
    assert_eq!(withdraw("acme", "thread").await.unwrap(), 0);
    assert_eq!(status("1").await, RunStatus::Ended);
    assert_eq!(status("2").await, RunStatus::Ended);
    // A running run is not withdrawn, even if it has waited before.
    assert_eq!(status("3").await, RunStatus::Running);
    assert_eq!(status("4").await, RunStatus::Running);
    let others = store.of_thread(tenant("acme"), ThreadId::new("other"), None, 9);
    assert_eq!(others.await.unwrap()[0].status, RunStatus::Suspended);
    let state = waiting("hi", "again");
    store.suspend(key("3"), fence, state, at(40)).await.unwrap();

    // Withdrawn runs no longer count, and are removed like other ended runs.
    wait_in(&store, "thread", "5").await.unwrap();
    wait_in(&store, "thread", "6").await.unwrap();
    store.forget(at(1039)).await;
    assert_eq!(status("1").await, RunStatus::Ended);
    store.forget(at(1040)).await;
    for run in ["1", "2"] {
        assert_eq!(code(store.get(key(run)).await), "run_not_found");
        let asking = store.asking(tenant("acme"), ThreadId::new("thread"), vec![question(run)]);
        assert_eq!(code(asking.await), "run_not_found");
    }
}

async fn a_withdrawn_run_cannot_be_claimed<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let withdrawn = store
        .withdraw(tenant("acme"), ThreadId::new("thread"), at(0))
        .await;
    assert_eq!(withdrawn.unwrap(), 1);
    let newest = store.get(key("run")).await.unwrap().version;
    assert!(newest > version);
    for version in [version, newest] {
        let claim = store.claim(key("run"), version, approve("q"), at(0), at(30));
        assert_eq!(code(claim.await), "run_ended");
    }
    let asking = store.asking(tenant("acme"), ThreadId::new("thread"), vec![question("q")]);
    let record = asking.await.unwrap();
    assert_eq!(record.status, RunStatus::Ended);
    assert!(record.replies.is_empty());
}

async fn a_state_is_amended_only_while_the_run_is_claimable<S: Store>(store: S) {
    let amend = |version, said, now| store.amend(key("run"), version, waiting(said, "q"), at(now));
    assert_eq!(code(amend(0, "2", 0).await), "run_not_found");
    let version = suspended(&store, "run", "q").await;
    let mut record = store.get(key("run")).await.unwrap();
    let newer = amend(version, "2", 0).await.unwrap();
    assert!(newer > version);
    record.version = newer;
    record.state = waiting("2", "q");
    assert_eq!(store.get(key("run")).await.unwrap(), record);
    assert_eq!(code(amend(version, "3", 0).await), "already_resumed");
    let claim = store.claim(key("run"), version, approve("q"), at(0), at(30));
    assert_eq!(code(claim.await), "already_resumed");

    // The replies of an abandoned run stay.
    let claim = store.claim(key("run"), newer, approve("q"), at(0), at(30));
    let mut record = claim.await.unwrap();
    assert_eq!(
        code(amend(record.version, "3", 29).await),
        "already_resumed"
    );
    record.version = amend(record.version, "3", 30).await.unwrap();
    record.state = waiting("3", "q");
    assert_eq!(record.replies, approve("q"));
    assert_eq!(store.get(key("run")).await.unwrap(), record);
    let claim = store.claim(key("run"), record.version, vec![], at(30), at(60));
    let fence = claim.await.unwrap().fence;
    store.end(key("run"), fence, at(30)).await.unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    assert_eq!(code(amend(version, "4", 60).await), "run_ended");
}

async fn replies_to_further_interrupts_are_added_to_accepted_ones<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), at(0), at(30));
    let version = claim.await.unwrap().version;
    // The process that holds the claim dies, and so does the next one.
    let mut replies = vec![Reply::deny(question("q"), "no")];
    replies.extend(approve("p"));
    let claim = store.claim(key("run"), version, replies, at(30), at(60));
    let version = claim.await.unwrap().version;
    let claim = store.claim(key("run"), version, vec![], at(60), at(90));
    let record = claim.await.unwrap();
    assert_eq!(record.replies, [approve("q"), approve("p")].concat());
    assert_eq!(record.replied_at, Some(at(0)));
    assert_eq!(record, store.get(key("run")).await.unwrap());
}

async fn a_run_is_found_by_each_of_its_interrupts<S: Store>(store: S) {
    let version = suspended(&store, "run", "q1").await;
    let asking = |ids: &[&str]| {
        let ids = ids.iter().map(|id| question(id)).collect();
        store.asking(tenant("acme"), ThreadId::new("thread"), ids)
    };
    assert_eq!(asking(&["q1"]).await.unwrap().key, key("run"));
    assert_eq!(asking(&["other", "q1"]).await.unwrap().key, key("run"));
    assert_eq!(code(asking(&["other"]).await), "run_not_found");
    assert_eq!(code(asking(&[]).await), "run_not_found");

    let claim = store.claim(key("run"), version, approve("q1"), at(0), at(30));
    let fence = claim.await.unwrap().fence;
    store
        .save(key("run"), fence, running("on"), at(30))
        .await
        .unwrap();
    store
        .suspend(key("run"), fence, waiting("hi", "q2"), at(0))
        .await
        .unwrap();
    let record = asking(&["q2"]).await.unwrap();
    assert_eq!(record.asked, [question("q1"), question("q2")]);
    assert_eq!(asking(&["q1"]).await.unwrap(), record);

    let claim = store.claim(key("run"), record.version, approve("q2"), at(0), at(30));
    let fence = claim.await.unwrap().fence;
    store.end(key("run"), fence, at(10)).await.unwrap();
    assert_eq!(asking(&["q1"]).await.unwrap().status, RunStatus::Ended);
}

async fn tenants_and_threads_are_isolated<S: Store>(store: S) {
    suspended(&store, "run", "q").await;
    let thread = || ThreadId::new("thread");
    let other = RunKey::new(tenant("other"), thread(), RunId::new("run"));
    assert_eq!(code(store.get(other.clone()).await), "run_not_found");
    let asking = store
        .asking(tenant("other"), thread(), vec![question("q")])
        .await;
    assert_eq!(code(asking), "run_not_found");
    let asking = store
        .asking(tenant("acme"), ThreadId::new("t"), vec![question("q")])
        .await;
    assert_eq!(code(asking), "run_not_found");
    assert!(
        store
            .of_thread(tenant("other"), thread(), None, 9)
            .await
            .unwrap()
            .is_empty()
    );
    // The parts of a key are not concatenated.
    let odd = RunKey::new(tenant("acmethread"), ThreadId::new(""), RunId::new("run"));
    assert_eq!(code(store.get(odd).await), "run_not_found");
    RunStore::begin(&store, other, client("run"), running("hi"), at(30))
        .await
        .unwrap();
}

async fn the_runs_of_a_thread_are_listed_oldest_first<S: Store>(store: S) {
    begin_as(&store, "driven", "1").await.unwrap();
    let begun = RunStore::begin(&store, key("late"), client("2"), running("hi"), at(9));
    begun.await.unwrap();
    for run in ["b", "c", "a"] {
        suspended(&store, run, run).await;
    }
    let fence = RunStore::begin(&store, key("over"), client("over"), running("hi"), at(30))
        .await
        .unwrap();
    store.end(key("over"), fence, at(0)).await.unwrap();
    let listed = async |message: Option<&'static str>, limit| {
        let (thread, message) = (ThreadId::new("thread"), message.map(MessageId::new));
        let found = store.of_thread(tenant("acme"), thread, message, limit);
        let found = found.await.unwrap();
        found
            .iter()
            .map(|run| (run.key.run.to_string(), run.is_driven(at(10))))
            .collect::<Vec<_>>()
    };
    // Waiting runs first, then running runs by the end of their leases.
    let all = [
        ("b", false),
        ("c", false),
        ("a", false),
        ("late", false),
        ("driven", true),
    ];
    let all = all.map(|(run, driven)| (run.to_owned(), driven));
    assert_eq!(listed(None, 9).await, all);
    assert_eq!(listed(Some("m"), usize::MAX).await, all);
    assert_eq!(listed(None, 2).await, all[..2]);
    assert_eq!(listed(None, 0).await, all[..0]);
    assert_eq!(listed(Some("other"), 9).await, all[..0]);
}

async fn abandoned_runs_are_those_with_an_expired_lease<S: Store>(store: S) {
    for (run, until) in [("late", 50), ("soon", 20), ("long", 900)] {
        RunStore::begin(&store, key(run), client(run), running("hi"), at(until))
            .await
            .unwrap();
    }
    suspended(&store, "waits", "q").await;
    let fence = RunStore::begin(&store, key("over"), client("over"), running("hi"), at(1))
        .await
        .unwrap();
    store.end(key("over"), fence, at(2)).await.unwrap();
    let found = async |now, limit| {
        let found = store.abandoned(now, limit).await.unwrap();
        found
            .iter()
            .map(|record| record.key.run.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(found(at(19), 9).await, [""; 0]);
    assert_eq!(found(at(20), 9).await, ["soon"]);
    assert_eq!(found(at(60), 9).await, ["soon", "late"]);
    assert_eq!(found(at(60), 1).await, ["soon"]);
    assert_eq!(found(at(60), 0).await, [""; 0]);
}

async fn ended_runs_are_removed_after_their_retention<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), at(0), at(30));
    let fence = claim.await.unwrap().fence;
    store.end(key("run"), fence, at(10)).await.unwrap();
    store.forget(at(1009)).await;
    store.get(key("run")).await.unwrap();
    store.forget(at(1010)).await;
    assert_eq!(code(store.get(key("run")).await), "run_not_found");
    let asking = store
        .asking(tenant("acme"), ThreadId::new("thread"), vec![question("q")])
        .await;
    assert_eq!(code(asking), "run_not_found");
    // A waiting run is kept.
    suspended(&store, "waits", "q").await;
    store.forget(at(1_000_000)).await;
    store.get(key("waits")).await.unwrap();
    // The end of another run also removes expired runs.
    let fence = RunStore::begin(&store, key("a"), client("a"), running("hi"), at(30))
        .await
        .unwrap();
    store.end(key("a"), fence, at(2000)).await.unwrap();
    let fence = RunStore::begin(&store, key("b"), client("b"), running("hi"), at(30))
        .await
        .unwrap();
    store.end(key("b"), fence, at(9000)).await.unwrap();
    assert_eq!(code(store.get(key("a")).await), "run_not_found");
    store.get(key("b")).await.unwrap();
}

async fn runs_that_wait_too_long_are_ended<S: Store>(store: S) {
    let version = suspended(&store, "asks", "q").await;
    let begin =
        |run, until| RunStore::begin(&store, key(run), client(run), running("hi"), at(until));
    begin("left", 2).await.unwrap();
    begin("driven", 9_000_000).await.unwrap();
    let asks_again = suspended(&store, "again", "p").await;
    let claim = store.claim(key("again"), asks_again, vec![], at(0), at(30));
    let fence = claim.await.unwrap().fence;
    let state = waiting("hi", "p");
    store
        .suspend(key("again"), fence, state, at(1))
        .await
        .unwrap();

    let states = async |now| {
        store.forget(at(now)).await;
        let mut states = Vec::new();
        for run in ["asks", "again", "left", "driven"] {
            states.push(match store.get(key(run)).await {
                Ok(record) => Some(record.status),
                Err(error) => {
                    assert_eq!(error.code(), "run_not_found");
                    None
                }
            });
        }
        states
    };
    let [runs, waits, over] = [
        Some(RunStatus::Running),
        Some(RunStatus::Suspended),
        Some(RunStatus::Ended),
    ];
    assert_eq!(states(1_999_999).await, [waits, waits, runs, runs]);
    assert_eq!(states(2_000_000).await, [over, waits, runs, runs]);
    assert_eq!(states(2_000_001).await, [over, over, runs, runs]);
    assert_eq!(states(2_000_002).await, [over, over, over, runs]);

    // A late reply fails as it does for any ended run, for as long as the run is kept.
    let asking = || {
        let thread = ThreadId::new("thread");
        store.asking(tenant("acme"), thread, vec![question("q")])
    };
    let record = asking().await.unwrap();
    assert_eq!(record.status, RunStatus::Ended);
    assert!(record.version > version);
    let now = at(2_000_003);
    let claim = store.claim(key("asks"), record.version, approve("q"), now, now);
    assert_eq!(code(claim.await), "run_ended");
    assert_eq!(states(2_000_999).await, [over, over, over, runs]);
    assert_eq!(states(2_001_000).await, [None, over, over, runs]);
    assert_eq!(code(asking().await), "run_not_found");
}

#[tokio::test]
async fn an_overdue_run_is_neither_claimed_nor_counted() {
    async fn overdue<S: Store>(store: S) {
        let version = suspended(&store, "first", "q").await;
        let claim = |at_seconds| {
            let replies = approve("q");
            store.claim(key("first"), version, replies, at(at_seconds), at(9_000))
        };
        let late = claim(1_000).await;
        assert!(matches!(late, Err(StoreError::Ended)), "{late:?}");
        // It is the one run that may wait.
        let begin = RunStore::begin(
            &store,
            key("second"),
            client("second"),
            running("hi"),
            at(2_000),
        );
        let second = begin.await.unwrap();
        let wait = |now| store.suspend(key("second"), second, waiting("hi", "r"), now);
        let early = wait(at(500)).await;
        assert!(matches!(early, Err(StoreError::TooManyWaiting { .. })));
        wait(at(1_000)).await.unwrap();
        let late = claim(500).await;
        assert!(matches!(late, Err(StoreError::Ended)), "{late:?}");
    }
    let options = Options::new()
        .keep_waiting(Duration::from_secs(900))
        .max_waiting_per_thread(1);
    overdue(MemoryStore::with_options(options)).await;
    #[cfg(feature = "sqlite")]
    overdue(SqliteStore::open_in_memory_with(options).unwrap()).await;
}

#[tokio::test]
async fn a_run_may_wait_without_limit() {
    async fn waits_on<S: Store>(store: S) {
        suspended(&store, "run", "q").await;
        store.forget(at(1 << 32)).await;
        let record = store.get(key("run")).await.unwrap();
        assert_eq!(record.status, RunStatus::Suspended);
    }
    let options = Options::new().keep_waiting(Duration::MAX);
    waits_on(MemoryStore::with_options(options)).await;
    #[cfg(feature = "sqlite")]
    waits_on(SqliteStore::open_in_memory_with(options).unwrap()).await;
}

async fn a_reused_key_gets_new_versions_and_fences<S: Store>(store: S) {
    let old = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    store.end(key("run"), old, at(0)).await.unwrap();
    store.forget(at(9999)).await;
    let new = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    assert!(new > old);
    assert!(store.get(key("run")).await.unwrap().version > version);
    assert_eq!(code(store.end(key("run"), old, at(0)).await), "stale_claim");
}

/// The cause of [`StoreError::Unwritable`].
fn fault(error: &StoreError) -> &Fault {
    match error {
        StoreError::Unwritable(error) => error.downcast_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn a_state_over_the_size_limit_is_not_written<S: Store>(store: S) {
    let large = || running(&"x".repeat(100_000));
    let error = RunStore::begin(&store, key("run"), client("run"), large(), at(30))
        .await
        .unwrap_err();
    assert!(
        matches!(fault(&error), Fault::TooLarge { max: 100_000, .. }),
        "{error:?}"
    );
    assert_eq!(code(store.get(key("run")).await), "run_not_found");
    let fence = RunStore::begin(&store, key("other"), client("other"), running("hi"), at(30));
    let fence = fence.await.unwrap();
    let save = store.save(key("other"), fence, large(), at(60)).await;
    assert_eq!(code(save), "unwritable");
    let suspend = store.suspend(key("other"), fence, large(), at(60)).await;
    assert_eq!(code(suspend), "unwritable");
    assert_eq!(store.get(key("other")).await.unwrap().state, running("hi"));
    let version = suspended(&store, "run", "q").await;
    let replies = vec![Reply::answer(question("q"), "x".repeat(100_000))];
    let claim = store
        .claim(key("run"), version, replies, at(0), at(30))
        .await
        .unwrap_err();
    assert!(matches!(fault(&claim), Fault::TooLarge { .. }), "{claim:?}");
    store
        .claim(key("run"), version, vec![], at(0), at(30))
        .await
        .unwrap();
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

async fn a_state_nested_too_deeply_is_not_written<S: Store>(store: S) {
    let version = suspended(&store, "run", "q").await;
    let claim = |levels| {
        let replies = vec![Reply::answer(question("q"), nested(levels))];
        store.claim(key("run"), version, replies, at(0), at(30))
    };
    let error = claim(127).await.unwrap_err();
    assert!(matches!(fault(&error), Fault::TooDeep), "{error:?}");
    claim(120).await.unwrap();
    store.get(key("run")).await.unwrap();
}

fn effect(name: &'static str) -> EffectKey {
    EffectKey::new(tenant("acme"), name)
}

fn intent(claim: Option<RunClaim>) -> Intent {
    let mut intent = Intent::new(
        "refund".into(),
        "{}".into(),
        &concentric_core::Context::new(),
    );
    intent.claim = claim;
    intent
}

async fn an_effect_begins_once<S: Store>(store: S) {
    let begin = |name| Ledger::begin(&store, effect(name), intent(None));
    assert_eq!(begin("e").await.unwrap(), Effect::New);
    assert_eq!(begin("e").await.unwrap(), Effect::Begun);
    let outcome = ToolOutcome::done("paid").with_data(json!({"n": 1}));
    store.finish(effect("e"), outcome.clone()).await.unwrap();
    assert_eq!(begin("e").await.unwrap(), Effect::Done(Box::new(outcome)));
    assert_eq!(begin("other").await.unwrap(), Effect::New);
    let other = EffectKey::new(tenant("other"), "e");
    assert_eq!(
        Ledger::begin(&store, other, intent(None)).await.unwrap(),
        Effect::New
    );
}

async fn an_effect_requires_the_newest_claim<S: Store>(store: S) {
    let old = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    let claim = |fence| Some(RunClaim::new(key("run"), fence));
    let begin = |name, fence| Ledger::begin(&store, effect(name), intent(claim(fence)));
    assert_eq!(begin("a", old).await.unwrap(), Effect::New);
    let version = store.get(key("run")).await.unwrap().version;
    let new = store
        .claim(key("run"), version, vec![], at(30), at(60))
        .await
        .unwrap()
        .fence;
    assert_eq!(code(begin("b", old).await), "stale_claim");
    // An older claim does not get the outcome of a known effect either.
    assert_eq!(code(begin("a", old).await), "stale_claim");
    assert_eq!(begin("a", new).await.unwrap(), Effect::Begun);
    assert_eq!(begin("b", new).await.unwrap(), Effect::New);
    // The outcome of an effect is recorded even if its claim was superseded.
    store
        .finish(effect("a"), ToolOutcome::done("paid"))
        .await
        .unwrap();
    assert!(matches!(begin("a", new).await.unwrap(), Effect::Done(_)));
    store
        .suspend(key("run"), new, waiting("hi", "q"), at(0))
        .await
        .unwrap();
    assert_eq!(code(begin("c", new).await), "stale_claim");
    let none = RunClaim::new(key("none"), new);
    let begin = Ledger::begin(&store, effect("d"), intent(Some(none))).await;
    assert_eq!(code(begin), "stale_claim");
}

async fn the_first_outcome_of_an_effect_stays<S: Store>(store: S) {
    Ledger::begin(&store, effect("e"), intent(None))
        .await
        .unwrap();
    let first = ToolOutcome::done("paid");
    store.finish(effect("e"), first.clone()).await.unwrap();
    store
        .finish(effect("e"), ToolOutcome::failed("no"))
        .await
        .unwrap();
    let known = Ledger::begin(&store, effect("e"), intent(None))
        .await
        .unwrap();
    assert_eq!(known, Effect::Done(Box::new(first)));
    let finish = store.finish(effect("none"), ToolOutcome::done("")).await;
    assert_eq!(code(finish), "run_not_found");
}

async fn a_success_replaces_a_failure_of_a_repeatable_effect<S: Store>(store: S) {
    let [failed, done] = [ToolOutcome::failed("busy"), ToolOutcome::done("paid")];
    let later = [ToolOutcome::failed("again"), ToolOutcome::denied("no")];
    for (name, repeatable, last) in [("a", true, &done), ("b", false, &failed)] {
        let intent = || intent(None).repeatable(repeatable);
        Ledger::begin(&store, effect(name), intent()).await.unwrap();
        let finish = async |outcome: &ToolOutcome| {
            let finished = store.finish(effect(name), outcome.clone()).await;
            finished.unwrap();
            store.known(effect(name)).await.unwrap()
        };
        let known = |outcome: &ToolOutcome| Effect::Done(Box::new(outcome.clone()));
        assert_eq!(finish(&failed).await, known(&failed));
        for outcome in &later {
            assert_eq!(finish(outcome).await, known(&failed));
        }
        let begun = Ledger::begin(&store, effect(name), intent()).await;
        assert_eq!(begun.unwrap(), known(&failed));
        assert_eq!(finish(&done).await, known(last));
        assert_eq!(finish(&failed).await, known(last));
    }
}

async fn an_effect_with_another_tool_or_arguments_is_rejected<S: Store>(store: S) {
    let begin = |tool: &'static str, arguments: &'static str| {
        let context = concentric_core::Context::new();
        let intent = Intent::new(tool.into(), arguments.into(), &context);
        Ledger::begin(&store, effect("e"), intent)
    };
    let arguments = r#"{"to":"ann","n":1}"#;
    assert_eq!(begin("pay", arguments).await.unwrap(), Effect::New);
    assert_eq!(begin("pay", arguments).await.unwrap(), Effect::Begun);
    // The same arguments, formatted differently.
    let same = begin("pay", r#"{ "n": 1, "to": "ann" }"#).await;
    assert_eq!(same.unwrap(), Effect::Begun);
    for (tool, arguments) in [
        ("refund", arguments),
        ("pay", r#"{"to":"bob","n":1}"#),
        ("pay", r#"{"to":"ann","n":1.0}"#),
        ("pay", "{}"),
        ("pay", "not json"),
    ] {
        assert_eq!(code(begin(tool, arguments).await), "effect_mismatch");
    }
    let done = store.finish(effect("e"), ToolOutcome::done("paid"));
    done.await.unwrap();
    assert_eq!(code(begin("pay", "{}").await), "effect_mismatch");
}

async fn an_effect_without_an_outcome_is_retracted<S: Store>(store: S) {
    let begin = || Ledger::begin(&store, effect("e"), intent(None));
    // Retracting an unknown effect is no error.
    store.retract(effect("e")).await.unwrap();
    assert_eq!(begin().await.unwrap(), Effect::New);
    store.retract(effect("other")).await.unwrap();
    assert_eq!(begin().await.unwrap(), Effect::Begun);
    store.retract(effect("e")).await.unwrap();
    assert_eq!(store.known(effect("e")).await.unwrap(), Effect::New);
    assert_eq!(begin().await.unwrap(), Effect::New);
    let done = ToolOutcome::done("paid");
    store.finish(effect("e"), done.clone()).await.unwrap();
    store.retract(effect("e")).await.unwrap();
    assert_eq!(begin().await.unwrap(), Effect::Done(Box::new(done)));
}

async fn effects_are_removed_with_their_run<S: Store>(store: S) {
    let fence = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    let claim = Some(RunClaim::new(key("run"), fence));
    Ledger::begin(&store, effect("e"), intent(claim))
        .await
        .unwrap();
    store.forget(at(900_000)).await;
    let known = async || {
        Ledger::begin(&store, effect("e"), intent(None))
            .await
            .unwrap()
    };
    assert_eq!(known().await, Effect::Begun);
    store.end(key("run"), fence, at(10)).await.unwrap();
    store.forget(at(1009)).await;
    assert_eq!(known().await, Effect::Begun);
    store.forget(at(1010)).await;
    assert_eq!(known().await, Effect::New);
}

async fn effects_without_a_run_are_removed_after_their_retention<S: Store>(store: S) {
    let known = async || {
        Ledger::begin(&store, effect("e"), intent(None))
            .await
            .unwrap()
    };
    assert_eq!(known().await, Effect::New);
    // The first purge starts the retention time.
    store.forget(at(5000)).await;
    store.forget(at(6999)).await;
    assert_eq!(known().await, Effect::Begun);
    store.forget(at(7000)).await;
    assert_eq!(known().await, Effect::New);
}

async fn a_key_is_used_once<S: Store>(store: S) {
    let once = |of, key: &'static str| store.once(tenant(of), key.into(), at(100));
    assert!(once("acme", "k").await.unwrap());
    assert!(!once("acme", "k").await.unwrap());
    assert!(once("acme", "k2").await.unwrap());
    assert!(once("other", "k").await.unwrap());
    store.forget(at(99)).await;
    assert!(!once("acme", "k").await.unwrap());
    store.forget(at(100)).await;
    assert!(once("acme", "k").await.unwrap());
}

async fn recently_used_keys_are_kept_after_their_time<S: Store>(store: S) {
    let once = |key: &'static str| store.once(tenant("acme"), key.into(), at(100));
    for key in ["1", "2", "3", "4"] {
        assert!(once(key).await.unwrap());
    }
    // The clock is set ahead and back again.
    for _ in 0..3 {
        store.forget(at(1_000_000_000)).await;
        assert!(!once("3").await.unwrap());
        assert!(!once("4").await.unwrap());
    }
    assert!(once("1").await.unwrap());
}

fn decision(tool: &'static str, span: Span, allow: bool) -> Remembered {
    let (tool, definition) = (Str::from(tool), Str::from("d1"));
    Remembered::new(
        tenant("acme"),
        tool,
        definition,
        None,
        span,
        allow,
        None,
        at(0),
    )
}

fn in_run(thread: Option<&str>, run: &str) -> Span {
    Span::Run {
        thread: thread.map(ThreadId::new),
        run: RunId::new(run),
    }
}

async fn a_decision_applies_within_its_span<S: Store>(store: S) {
    let in_run = decision("refund", in_run(Some("t"), "r"), true);
    let in_thread = decision("refund", Span::Thread(ThreadId::new("t")), false);
    let always = decision("refund", Span::Always, true);
    let other = decision("search", Span::Always, true);
    for decision in [&in_run, &in_thread, &always, &other] {
        store.remember(decision.clone()).await.unwrap();
    }
    let recall = async |of: &'static str, run, thread: Option<&str>| {
        let thread = thread.map(ThreadId::new);
        let recall = store.recall(tenant(of), "refund".into(), RunId::new(run), thread);
        recall.await.unwrap()
    };
    let all = [always.clone(), in_thread.clone(), in_run.clone()];
    assert_eq!(recall("acme", "r", Some("t")).await, all);
    assert_eq!(
        recall("acme", "r", None).await,
        std::slice::from_ref(&always)
    );
    assert_eq!(
        recall("acme", "x", Some("t")).await,
        [always.clone(), in_thread]
    );
    assert_eq!(recall("acme", "t", Some("r")).await, [always]);
    assert_eq!(recall("other", "r", Some("t")).await, []);
    assert_eq!(store.list(tenant("acme")).await.unwrap().len(), 4);
    assert_eq!(store.list(tenant("acme")).await.unwrap()[0], other);
}

async fn a_run_decision_does_not_apply_in_another_thread<S: Store>(store: S) {
    let spans = [
        in_run(Some("a/b"), "c"),
        in_run(Some("a"), "b/c"),
        in_run(Some("a"), "c"),
        in_run(None, "c"),
    ];
    for span in &spans {
        let decision = decision("refund", span.clone(), true);
        store.remember(decision).await.unwrap();
    }
    for span in &spans {
        let Span::Run { thread, run } = span else {
            panic!("{span:?}")
        };
        let recall = store.recall(tenant("acme"), "refund".into(), run.clone(), thread.clone());
        let recalled = recall.await.unwrap();
        assert_eq!(recalled, [decision("refund", span.clone(), true)]);
    }
    let elsewhere = Some(ThreadId::new("other"));
    let recall = store.recall(tenant("acme"), "refund".into(), RunId::new("c"), elsewhere);
    assert_eq!(recall.await.unwrap(), []);
}

async fn a_decision_replaces_one_for_the_same_calls<S: Store>(store: S) {
    store
        .remember(decision("refund", Span::Always, true))
        .await
        .unwrap();
    store
        .remember(decision("search", Span::Always, true))
        .await
        .unwrap();
    let now = decision("refund", Span::Always, false);
    store.remember(now.clone()).await.unwrap();
    let all = store.list(tenant("acme")).await.unwrap();
    assert_eq!(all, [now, decision("search", Span::Always, true)]);
}

async fn a_decision_is_revoked<S: Store>(store: S) {
    let decision = decision("refund", Span::Always, true);
    store.remember(decision.clone()).await.unwrap();
    let revoke = |of: Tenant| store.revoke(of, decision.id.clone());
    assert!(!revoke(tenant("other")).await.unwrap());
    assert!(revoke(tenant("acme")).await.unwrap());
    assert!(!revoke(tenant("acme")).await.unwrap());
    assert_eq!(store.list(tenant("acme")).await.unwrap(), []);
}

async fn decisions_for_a_run_are_removed_with_it<S: Store>(store: S) {
    let fence = RunStore::begin(&store, key("run"), client("run"), running("hi"), at(30))
        .await
        .unwrap();
    let always = decision("refund", Span::Always, true);
    let elsewhere = decision("refund", in_run(Some("other"), "run"), true);
    let here = decision("refund", in_run(Some("thread"), "run"), true);
    for decision in [&always, &elsewhere, &here] {
        store.remember(decision.clone()).await.unwrap();
    }
    store.end(key("run"), fence, at(0)).await.unwrap();
    store.forget(at(1000)).await;
    let all = store.list(tenant("acme")).await.unwrap();
    assert_eq!(all, [elsewhere, always]);
}
