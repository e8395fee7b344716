//! The limits of the stores.

use super::*;
use concentric_core::{
    Turn,
    state::{SlotPlace, StoredSlot},
    store::{CacheKey, CacheStore, Memory, StoredThread, ThreadChange},
};

suite! {
    a_state_over_the_size_limit_is_not_written
    a_state_nested_too_deeply_is_not_written
    waiting_runs_are_limited
    quarantined_runs_do_not_hide_an_abandoned_one
    a_conversation_over_the_size_limit_is_not_written
    an_owner_keeps_the_newest_thousand_memories
    a_large_memory_is_not_written
    the_cache_keeps_the_entries_that_expire_last
    a_large_value_is_not_cached
    the_newest_memory_is_the_first_of_equal_matches
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
    let record = suspended(&store, "run", "q").await;
    let replies = vec![Reply::answer(question("q"), "x".repeat(100_000))];
    let claim = store
        .claim(record.clone(), replies, secs(30))
        .await
        .unwrap_err();
    assert!(matches!(fault(&claim), Fault::TooLarge { .. }), "{claim:?}");
    store.claim(record, vec![], secs(30)).await.unwrap();
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

async fn a_state_nested_too_deeply_is_not_written<S: Store>(store: S, _: ManualClock) {
    let record = suspended(&store, "run", "q").await;
    let claim = |levels| {
        let replies = vec![Reply::answer(question("q"), nested(levels))];
        store.claim(record.clone(), replies, secs(30))
    };
    let error = claim(127).await.unwrap_err();
    assert!(matches!(fault(&error), Fault::TooDeep), "{error:?}");
    claim(120).await.unwrap();
    store.get(key("run")).await.unwrap();
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
    let record = store.get(key("1")).await.unwrap();
    let claim = store.claim(record, approve("1"), secs(30));
    let fence = claim.await.unwrap().fence;
    assert_eq!(
        code(wait_in(&store, "thread", "8").await),
        "too_many_waiting"
    );
    let state = waiting("hi", "again");
    store.suspend(key("1"), fence, state.into()).await.unwrap();

    // Its end lets another run wait.
    let record = store.get(key("1")).await.unwrap();
    let claim = store.claim(record, approve("again"), secs(30));
    let fence = claim.await.unwrap().fence;
    store
        .end(key("1"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    wait_in(&store, "thread", "9").await.unwrap();
}

fn id(thread: &str) -> ThreadId {
    ThreadId::new(thread)
}

fn turns(texts: &[&str]) -> Vec<Turn> {
    texts
        .iter()
        .map(|text| Turn::user(String::from(*text)))
        .collect()
}

/// A change that appends messages after `keep` turns.
fn add(keep: usize, texts: &[&str]) -> ThreadChange {
    let mut change = ThreadChange::default();
    change.keep = keep;
    change.turns = turns(texts);
    change
}

fn slot(name: &'static str, value: Value) -> StoredSlot {
    StoredSlot::new(name, 1, value, SlotPlace::Whole)
}

async fn append<S: Store>(
    store: &S,
    thread: &str,
    version: u64,
    change: ThreadChange,
) -> Result<u64, StoreError> {
    store
        .append(tenant("acme"), id(thread), version, change)
        .await
}

async fn load<S: Store>(store: &S, thread: &str) -> Option<StoredThread> {
    store.load(tenant("acme"), id(thread)).await.unwrap()
}

async fn quarantined_runs_do_not_hide_an_abandoned_one<S: Store>(store: S, _: ManualClock) {
    const QUARANTINED: usize = 260;
    let begin = async |run: &str| {
        let change = running("hi").into();
        let begun = RunStore::begin(&store, key(run), client(run), change, Duration::ZERO);
        begun.await.unwrap()
    };
    for n in 0..QUARANTINED {
        begin(&n.to_string()).await;
    }
    for _ in 0..MAX_TAKEOVERS {
        let claimed = store.claim_abandoned(QUARANTINED, Duration::ZERO).await;
        assert_eq!(claimed.unwrap().len(), QUARANTINED);
    }
    begin("abandoned").await;
    // A call may leave runs to the next one, which does not examine the same quarantined ones again.
    for _ in 0..3 {
        let claimed = store.claim_abandoned(1, Duration::ZERO).await.unwrap();
        if let [record] = &*claimed {
            assert_eq!(record.key, key("abandoned"));
            return;
        }
        assert!(claimed.is_empty());
    }
    panic!("the abandoned run was not claimed");
}

async fn a_conversation_over_the_size_limit_is_not_written<S: Store>(store: S, _: ManualClock) {
    let large = "x".repeat(60_000);
    let version = append(&store, "t", 0, add(0, &[&large])).await.unwrap();
    let over = append(&store, "t", version, add(1, &[&large])).await;
    assert_eq!(code(over), "unwritable");
    let huge = "x".repeat(4 << 20);
    assert_eq!(
        code(append(&store, "u", 0, add(0, &[&huge])).await),
        "unwritable"
    );
    assert!(load(&store, "u").await.is_none());
    let mut change = add(1, &[]);
    change.slots = vec![slot("s", json!(huge))];
    assert_eq!(
        code(append(&store, "t", version, change).await),
        "unwritable"
    );
    assert_eq!(load(&store, "t").await.unwrap().version, version);
    // What is replaced does not count.
    append(&store, "t", version, add(0, &[&large, "y"]))
        .await
        .unwrap();
}

async fn put<S: Memories>(store: &S, owner: &'static str, id: &str, text: &str, seconds: u64) {
    let memory = Memory::new(id.to_owned(), text.to_owned(), at(seconds));
    store
        .put(tenant("acme"), owner.into(), memory)
        .await
        .unwrap();
}

/// The ids of the found memories.
async fn found<S: Memories>(
    store: &S,
    owner: &'static str,
    query: &'static str,
    limit: usize,
) -> String {
    let found = store
        .search(tenant("acme"), owner.into(), query.into(), limit)
        .await;
    let ids: Vec<_> = found
        .unwrap()
        .into_iter()
        .map(|memory| memory.id.to_string())
        .collect();
    ids.join(" ")
}

async fn the_newest_memory_is_the_first_of_equal_matches<S: Store>(store: S, _: ManualClock) {
    put(&store, "ada", "a", "Ada likes green tea.", 1).await;
    put(&store, "ada", "b", "Ada lives in Zürich.", 2).await;
    put(&store, "ada", "c", "Ada likes her dog.", 3).await;
    for (query, limit, expected) in [
        ("Which TEA?", 9, "a"),
        ("ZÜRICH", 9, "b"),
        // The newest first, and rare words before common ones.
        ("ada", 9, "c b a"),
        ("likes tea", 9, "a c"),
        ("ada", 2, "c b"),
        ("ada", 0, ""),
        ("coffee", 9, ""),
        ("", 9, ""),
        ("\" OR 1=1; --", 9, ""),
    ] {
        assert_eq!(
            found(&store, "ada", query, limit).await,
            expected,
            "{query}"
        );
    }
}

async fn an_owner_keeps_the_newest_thousand_memories<S: Store>(store: S, _: ManualClock) {
    for n in 0..1_010 {
        put(&store, "ada", &format!("{n}"), "tea", n).await;
    }
    let all = store.search(tenant("acme"), "ada".into(), "tea".into(), usize::MAX);
    let all = all.await.unwrap();
    assert_eq!(
        (all.len(), all[0].at, all[999].at),
        (1_000, at(1_009), at(10))
    );
}

async fn a_large_memory_is_not_written<S: Store>(store: S, _: ManualClock) {
    for (bytes, is_written) in [(8 << 10, true), ((8 << 10) + 1, false), (4 << 20, false)] {
        let memory = Memory::new("a", "x".repeat(bytes), at(1));
        let written = store.put(tenant("acme"), "ada".into(), memory).await;
        assert_eq!(
            written.map_err(|error| error.code()).is_ok(),
            is_written,
            "{bytes}"
        );
    }
}

async fn cache<S: CacheStore>(store: &S, n: u8, bytes: usize, seconds: u64) -> &'static str {
    let key = CacheKey::new(tenant("acme"), None, "s", [n; 32]);
    let put = store.put_entry(key, vec![n; bytes], secs(seconds));
    put.await.map_or_else(|error| error.code(), |()| "ok")
}

/// The numbers of the cached entries.
async fn cached<S: CacheStore>(store: &S) -> Vec<u8> {
    let mut found = Vec::new();
    for n in 0..200 {
        let key = CacheKey::new(tenant("acme"), None, "s", [n; 32]);
        if store.get_entry(key).await.unwrap().is_some() {
            found.push(n);
        }
    }
    found
}

async fn the_cache_keeps_the_entries_that_expire_last<S: Store>(store: S, clock: ManualClock) {
    for n in 0..120 {
        assert_eq!(cache(&store, n, 1, 1000 - u64::from(n)).await, "ok");
    }
    expire(&store, &clock, 0).await;
    assert_eq!(cached(&store).await, (0..100).collect::<Vec<_>>());
    // Eight of these are within the number, but not within the bytes.
    let removed = store.remove_entries(tenant("acme"), None, None).await;
    assert_eq!(removed.unwrap(), 100);
    for n in 0..8 {
        assert_eq!(cache(&store, n, 1900, 1000 - u64::from(n)).await, "ok");
    }
    expire(&store, &clock, 0).await;
    assert_eq!(cached(&store).await, [0, 1, 2, 3, 4]);
    // One that replaces another counts once.
    assert_eq!(cache(&store, 0, 10, 1000).await, "ok");
    expire(&store, &clock, 0).await;
    assert_eq!(cached(&store).await, [0, 1, 2, 3, 4]);
}

async fn a_large_value_is_not_cached<S: Store>(store: S, _: ManualClock) {
    assert_eq!(cache(&store, 1, 2000, 60).await, "ok");
    assert_eq!(cache(&store, 2, 2001, 60).await, "unwritable");
    assert_eq!(cached(&store).await, [1]);
    let key = CacheKey::new(tenant("acme"), None, "s", [1; 32]);
    let error = store
        .put_entry(key, vec![0; 2001], secs(60))
        .await
        .unwrap_err();
    assert!(
        matches!(
            fault(&error),
            Fault::TooLarge {
                max: 2000,
                bytes: 2001
            }
        ),
        "{error:?}"
    );
    // The earlier one is kept.
    assert_eq!(cached(&store).await, [1]);
}
