//! Cases of [`Memories`].

use super::{
    kit::{Test, done, same},
    values::{at, tenant},
};
use crate::StoreHarness;
use concentric_core::{
    Str,
    store::{Memories, Memory},
};

cases! {
    $ __store_memories memories [Memories]
    memories_are_found_by_their_words
    the_best_match_is_first
    a_memory_replaces_one_with_the_same_id
    memories_are_forgotten_one_by_one_or_all_at_once
    another_process_finds_a_memory
    owners_do_not_share_memories
    tenants_do_not_share_memories
}

trait WithMemories: StoreHarness<Store: Memories> {}

impl<H: StoreHarness<Store: Memories>> WithMemories for H {}

async fn put<H: WithMemories>(test: &Test<H>, owner: &'static str, id: &str, text: &str) {
    let memory = Memory::new(id.to_owned(), text.to_owned(), at(0));
    done(
        test.store.put(tenant("acme"), owner.into(), memory).await,
        "`put`",
    );
}

async fn search<H: WithMemories>(
    test: &Test<H>,
    owner: &'static str,
    query: &'static str,
    limit: usize,
) -> Vec<Memory> {
    let found = test
        .store
        .search(tenant("acme"), owner.into(), query.into(), limit)
        .await;
    done(found, format!("`search` for {query:?}"))
}

/// The ids of the found memories, sorted.
async fn found<H: WithMemories>(
    test: &Test<H>,
    owner: &'static str,
    query: &'static str,
) -> String {
    let found = search(test, owner, query, usize::MAX).await;
    let mut ids: Vec<_> = found.iter().map(|memory| memory.id.as_str()).collect();
    ids.sort_unstable();
    ids.join(" ")
}

async fn memories_are_found_by_their_words<H: WithMemories>(test: Test<H>) {
    put(&test, "ada", "a", "Ada likes green tea.").await;
    put(&test, "ada", "b", "Ada lives in Zürich.").await;
    put(&test, "ada", "c", "Ada likes her dog.").await;
    for (query, expected) in [
        ("Which TEA?", "a"),
        ("ZÜRICH", "b"),
        ("likes", "a c"),
        ("ada", "a b c"),
        ("coffee", ""),
        ("", ""),
        ("\" OR 1=1; --", ""),
        ("* : ( ^ -tea'", "a"),
    ] {
        same(
            found(&test, "ada", query).await,
            expected,
            format!("the memories found by {query:?}"),
        );
    }
    for limit in [0, 1, 2] {
        let found = search(&test, "ada", "ada", limit).await.len();
        same(
            found,
            limit,
            format!("the number of at most {limit} memories of 3 that match"),
        );
    }
}

async fn the_best_match_is_first<H: WithMemories>(test: Test<H>) {
    put(&test, "ada", "a", "Ada likes green tea.").await;
    put(&test, "ada", "b", "Ada likes her dog.").await;
    put(&test, "ada", "c", "Ada lives in Zürich.").await;
    let best = search(&test, "ada", "who likes tea, green tea", 1).await;
    let ids: Vec<_> = best.iter().map(|memory| memory.id.as_str()).collect();
    same(ids, ["a"], "the memory that has most words of the query");
}

async fn a_memory_replaces_one_with_the_same_id<H: WithMemories>(test: Test<H>) {
    put(&test, "ada", "a", "tea").await;
    put(&test, "ada", "a", "coffee, it's 🦀").await;
    same(
        found(&test, "ada", "tea").await,
        "",
        "the memories found by a word of a replaced text",
    );
    let found = search(&test, "ada", "coffee", 9).await;
    let expected = [Memory::new("a", "coffee, it's 🦀", at(0))];
    same(found, expected, "the memory with the id");
}

async fn memories_are_forgotten_one_by_one_or_all_at_once<H: WithMemories>(test: Test<H>) {
    for id in ["a", "b", "c"] {
        put(&test, "ada", id, "tea").await;
    }
    let forget = async |id: Option<&'static str>| {
        let forgotten = test
            .store
            .forget(tenant("acme"), "ada".into(), id.map(Str::from))
            .await;
        done(forgotten, "`forget`")
    };
    same(
        forget(Some("none")).await,
        0,
        "the number of forgotten memories with an unknown id",
    );
    same(
        forget(Some("b")).await,
        1,
        "the number of forgotten memories",
    );
    same(
        forget(Some("b")).await,
        0,
        "the number of memories that are forgotten again",
    );
    same(
        found(&test, "ada", "tea").await,
        "a c",
        "the memories that are left",
    );
    same(
        forget(None).await,
        2,
        "the number of memories when all are forgotten",
    );
    same(
        forget(None).await,
        0,
        "the number of memories when none is left",
    );
    same(
        found(&test, "ada", "tea").await,
        "",
        "the memories after all were forgotten",
    );
}

async fn another_process_finds_a_memory<H: WithMemories>(test: Test<H>) {
    let other = test.harness.open().await;
    put(&test, "ada", "a", "tea").await;
    test.harness.purge().await;
    let found = other
        .search(tenant("acme"), "ada".into(), "tea".into(), 9)
        .await;
    let found = done(found, "`search` by another process");
    same(
        found,
        [Memory::new("a", "tea", at(0))],
        "the memories that another process finds",
    );
}

async fn owners_do_not_share_memories<H: WithMemories>(test: Test<H>) {
    put(&test, "ada", "a", "tea").await;
    same(
        found(&test, "bob", "tea").await,
        "",
        "the memories of another owner",
    );
    put(&test, "bob", "a", "tea and milk").await;
    let forgotten = test.store.forget(tenant("acme"), "bob".into(), None).await;
    same(
        done(forgotten, "`forget`"),
        1,
        "the number of forgotten memories of another owner",
    );
    let found = search(&test, "ada", "tea", 9).await;
    same(
        found,
        [Memory::new("a", "tea", at(0))],
        "the memories of the first owner",
    );
}

async fn tenants_do_not_share_memories<H: WithMemories>(test: Test<H>) {
    put(&test, "ada", "a", "tea").await;
    let theirs = || tenant("other");
    let search_theirs = async || {
        let found = test
            .store
            .search(theirs(), "ada".into(), "tea".into(), 9)
            .await;
        done(found, "`search` of another tenant")
    };
    same(search_theirs().await, [], "the memories of another tenant");
    for id in [None, Some("a".into())] {
        let forgotten = test.store.forget(theirs(), "ada".into(), id).await;
        same(
            done(forgotten, "`forget`"),
            0,
            "the number of memories that another tenant forgets",
        );
    }
    let memory = Memory::new("a", "tea and milk", at(1));
    done(
        test.store.put(theirs(), "ada".into(), memory.clone()).await,
        "`put` of another tenant",
    );
    let ours = search(&test, "ada", "tea", 9).await;
    same(
        ours,
        [Memory::new("a", "tea", at(0))],
        "the memories of a tenant",
    );
    same(
        search_theirs().await,
        [memory],
        "the memories of another tenant",
    );
    let forgotten = test.store.forget(theirs(), "ada".into(), None).await;
    same(
        done(forgotten, "`forget`"),
        1,
        "the number of memories that another tenant forgets",
    );
    same(
        found(&test, "ada", "tea").await,
        "a",
        "the memories after another tenant forgot its own",
    );
}
