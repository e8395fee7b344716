use super::*;

suite! {
    a_client_id_may_repeat_when_its_run_is_not_running
    a_client_id_of_a_live_run_is_rejected
    waiting_runs_are_limited
    waiting_runs_are_withdrawn_together
    a_withdrawn_run_cannot_be_claimed
    a_state_is_amended_only_while_the_run_is_claimable
    replies_to_further_interrupts_are_added_to_accepted_ones
}

async fn a_client_id_may_repeat_when_its_run_is_not_running<S: Store>(store: S, _: ManualClock) {
    let live = || store.is_live(tenant("acme"), ThreadId::new("thread"), client("r1"));
    assert!(!live().await.unwrap());
    let fence = begin_as(&store, "over", "r1").await.unwrap();
    assert_eq!(
        store.get(key("over")).await.unwrap().client_id,
        client("r1")
    );
    store.end(key("over"), fence).await.unwrap();
    assert!(!live().await.unwrap());
    let fence = begin_as(&store, "waits", "r1").await.unwrap();
    let state = waiting("hi", "q");
    store
        .suspend(key("waits"), fence, state.into())
        .await
        .unwrap();
    assert!(!live().await.unwrap());
    begin_as(&store, "third", "r1").await.unwrap();
    assert!(live().await.unwrap());
    for run in ["over", "waits", "third"] {
        assert_eq!(store.get(key(run)).await.unwrap().client_id, client("r1"));
    }
}

async fn a_client_id_of_a_live_run_is_rejected<S: Store>(store: S, _: ManualClock) {
    let fence = begin_as(&store, "first", "r1").await.unwrap();
    assert_eq!(code(begin_as(&store, "second", "r1").await), "run_live");
    assert_eq!(code(store.get(key("second")).await), "run_not_found");
    // Even after its lease has expired, since another process will resume it.
    let given_up = store.renew(key("first"), fence, secs(0)).await;
    assert_eq!(given_up.unwrap(), Renewed::Held);
    assert_eq!(code(begin_as(&store, "second", "r1").await), "run_live");
    begin_as(&store, "second", "r2").await.unwrap();
    // Client ids are scoped to a tenant and a conversation.
    for (of, thread) in [("other", "thread"), ("acme", "other")] {
        let live = store.is_live(tenant(of), ThreadId::new(thread), client("r1"));
        assert!(!live.await.unwrap());
        let key = RunKey::new(tenant(of), ThreadId::new(thread), RunId::new("x"));
        let begun = RunStore::begin(&store, key, client("r1"), running("hi").into(), secs(30));
        begun.await.unwrap();
    }
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

async fn waiting_runs_are_limited<S: Store>(store: S, _: ManualClock) {
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
    let claim = store.claim(key("1"), version, approve("1"), secs(30));
    let fence = claim.await.unwrap().fence;
    assert_eq!(
        code(wait_in(&store, "thread", "8").await),
        "too_many_waiting"
    );
    let state = waiting("hi", "again");
    store.suspend(key("1"), fence, state.into()).await.unwrap();

    // Its end lets another run wait.
    let version = store.get(key("1")).await.unwrap().version;
    let claim = store.claim(key("1"), version, approve("again"), secs(30));
    let fence = claim.await.unwrap().fence;
    store.end(key("1"), fence).await.unwrap();
    wait_in(&store, "thread", "9").await.unwrap();
}

async fn waiting_runs_are_withdrawn_together<S: Store>(store: S, clock: ManualClock) {
    let withdraw = |of, thread| store.withdraw(tenant(of), ThreadId::new(thread));
    let status = async |run| store.get(key(run)).await.unwrap().status;
    for run in ["1", "2", "3"] {
        suspended(&store, run, run).await;
    }
    wait_in(&store, "other", "1").await.unwrap();
    let version = store.get(key("3")).await.unwrap().version;
    let claim = store.claim(key("3"), version, approve("3"), secs(60));
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

async fn a_withdrawn_run_cannot_be_claimed<S: Store>(store: S, _: ManualClock) {
    let version = suspended(&store, "run", "q").await;
    let withdrawn = store
        .withdraw(tenant("acme"), ThreadId::new("thread"))
        .await;
    assert_eq!(withdrawn.unwrap(), 1);
    let newest = store.get(key("run")).await.unwrap().version;
    assert!(newest > version);
    for version in [version, newest] {
        let claim = store.claim(key("run"), version, approve("q"), secs(30));
        assert_eq!(code(claim.await), "run_ended");
    }
    let asking =
        store.find_by_interrupt(tenant("acme"), ThreadId::new("thread"), vec![question("q")]);
    let record = asking.await.unwrap();
    assert_eq!(record.status, RunStatus::Ended);
    assert!(record.replies.is_empty());
}

async fn a_state_is_amended_only_while_the_run_is_claimable<S: Store>(
    store: S,
    clock: ManualClock,
) {
    let amend = |version, said, now| {
        set(&clock, now);
        store.amend(key("run"), version, waiting(said, "q").into())
    };
    assert_eq!(code(amend(0, "2", 0).await), "run_not_found");
    let version = suspended(&store, "run", "q").await;
    let mut record = store.get(key("run")).await.unwrap();
    let newer = amend(version, "2", 0).await.unwrap();
    assert!(newer > version);
    record.version = newer;
    record.state = waiting("2", "q");
    assert_eq!(store.get(key("run")).await.unwrap(), record);
    assert_eq!(code(amend(version, "3", 0).await), "already_resumed");
    let claim = store.claim(key("run"), version, approve("q"), secs(30));
    assert_eq!(code(claim.await), "already_resumed");

    // The replies of an abandoned run stay.
    let claim = store.claim(key("run"), newer, approve("q"), secs(30));
    let mut record = claim.await.unwrap();
    assert_eq!(
        code(amend(record.version, "3", 29).await),
        "already_resumed"
    );
    record.version = amend(record.version, "3", 30).await.unwrap();
    record.state = waiting("3", "q");
    record.status = RunStatus::Abandoned;
    assert_eq!(record.replies, approve("q"));
    assert_eq!(store.get(key("run")).await.unwrap(), record);
    set(&clock, 30);
    let claim = store.claim(key("run"), record.version, vec![], secs(30));
    let fence = claim.await.unwrap().fence;
    store.end(key("run"), fence).await.unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    assert_eq!(code(amend(version, "4", 60).await), "run_ended");
}

async fn replies_to_further_interrupts_are_added_to_accepted_ones<S: Store>(
    store: S,
    clock: ManualClock,
) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), secs(30));
    let version = claim.await.unwrap().version;
    // The process that holds the claim dies, and so does the next one.
    let mut replies = vec![Reply::deny(question("q"), "no")];
    replies.extend(approve("p"));
    set(&clock, 30);
    let claim = store.claim(key("run"), version, replies, secs(30));
    let version = claim.await.unwrap().version;
    set(&clock, 60);
    let claim = store.claim(key("run"), version, vec![], secs(30));
    let record = claim.await.unwrap();
    assert_eq!(record.replies, [approve("q"), approve("p")].concat());
    assert_eq!(record.replied_at, Some(at(0)));
    assert_eq!(record, store.get(key("run")).await.unwrap());
}
