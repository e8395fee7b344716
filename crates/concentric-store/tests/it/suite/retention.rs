use super::*;

suite! {
    a_run_is_found_by_each_of_its_interrupts
    tenants_and_threads_are_isolated
    the_runs_of_a_thread_are_listed_oldest_first
    abandoned_runs_are_those_with_an_expired_lease
    ended_runs_are_removed_after_their_retention
    runs_that_wait_too_long_are_ended
    a_reused_key_gets_new_versions_and_fences
}

async fn a_run_is_found_by_each_of_its_interrupts<S: Store>(store: S, _: ManualClock) {
    let version = suspended(&store, "run", "q1").await;
    let asking = |ids: &[&str]| {
        let ids = ids.iter().map(|id| question(id)).collect();
        store.find_by_interrupt(tenant("acme"), ThreadId::new("thread"), ids)
    };
    assert_eq!(asking(&["q1"]).await.unwrap().key, key("run"));
    assert_eq!(asking(&["other", "q1"]).await.unwrap().key, key("run"));
    assert_eq!(code(asking(&["other"]).await), "run_not_found");
    assert_eq!(code(asking(&[]).await), "run_not_found");

    let claim = store.claim(key("run"), version, approve("q1"), secs(30));
    let fence = claim.await.unwrap().fence;
    store
        .save(key("run"), fence, running("on").into(), secs(30))
        .await
        .unwrap();
    store
        .suspend(key("run"), fence, waiting("hi", "q2").into())
        .await
        .unwrap();
    let record = asking(&["q2"]).await.unwrap();
    assert_eq!(record.asked, [question("q1"), question("q2")]);
    assert_eq!(asking(&["q1"]).await.unwrap(), record);

    let claim = store.claim(key("run"), record.version, approve("q2"), secs(30));
    let fence = claim.await.unwrap().fence;
    store.end(key("run"), fence).await.unwrap();
    assert_eq!(asking(&["q1"]).await.unwrap().status, RunStatus::Ended);
}

async fn tenants_and_threads_are_isolated<S: Store>(store: S, _: ManualClock) {
    suspended(&store, "run", "q").await;
    let thread = || ThreadId::new("thread");
    let other = RunKey::new(tenant("other"), thread(), RunId::new("run"));
    assert_eq!(code(store.get(other.clone()).await), "run_not_found");
    let asking = store
        .find_by_interrupt(tenant("other"), thread(), vec![question("q")])
        .await;
    assert_eq!(code(asking), "run_not_found");
    let asking = store
        .find_by_interrupt(tenant("acme"), ThreadId::new("t"), vec![question("q")])
        .await;
    assert_eq!(code(asking), "run_not_found");
    assert!(
        store
            .list_by_thread(tenant("other"), thread(), None, 9)
            .await
            .unwrap()
            .is_empty()
    );
    // The parts of a key are not concatenated.
    let odd = RunKey::new(tenant("acmethread"), ThreadId::new(""), RunId::new("run"));
    assert_eq!(code(store.get(odd).await), "run_not_found");
    RunStore::begin(&store, other, client("run"), running("hi").into(), secs(30))
        .await
        .unwrap();
}

async fn the_runs_of_a_thread_are_listed_oldest_first<S: Store>(store: S, clock: ManualClock) {
    begin_as(&store, "driven", "1").await.unwrap();
    let begun = RunStore::begin(
        &store,
        key("late"),
        client("2"),
        running("hi").into(),
        secs(9),
    );
    begun.await.unwrap();
    for run in ["b", "c", "a"] {
        suspended(&store, run, run).await;
    }
    let fence = RunStore::begin(
        &store,
        key("over"),
        client("over"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    store.end(key("over"), fence).await.unwrap();
    set(&clock, 10);
    let listed = async |message: Option<&'static str>, limit| {
        let (thread, message) = (ThreadId::new("thread"), message.map(MessageId::new));
        let found = store.list_by_thread(tenant("acme"), thread, message, limit);
        let found = found.await.unwrap();
        found
            .iter()
            .map(|run| (run.key.run.to_string(), run.status == RunStatus::Running))
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

async fn abandoned_runs_are_those_with_an_expired_lease<S: Store>(store: S, clock: ManualClock) {
    for (run, until) in [("late", 50), ("soon", 20), ("long", 900)] {
        RunStore::begin(
            &store,
            key(run),
            client(run),
            running("hi").into(),
            secs(until),
        )
        .await
        .unwrap();
    }
    suspended(&store, "waits", "q").await;
    let fence = RunStore::begin(
        &store,
        key("over"),
        client("over"),
        running("hi").into(),
        secs(1),
    )
    .await
    .unwrap();
    store.end(key("over"), fence).await.unwrap();
    // A lease of zero, so that the runs stay abandoned.
    let found = async |now, limit| {
        set(&clock, now);
        let found = store.claim_abandoned(limit, Duration::ZERO).await.unwrap();
        found
            .iter()
            .map(|record| record.key.run.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(found(19, 9).await, [""; 0]);
    assert_eq!(found(20, 9).await, ["soon"]);
    assert_eq!(found(60, 0).await, [""; 0]);
    assert_eq!(found(60, 1).await, ["soon"]);
    assert_eq!(found(61, usize::MAX).await, ["late", "soon"]);
}

async fn ended_runs_are_removed_after_their_retention<S: Store>(store: S, clock: ManualClock) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), secs(30));
    let fence = claim.await.unwrap().fence;
    set(&clock, 10);
    store.end(key("run"), fence).await.unwrap();
    expire(&store, &clock, 1009).await;
    store.get(key("run")).await.unwrap();
    expire(&store, &clock, 1010).await;
    assert_eq!(code(store.get(key("run")).await), "run_not_found");
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
    store.end(key("a"), fence).await.unwrap();
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
    store.end(key("b"), fence).await.unwrap();
    assert_eq!(code(store.get(key("a")).await), "run_not_found");
    store.get(key("b")).await.unwrap();
}

async fn runs_that_wait_too_long_are_ended<S: Store>(store: S, clock: ManualClock) {
    let version = suspended(&store, "asks", "q").await;
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
    let claim = store.claim(key("again"), asks_again, vec![], secs(30));
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
    assert!(record.version > version);
    set(&clock, 2_000_003);
    let claim = store.claim(key("asks"), record.version, approve("q"), secs(30));
    assert_eq!(code(claim.await), "run_ended");
    assert_eq!(states(2_000_999).await, [over, over, over, runs]);
    assert_eq!(states(2_001_000).await, [None, over, over, runs]);
    assert_eq!(code(asking().await), "run_not_found");
}

#[tokio::test]
async fn an_overdue_run_is_neither_claimed_nor_counted() {
    async fn overdue<S: Store>(store: S, clock: ManualClock) {
        let version = suspended(&store, "first", "q").await;
        let claim = |now| {
            set(&clock, now);
            store.claim(key("first"), version, approve("q"), secs(8_000))
        };
        let late = claim(1_000).await;
        assert!(matches!(late, Err(StoreError::Ended)), "{late:?}");
        // It is the one run that may wait.
        let begin = RunStore::begin(
            &store,
            key("second"),
            client("second"),
            running("hi").into(),
            secs(2_000),
        );
        let second = begin.await.unwrap();
        let wait = |now| {
            set(&clock, now);
            store.suspend(key("second"), second, waiting("hi", "r").into())
        };
        let early = wait(500).await;
        assert!(matches!(early, Err(StoreError::TooManyWaiting { .. })));
        wait(1_000).await.unwrap();
        let late = claim(500).await;
        assert!(matches!(late, Err(StoreError::Ended)), "{late:?}");
    }
    let options = |clock: &ManualClock| {
        Options::new()
            .clock(clock.clone())
            .keep_waiting(Duration::from_secs(900))
            .max_waiting_per_thread(1)
    };
    let time = clock();
    overdue(MemoryStore::with_options(options(&time)), time).await;
    #[cfg(feature = "sqlite")]
    {
        let time = clock();
        let store = SqliteStore::open_in_memory_with(options(&time)).unwrap();
        overdue(store, time).await;
    }
    #[cfg(feature = "postgres")]
    {
        let time = clock();
        let store = crate::common::postgres::store(options(&time)).await;
        if let Some((store, _schema)) = store {
            overdue(store, time).await;
        }
    }
}

#[tokio::test]
async fn a_run_may_wait_without_limit() {
    async fn waits_on<S: Store>(store: S, clock: ManualClock) {
        suspended(&store, "run", "q").await;
        expire(&store, &clock, 1 << 32).await;
        let record = store.get(key("run")).await.unwrap();
        assert_eq!(record.status, RunStatus::Suspended);
    }
    let time = clock();
    let options = Options::new()
        .clock(time.clone())
        .keep_waiting(Duration::MAX);
    waits_on(MemoryStore::with_options(options.clone()), time.clone()).await;
    #[cfg(feature = "sqlite")]
    waits_on(
        SqliteStore::open_in_memory_with(options.clone()).unwrap(),
        time.clone(),
    )
    .await;
    #[cfg(feature = "postgres")]
    if let Some((store, _schema)) = crate::common::postgres::store(options.clone()).await {
        waits_on(store, time.clone()).await;
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
    store.end(key("run"), old).await.unwrap();
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
    assert_eq!(code(store.end(key("run"), old).await), "stale_claim");
}
