//! What the stores keep, and for how long.

use super::*;

suite! {
    ended_runs_are_removed_after_their_retention
    runs_that_wait_too_long_are_ended
    an_overdue_run_is_neither_claimed_nor_counted
    an_overdue_run_is_not_taken_over
    a_quarantined_run_is_ended_when_it_is_overdue
    withdrawn_runs_neither_count_nor_stay
    a_reused_key_gets_new_versions_and_fences
    effects_are_removed_with_their_run
    effects_without_a_run_are_removed_after_their_retention
    a_used_key_may_be_used_again_after_its_time
    recently_used_keys_are_kept_after_their_time
    decisions_for_a_run_are_removed_with_it
    deleted_runs_are_remembered_for_an_hour
}

async fn deleted_runs_are_remembered_for_an_hour<S: Store>(store: S, clock: ManualClock) {
    let begin = async |run: &str| {
        let begun = RunStore::begin(
            &store,
            key(run),
            client(run),
            running("hi").into(),
            secs(30),
        );
        begun.await.unwrap()
    };
    let thread = || ThreadId::new("thread");
    let append = async |run: &str, fence| {
        let mut change = ThreadChange::default();
        change.ends = Some((RunClaim::new(key(run), fence), Ok(Outcome::Completed)));
        store.append(tenant("acme"), thread(), 0, change).await
    };
    // Its process can't be about to append the turn of a run that ended an hour ago.
    let over = begin("over").await;
    store
        .end(key("over"), over, Ok(Outcome::Completed))
        .await
        .unwrap();
    set(&clock, 3_600);
    let driven = begin("driven").await;
    assert!(!store.delete(tenant("acme"), thread()).await.unwrap());
    append("over", over).await.unwrap();
    assert!(store.delete(tenant("acme"), thread()).await.unwrap());
    expire(&store, &clock, 7_199).await;
    assert_eq!(code(append("driven", driven).await), "run_not_found");
    expire(&store, &clock, 7_200).await;
    append("driven", driven).await.unwrap();
}

async fn ended_runs_are_removed_after_their_retention<S: Store>(store: S, clock: ManualClock) {
    let record = suspended(&store, "run", "q").await;
    let claim = store.claim(record, approve("q"), secs(30));
    let fence = claim.await.unwrap().fence;
    set(&clock, 10);
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    expire(&store, &clock, 1009).await;
    let completed = Some(Ok(Outcome::Completed));
    assert_eq!(store.get(key("run")).await.unwrap().outcome, completed);
    let thread = || ThreadId::new("thread");
    let of_client = || store.find_by_client_id(tenant("acme"), thread(), client("run"));
    assert_eq!(of_client().await.unwrap().outcome, completed);
    expire(&store, &clock, 1010).await;
    assert_eq!(code(store.get(key("run")).await), "run_not_found");
    assert_eq!(code(of_client().await), "run_not_found");
    let asking = store
        .find_by_interrupt(tenant("acme"), ThreadId::new("thread"), vec![question("q")])
        .await;
    assert_eq!(code(asking), "run_not_found");
    // A waiting run is kept.
    suspended(&store, "waits", "q").await;
    expire(&store, &clock, 1_000_000).await;
    store.get(key("waits")).await.unwrap();
    // The end of another run also removes expired runs.
    set(&clock, 1_002_000);
    let fence = RunStore::begin(
        &store,
        key("a"),
        client("a"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    store
        .end(key("a"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    let fence = RunStore::begin(
        &store,
        key("b"),
        client("b"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    set(&clock, 1_009_000);
    store
        .end(key("b"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    assert_eq!(code(store.get(key("a")).await), "run_not_found");
    store.get(key("b")).await.unwrap();
}

async fn runs_that_wait_too_long_are_ended<S: Store>(store: S, clock: ManualClock) {
    let version = suspended(&store, "asks", "q").await.version;
    let begin = |run, until| {
        RunStore::begin(
            &store,
            key(run),
            client(run),
            running("hi").into(),
            secs(until),
        )
    };
    begin("left", 2).await.unwrap();
    begin("driven", 9_000_000).await.unwrap();
    let asks_again = suspended(&store, "again", "p").await;
    let claim = store.claim(asks_again, vec![], secs(30));
    let fence = claim.await.unwrap().fence;
    let state = waiting("hi", "p");
    set(&clock, 1);
    store
        .suspend(key("again"), fence, state.into())
        .await
        .unwrap();

    let states = async |now| {
        expire(&store, &clock, now).await;
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
    let [runs, left, waits, over] = [
        Some(RunStatus::Running),
        Some(RunStatus::Abandoned),
        Some(RunStatus::Suspended),
        Some(RunStatus::Ended),
    ];
    assert_eq!(states(1_999_999).await, [waits, waits, left, runs]);
    assert_eq!(states(2_000_000).await, [over, waits, left, runs]);
    assert_eq!(states(2_000_001).await, [over, over, left, runs]);
    assert_eq!(states(2_000_002).await, [over, over, over, runs]);

    // A late reply fails as it does for any ended run, for as long as the run is kept.
    let asking = || {
        let thread = ThreadId::new("thread");
        store.find_by_interrupt(tenant("acme"), thread, vec![question("q")])
    };
    let record = asking().await.unwrap();
    assert_eq!(record.status, RunStatus::Ended);
    let expired = Outcome::Aborted {
        reason: CancelReason::Other("expired".into()),
    };
    for run in ["asks", "again", "left"] {
        let outcome = store.get(key(run)).await.unwrap().outcome;
        assert_eq!(outcome, Some(Ok(expired.clone())), "{run}");
    }
    assert!(record.version > version);
    set(&clock, 2_000_003);
    let claim = store.claim(record, approve("q"), secs(30));
    assert_eq!(code(claim.await), "run_ended");
    assert_eq!(states(2_000_999).await, [over, over, over, runs]);
    assert_eq!(states(2_001_000).await, [None, over, over, runs]);
    assert_eq!(code(asking().await), "run_not_found");
}

async fn an_overdue_run_is_neither_claimed_nor_counted<S: Store>(store: S, clock: ManualClock) {
    let record = suspended(&store, "first", "q").await;
    for run in ["b", "c"] {
        suspended(&store, run, run).await;
    }
    let claim = |now| {
        set(&clock, now);
        store.claim(record.clone(), approve("q"), secs(8_000))
    };
    assert_eq!(code(claim(2_000_000).await), "run_ended");
    // The three runs are all that may wait.
    set(&clock, 0);
    let begin = RunStore::begin(
        &store,
        key("second"),
        client("second"),
        running("hi").into(),
        secs(3_000_000),
    );
    let second = begin.await.unwrap();
    let wait = |now| {
        set(&clock, now);
        store.suspend(key("second"), second, waiting("hi", "r").into())
    };
    assert_eq!(code(wait(1_999_999).await), "too_many_waiting");
    wait(2_000_000).await.unwrap();
    assert_eq!(code(claim(500).await), "run_ended");
}

async fn an_overdue_run_is_not_taken_over<S: Store>(store: S, clock: ManualClock) {
    for (run, lease) in [("early", 0), ("late", 1)] {
        let begun = RunStore::begin(
            &store,
            key(run),
            client(run),
            running("hi").into(),
            secs(lease),
        );
        begun.await.unwrap();
    }
    set(&clock, 2_000_000);
    let record = store.get(key("early")).await.unwrap();
    let claim = store.claim(record, vec![], secs(30));
    assert_eq!(code(claim.await), "run_ended");
    let claimed = store.claim_abandoned(9, secs(30)).await.unwrap();
    let claimed: Vec<_> = claimed.into_iter().map(|record| record.key).collect();
    assert_eq!(claimed, [key("late")]);
    expire(&store, &clock, 2_000_000).await;
    let status = store.get(key("early")).await.unwrap().status;
    assert_eq!(status, RunStatus::Ended);
}

async fn a_quarantined_run_is_ended_when_it_is_overdue<S: Store>(store: S, clock: ManualClock) {
    let begun = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(10),
    );
    begun.await.unwrap();
    for n in 1..=u64::from(MAX_TAKEOVERS) {
        set(&clock, n * 10);
        assert_eq!(store.claim_abandoned(1, secs(10)).await.unwrap().len(), 1);
    }
    let status = async || store.get(key("run")).await.unwrap().status;
    let live = async || {
        let live = store.is_live(tenant("acme"), ThreadId::new("thread"), client("run"));
        live.await.unwrap()
    };
    // Its last lease ends at 60 s.
    expire(&store, &clock, 2_000_059).await;
    assert_eq!(
        (status().await, live().await),
        (RunStatus::Quarantined, true)
    );
    expire(&store, &clock, 2_000_060).await;
    assert_eq!((status().await, live().await), (RunStatus::Ended, false));
    assert!(!store.release(key("run")).await.unwrap());
}

async fn withdrawn_runs_neither_count_nor_stay<S: Store>(store: S, clock: ManualClock) {
    let withdraw = |of, thread| store.withdraw(tenant(of), ThreadId::new(thread));
    let status = async |run| store.get(key(run)).await.unwrap().status;
    for run in ["1", "2", "3"] {
        suspended(&store, run, run).await;
    }
    wait_in(&store, "other", "1").await.unwrap();
    let record = store.get(key("3")).await.unwrap();
    let claim = store.claim(record, approve("3"), secs(60));
    let fence = claim.await.unwrap().fence;
    let begun = RunStore::begin(
        &store,
        key("4"),
        client("4"),
        running("hi").into(),
        secs(60),
    );
    begun.await.unwrap();

    set(&clock, 40);
    assert_eq!(withdraw("nobody", "thread").await.unwrap(), 0);
    assert_eq!(withdraw("acme", "none").await.unwrap(), 0);
    assert_eq!(withdraw("acme", "thread").await.unwrap(), 2);
    assert_eq!(withdraw("acme", "thread").await.unwrap(), 0);
    assert_eq!(status("1").await, RunStatus::Ended);
    assert_eq!(status("2").await, RunStatus::Ended);
    // A running run is not withdrawn, even if it has waited before.
    assert_eq!(status("3").await, RunStatus::Running);
    assert_eq!(status("4").await, RunStatus::Running);
    let others = store.list_by_thread(tenant("acme"), ThreadId::new("other"), None, 9);
    assert_eq!(others.await.unwrap()[0].status, RunStatus::Suspended);
    let state = waiting("hi", "again");
    store.suspend(key("3"), fence, state.into()).await.unwrap();

    // Withdrawn runs no longer count, and are removed like other ended runs.
    wait_in(&store, "thread", "5").await.unwrap();
    wait_in(&store, "thread", "6").await.unwrap();
    expire(&store, &clock, 1039).await;
    assert_eq!(status("1").await, RunStatus::Ended);
    expire(&store, &clock, 1040).await;
    for run in ["1", "2"] {
        assert_eq!(code(store.get(key(run)).await), "run_not_found");
        let asking =
            store.find_by_interrupt(tenant("acme"), ThreadId::new("thread"), vec![question(run)]);
        assert_eq!(code(asking.await), "run_not_found");
    }
}

async fn a_reused_key_gets_new_versions_and_fences<S: Store>(store: S, clock: ManualClock) {
    let old = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    store
        .end(key("run"), old, Ok(Outcome::Completed))
        .await
        .unwrap();
    expire(&store, &clock, 9999).await;
    let new = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    assert!(new > old);
    assert!(store.get(key("run")).await.unwrap().version > version);
    assert_eq!(
        code(store.end(key("run"), old, Ok(Outcome::Completed)).await),
        "stale_claim"
    );
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

async fn effects_are_removed_with_their_run<S: Store>(store: S, clock: ManualClock) {
    let fence = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    let claim = Some(RunClaim::new(key("run"), fence));
    Ledger::begin(&store, effect("e"), intent(claim))
        .await
        .unwrap();
    expire(&store, &clock, 900_000).await;
    let known = async || {
        Ledger::begin(&store, effect("e"), intent(None))
            .await
            .unwrap()
    };
    assert_eq!(known().await, LedgerEntry::Started);
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    expire(&store, &clock, 900_999).await;
    assert_eq!(known().await, LedgerEntry::Started);
    expire(&store, &clock, 901_000).await;
    assert_eq!(known().await, LedgerEntry::New);
}

async fn effects_without_a_run_are_removed_after_their_retention<S: Store>(
    store: S,
    clock: ManualClock,
) {
    let known = async || {
        Ledger::begin(&store, effect("e"), intent(None))
            .await
            .unwrap()
    };
    assert_eq!(known().await, LedgerEntry::New);
    // The first purge starts the retention time.
    expire(&store, &clock, 5000).await;
    expire(&store, &clock, 6999).await;
    assert_eq!(known().await, LedgerEntry::Started);
    expire(&store, &clock, 7000).await;
    assert_eq!(known().await, LedgerEntry::New);
}

async fn a_used_key_may_be_used_again_after_its_time<S: Store>(store: S, clock: ManualClock) {
    let once = |of, key: &'static str| store.once(tenant(of), key.into(), secs(100));
    assert!(once("acme", "k").await.unwrap());
    assert!(!once("acme", "k").await.unwrap());
    assert!(once("acme", "k2").await.unwrap());
    assert!(once("acme", "k3").await.unwrap());
    assert!(once("other", "k").await.unwrap());
    expire(&store, &clock, 99).await;
    assert!(!once("acme", "k").await.unwrap());
    expire(&store, &clock, 100).await;
    assert!(once("acme", "k").await.unwrap());
}

async fn recently_used_keys_are_kept_after_their_time<S: Store>(store: S, clock: ManualClock) {
    let once = |key: &'static str| store.once(tenant("acme"), key.into(), secs(100));
    for key in ["1", "2", "3", "4"] {
        assert!(once(key).await.unwrap());
    }
    // The clock is set ahead and back again.
    for _ in 0..3 {
        expire(&store, &clock, 1_000_000_000).await;
        assert!(!once("3").await.unwrap());
        assert!(!once("4").await.unwrap());
    }
    assert!(once("1").await.unwrap());
}

fn decision(tool: &'static str, span: StoredScope, allow: bool) -> StoredDecision {
    let (tool, definition) = (Str::from(tool), Str::from("d1"));
    StoredDecision::new(
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

fn in_run(thread: Option<&str>, run: &str) -> StoredScope {
    StoredScope::Run {
        thread: thread.map(ThreadId::new),
        run: RunId::new(run),
    }
}

async fn decisions_for_a_run_are_removed_with_it<S: Store>(store: S, clock: ManualClock) {
    let fence = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    let always = decision("refund", StoredScope::Always, true);
    let elsewhere = decision("refund", in_run(Some("other"), "run"), true);
    let here = decision("refund", in_run(Some("thread"), "run"), true);
    for decision in [&always, &elsewhere, &here] {
        store.remember(decision.clone()).await.unwrap();
    }
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    expire(&store, &clock, 1000).await;
    let all = store.list(tenant("acme")).await.unwrap();
    assert_eq!(all, [elsewhere, always]);
}
