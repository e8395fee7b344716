use super::*;

suite! {
    a_state_over_the_size_limit_is_not_written
    a_state_nested_too_deeply_is_not_written
}

/// The cause of [`StoreError::Unwritable`].
fn fault(error: &StoreError) -> &Fault {
    match error {
        StoreError::Unwritable(error) => error.downcast_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn a_state_over_the_size_limit_is_not_written<S: Store>(store: S, _: ManualClock) {
    let large = || running(&"x".repeat(100_000));
    let error = RunStore::begin(&store, key("run"), client("run"), large().into(), secs(30))
        .await
        .unwrap_err();
    assert!(
        matches!(fault(&error), Fault::TooLarge { max: 100_000, .. }),
        "{error:?}"
    );
    assert_eq!(code(store.get(key("run")).await), "run_not_found");
    let fence = RunStore::begin(
        &store,
        key("other"),
        client("other"),
        running("hi").into(),
        secs(30),
    );
    let fence = fence.await.unwrap();
    let save = store
        .save(key("other"), fence, large().into(), secs(60))
        .await;
    assert_eq!(code(save), "unwritable");
    let suspend = store.suspend(key("other"), fence, large().into()).await;
    assert_eq!(code(suspend), "unwritable");
    assert_eq!(store.get(key("other")).await.unwrap().state, running("hi"));
    let version = suspended(&store, "run", "q").await;
    let replies = vec![Reply::answer(question("q"), "x".repeat(100_000))];
    let claim = store
        .claim(key("run"), version, replies, secs(30))
        .await
        .unwrap_err();
    assert!(matches!(fault(&claim), Fault::TooLarge { .. }), "{claim:?}");
    store
        .claim(key("run"), version, vec![], secs(30))
        .await
        .unwrap();
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

async fn a_state_nested_too_deeply_is_not_written<S: Store>(store: S, _: ManualClock) {
    let version = suspended(&store, "run", "q").await;
    let claim = |levels| {
        let replies = vec![Reply::answer(question("q"), nested(levels))];
        store.claim(key("run"), version, replies, secs(30))
    };
    let error = claim(127).await.unwrap_err();
    assert!(matches!(fault(&error), Fault::TooDeep), "{error:?}");
    claim(120).await.unwrap();
    store.get(key("run")).await.unwrap();
}
