use super::*;
use concentric_core::store::Memory;

suite! {
    memories_are_found_by_their_words
    a_memory_replaces_one_with_the_same_id
    owners_and_tenants_do_not_share_memories
    memories_are_forgotten_one_by_one_or_all_at_once
    an_owner_keeps_the_newest_thousand_memories
    a_large_memory_is_not_written
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

async fn memories_are_found_by_their_words<S: Store>(store: S, _: ManualClock) {
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

async fn a_memory_replaces_one_with_the_same_id<S: Store>(store: S, _: ManualClock) {
    put(&store, "ada", "a", "tea", 1).await;
    put(&store, "ada", "a", "coffee", 2).await;
    assert_eq!(found(&store, "ada", "tea coffee", 9).await, "a");
    assert_eq!(found(&store, "ada", "tea", 9).await, "");
    let found = store.search(tenant("acme"), "ada".into(), "coffee".into(), 1);
    assert_eq!(found.await.unwrap(), [Memory::new("a", "coffee", at(2))]);
}

async fn owners_and_tenants_do_not_share_memories<S: Store>(store: S, _: ManualClock) {
    put(&store, "ada", "a", "tea", 1).await;
    assert_eq!(found(&store, "bob", "tea", 9).await, "");
    let other = store.search(tenant("other"), "ada".into(), "tea".into(), 9);
    assert_eq!(other.await.unwrap(), []);
    for (of, owner) in [(tenant("other"), "ada"), (tenant("acme"), "bob")] {
        assert_eq!(store.forget(of, owner.into(), None).await.unwrap(), 0);
    }
    assert_eq!(found(&store, "ada", "tea", 9).await, "a");
}

async fn memories_are_forgotten_one_by_one_or_all_at_once<S: Store>(store: S, _: ManualClock) {
    for id in ["a", "b", "c"] {
        put(&store, "ada", id, "tea", 1).await;
    }
    let forget = async |id: Option<Str>| {
        store
            .forget(tenant("acme"), "ada".into(), id)
            .await
            .unwrap()
    };
    assert_eq!(forget(Some("b".into())).await, 1);
    assert_eq!(forget(Some("b".into())).await, 0);
    assert_eq!(found(&store, "ada", "tea", 9).await, "a c");
    assert_eq!(forget(None).await, 2);
    assert_eq!(forget(None).await, 0);
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
