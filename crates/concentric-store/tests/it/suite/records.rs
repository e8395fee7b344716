use super::*;

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
}

async fn a_key_identifies_one_run<S: Store>(store: S, _: ManualClock) {
    let begin = || {
        RunStore::begin(
            &store,
            key("run"),
            client("run"),
            running("hi").into(),
            secs(30),
        )
    };
    assert!(begin().await.unwrap() > 0);
    assert_eq!(code(begin().await), "run_exists");
}

async fn an_unknown_run_is_not_found<S: Store>(store: S, _: ManualClock) {
    let state = || running("hi");
    let none = key("none");
    assert_eq!(code(store.get(none.clone()).await), "run_not_found");
    let claim = store.claim(none.clone(), 1, vec![], secs(30)).await;
    assert_eq!(code(claim), "run_not_found");
    assert_eq!(
        code(store.save(none.clone(), 1, state().into(), secs(30)).await),
        "run_not_found"
    );
    assert_eq!(
        code(store.renew(none.clone(), 1, secs(30)).await),
        "run_not_found"
    );
    assert_eq!(
        code(store.suspend(none.clone(), 1, state().into()).await),
        "run_not_found"
    );
    assert_eq!(code(store.end(none, 1).await), "run_not_found");
    assert!(
        store
            .claim_abandoned(10, secs(30))
            .await
            .unwrap()
            .is_empty()
    );
}

async fn writes_are_visible_to_reads<S: Store>(store: S, _: ManualClock) {
    let fence = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("1").into(),
        secs(30),
    )
    .await
    .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!((record.status, record.fence), (RunStatus::Running, fence));
    assert_eq!(record.lease_until, at(30));
    assert_eq!(record.state, running("1"));
    let begun = record.version;

    store
        .save(key("run"), fence, running("2").into(), secs(60))
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!((record.state, record.lease_until), (running("2"), at(60)));
    assert!(record.version > begun);

    let renewed = store.renew(key("run"), fence, secs(90)).await;
    assert_eq!(renewed.unwrap(), Renewed::Held);
    assert_eq!(store.get(key("run")).await.unwrap().lease_until, at(90));

    store
        .suspend(key("run"), fence, waiting("3", "q").into())
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Suspended);
    assert_eq!(record.state, waiting("3", "q"));
    assert_eq!(record.asked, [question("q")]);
}

async fn a_running_run_is_claimed_only_after_its_lease<S: Store>(store: S, clock: ManualClock) {
    let fence = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    let version = store.get(key("run")).await.unwrap().version;
    let claim = |now| {
        set(&clock, now);
        store.claim(key("run"), version, vec![], secs(60))
    };
    assert_eq!(code(claim(29).await), "already_resumed");
    let record = claim(30).await.unwrap();
    assert!(record.fence > fence);
    assert_eq!(record.status, RunStatus::Running);
    assert_eq!(record, store.get(key("run")).await.unwrap());
}

async fn a_suspended_run_is_claimed_once<S: Store>(store: S, _: ManualClock) {
    let version = suspended(&store, "run", "q").await;
    let claim = || store.claim(key("run"), version, approve("q"), secs(30));
    let record = claim().await.unwrap();
    assert_eq!(record.replies, approve("q"));
    assert_eq!(record, store.get(key("run")).await.unwrap());
    assert_eq!(code(claim().await), "already_resumed");
}

async fn a_claim_of_an_older_version_fails<S: Store>(store: S, _: ManualClock) {
    let version = suspended(&store, "run", "q").await;
    let claim = |version| store.claim(key("run"), version, vec![], secs(30));
    assert_eq!(code(claim(version - 1).await), "already_resumed");
    assert_eq!(code(claim(version + 1).await), "already_resumed");
    claim(version).await.unwrap();
}

async fn replies_are_kept_until_the_next_state<S: Store>(store: S, _: ManualClock) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), secs(30));
    let fence = claim.await.unwrap().fence;
    let renewed = store.renew(key("run"), fence, secs(60)).await;
    assert_eq!(renewed.unwrap(), Renewed::Held);
    assert_eq!(store.get(key("run")).await.unwrap().replies, approve("q"));
    store
        .save(key("run"), fence, running("on").into(), secs(60))
        .await
        .unwrap();
    assert!(store.get(key("run")).await.unwrap().replies.is_empty());
}

async fn accepted_replies_are_not_replaced<S: Store>(store: S, clock: ManualClock) {
    let version = suspended(&store, "run", "q").await;
    let claim = store.claim(key("run"), version, approve("q"), secs(30));
    let version = claim.await.unwrap().version;
    // The process that holds the claim dies.
    let denied = vec![Reply::deny(question("q"), "no")];
    set(&clock, 30);
    let record = store
        .claim(key("run"), version, denied, secs(30))
        .await
        .unwrap();
    assert_eq!(record.replies, approve("q"));
    // The time of the first claim counts, not that of the later ones.
    assert_eq!(record.replied_at, Some(at(0)));
}

// Case F047.
async fn writes_with_an_older_fence_are_rejected<S: Store>(store: S, clock: ManualClock) {
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
    set(&clock, 30);
    let new = store
        .claim(key("run"), version, vec![], secs(30))
        .await
        .unwrap();
    let state = || running("zombie");
    assert_eq!(
        code(store.save(key("run"), old, state().into(), secs(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.renew(key("run"), old, secs(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.suspend(key("run"), old, state().into()).await),
        "stale_claim"
    );
    assert_eq!(code(store.end(key("run"), old).await), "stale_claim");
    // A future fence is rejected as well.
    assert_eq!(
        code(store.renew(key("run"), new.fence + 1, secs(90)).await),
        "stale_claim"
    );
    assert_eq!(store.get(key("run")).await.unwrap(), new);
    // The same holds after the run has ended.
    store.end(key("run"), new.fence).await.unwrap();
    assert_eq!(
        code(store.save(key("run"), old, state().into(), secs(90)).await),
        "stale_claim"
    );
    assert_eq!(code(store.end(key("run"), old).await), "stale_claim");
}

async fn writes_with_a_released_claim_are_rejected<S: Store>(store: S, _: ManualClock) {
    let fence = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    store
        .suspend(key("run"), fence, waiting("hi", "q").into())
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    let state = || running("on");
    assert_eq!(
        code(
            store
                .save(key("run"), fence, state().into(), secs(90))
                .await
        ),
        "stale_claim"
    );
    assert_eq!(
        code(store.renew(key("run"), fence, secs(90)).await),
        "stale_claim"
    );
    assert_eq!(
        code(store.suspend(key("run"), fence, state().into()).await),
        "stale_claim"
    );
    assert_eq!(code(store.end(key("run"), fence).await), "stale_claim");
    assert_eq!(store.get(key("run")).await.unwrap(), record);
}

async fn an_ended_run_stays_ended<S: Store>(store: S, clock: ManualClock) {
    let fence = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    store.end(key("run"), fence).await.unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Ended);
    set(&clock, 99);
    let claim = store
        .claim(key("run"), record.version, vec![], secs(21))
        .await;
    assert_eq!(code(claim), "run_ended");
    assert_eq!(
        code(
            store
                .save(key("run"), fence, running("on").into(), secs(90))
                .await
        ),
        "run_ended"
    );
    assert_eq!(
        code(store.renew(key("run"), fence, secs(90)).await),
        "run_ended"
    );
    assert_eq!(
        code(store.suspend(key("run"), fence, running("on").into()).await),
        "run_ended"
    );
    // Ending it again is no error and changes nothing.
    store.end(key("run"), fence).await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap(), record);
    let begin = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await;
    assert_eq!(code(begin), "run_exists");
}
