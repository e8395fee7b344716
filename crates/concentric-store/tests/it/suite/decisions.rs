use super::*;

suite! {
    a_decision_applies_within_its_span
    a_run_decision_does_not_apply_in_another_thread
    a_decision_replaces_one_for_the_same_calls
    a_decision_is_revoked
    decisions_for_a_run_are_removed_with_it
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

async fn a_decision_applies_within_its_span<S: Store>(store: S, _: ManualClock) {
    let in_run = decision("refund", in_run(Some("t"), "r"), true);
    let in_thread = decision("refund", StoredScope::Thread(ThreadId::new("t")), false);
    let always = decision("refund", StoredScope::Always, true);
    let in_session = decision("refund", StoredScope::Session(ThreadId::new("s")), true);
    let other = decision("search", StoredScope::Always, true);
    for decision in [&in_run, &in_thread, &in_session, &always, &other] {
        store.remember(decision.clone()).await.unwrap();
    }
    let recall = async |of: &'static str, run, thread: Option<&str>| {
        let thread = thread.map(ThreadId::new);
        let recall = store.recall(tenant(of), "refund".into(), RunId::new(run), thread, None);
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
    assert_eq!(
        recall("acme", "t", Some("r")).await,
        std::slice::from_ref(&always)
    );
    assert_eq!(recall("other", "r", Some("t")).await, []);
    for (session, expected) in [("s", vec![always.clone(), in_session]), ("t", vec![always])] {
        let session = Some(ThreadId::new(session));
        let run = RunId::new("");
        let thread = Some(ThreadId::new("s"));
        let recall = store.recall(tenant("acme"), "refund".into(), run, thread, session);
        assert_eq!(recall.await.unwrap(), expected);
    }
    assert_eq!(store.list(tenant("acme")).await.unwrap().len(), 5);
    assert_eq!(store.list(tenant("acme")).await.unwrap()[0], other);
}

async fn a_run_decision_does_not_apply_in_another_thread<S: Store>(store: S, _: ManualClock) {
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
        let StoredScope::Run { thread, run } = span else {
            panic!("{span:?}")
        };
        let recall = store.recall(
            tenant("acme"),
            "refund".into(),
            run.clone(),
            thread.clone(),
            None,
        );
        let recalled = recall.await.unwrap();
        assert_eq!(recalled, [decision("refund", span.clone(), true)]);
    }
    let elsewhere = Some(ThreadId::new("other"));
    let recall = store.recall(
        tenant("acme"),
        "refund".into(),
        RunId::new("c"),
        elsewhere,
        None,
    );
    assert_eq!(recall.await.unwrap(), []);
}

async fn a_decision_replaces_one_for_the_same_calls<S: Store>(store: S, _: ManualClock) {
    store
        .remember(decision("refund", StoredScope::Always, true))
        .await
        .unwrap();
    store
        .remember(decision("search", StoredScope::Always, true))
        .await
        .unwrap();
    let now = decision("refund", StoredScope::Always, false);
    store.remember(now.clone()).await.unwrap();
    let all = store.list(tenant("acme")).await.unwrap();
    assert_eq!(all, [now, decision("search", StoredScope::Always, true)]);
}

async fn a_decision_is_revoked<S: Store>(store: S, _: ManualClock) {
    let decision = decision("refund", StoredScope::Always, true);
    store.remember(decision.clone()).await.unwrap();
    let revoke = |of: Tenant| store.revoke(of, decision.id.clone());
    assert!(!revoke(tenant("other")).await.unwrap());
    assert!(revoke(tenant("acme")).await.unwrap());
    assert!(!revoke(tenant("acme")).await.unwrap());
    assert_eq!(store.list(tenant("acme")).await.unwrap(), []);
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
    store.end(key("run"), fence).await.unwrap();
    expire(&store, &clock, 1000).await;
    let all = store.list(tenant("acme")).await.unwrap();
    assert_eq!(all, [elsewhere, always]);
}
