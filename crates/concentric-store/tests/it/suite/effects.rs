use super::*;

suite! {
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

async fn an_effect_begins_once<S: Store>(store: S, _: ManualClock) {
    let begin = |name| Ledger::begin(&store, effect(name), intent(None));
    assert_eq!(begin("e").await.unwrap(), LedgerEntry::New);
    assert_eq!(begin("e").await.unwrap(), LedgerEntry::Started);
    let outcome = ToolOutcome::done("paid").with_data(json!({"n": 1}));
    store.finish(effect("e"), outcome.clone()).await.unwrap();
    assert_eq!(
        begin("e").await.unwrap(),
        LedgerEntry::Finished(Box::new(outcome))
    );
    assert_eq!(begin("other").await.unwrap(), LedgerEntry::New);
    let other = EffectKey::new(tenant("other"), "e");
    assert_eq!(
        Ledger::begin(&store, other, intent(None)).await.unwrap(),
        LedgerEntry::New
    );
}

async fn an_effect_requires_the_newest_claim<S: Store>(store: S, clock: ManualClock) {
    let old = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap();
    let claim = |fence| Some(RunClaim::new(key("run"), fence));
    let begin = |name, fence| Ledger::begin(&store, effect(name), intent(claim(fence)));
    assert_eq!(begin("a", old).await.unwrap(), LedgerEntry::New);
    let version = store.get(key("run")).await.unwrap().version;
    set(&clock, 30);
    let new = store
        .claim(key("run"), version, vec![], secs(30))
        .await
        .unwrap()
        .fence;
    assert_eq!(code(begin("b", old).await), "stale_claim");
    // An older claim does not get the outcome of a known effect either.
    assert_eq!(code(begin("a", old).await), "stale_claim");
    assert_eq!(begin("a", new).await.unwrap(), LedgerEntry::Started);
    assert_eq!(begin("b", new).await.unwrap(), LedgerEntry::New);
    // The outcome of an effect is recorded even if its claim was superseded.
    store
        .finish(effect("a"), ToolOutcome::done("paid"))
        .await
        .unwrap();
    assert!(matches!(
        begin("a", new).await.unwrap(),
        LedgerEntry::Finished(_)
    ));
    store
        .suspend(key("run"), new, waiting("hi", "q").into())
        .await
        .unwrap();
    assert_eq!(code(begin("c", new).await), "stale_claim");
    let none = RunClaim::new(key("none"), new);
    let begin = Ledger::begin(&store, effect("d"), intent(Some(none))).await;
    assert_eq!(code(begin), "stale_claim");
}

async fn the_first_outcome_of_an_effect_stays<S: Store>(store: S, _: ManualClock) {
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
    assert_eq!(known, LedgerEntry::Finished(Box::new(first)));
    let finish = store.finish(effect("none"), ToolOutcome::done("")).await;
    assert_eq!(code(finish), "run_not_found");
}

async fn a_success_replaces_a_failure_of_a_repeatable_effect<S: Store>(store: S, _: ManualClock) {
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
        let known = |outcome: &ToolOutcome| LedgerEntry::Finished(Box::new(outcome.clone()));
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

async fn an_effect_with_another_tool_or_arguments_is_rejected<S: Store>(store: S, _: ManualClock) {
    let begin = |tool: &'static str, arguments: &'static str| {
        let context = concentric_core::Context::new();
        let intent = Intent::new(tool.into(), arguments.into(), &context);
        Ledger::begin(&store, effect("e"), intent)
    };
    let arguments = r#"{"to":"ann","n":1}"#;
    assert_eq!(begin("pay", arguments).await.unwrap(), LedgerEntry::New);
    assert_eq!(begin("pay", arguments).await.unwrap(), LedgerEntry::Started);
    // The same arguments, formatted differently.
    let same = begin("pay", r#"{ "n": 1, "to": "ann" }"#).await;
    assert_eq!(same.unwrap(), LedgerEntry::Started);
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

async fn an_effect_without_an_outcome_is_retracted<S: Store>(store: S, _: ManualClock) {
    let begin = || Ledger::begin(&store, effect("e"), intent(None));
    // Retracting an unknown effect is no error.
    store.retract(effect("e")).await.unwrap();
    assert_eq!(begin().await.unwrap(), LedgerEntry::New);
    store.retract(effect("other")).await.unwrap();
    assert_eq!(begin().await.unwrap(), LedgerEntry::Started);
    store.retract(effect("e")).await.unwrap();
    assert_eq!(store.known(effect("e")).await.unwrap(), LedgerEntry::New);
    assert_eq!(begin().await.unwrap(), LedgerEntry::New);
    let done = ToolOutcome::done("paid");
    store.finish(effect("e"), done.clone()).await.unwrap();
    store.retract(effect("e")).await.unwrap();
    assert_eq!(
        begin().await.unwrap(),
        LedgerEntry::Finished(Box::new(done))
    );
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
    store.end(key("run"), fence).await.unwrap();
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

async fn a_key_is_used_once<S: Store>(store: S, clock: ManualClock) {
    let once = |of, key: &'static str| store.once(tenant(of), key.into(), secs(100));
    assert!(once("acme", "k").await.unwrap());
    assert!(!once("acme", "k").await.unwrap());
    assert!(once("acme", "k2").await.unwrap());
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
