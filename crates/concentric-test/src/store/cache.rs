//! Cases of a [`CacheStore`].

use super::{
    kit::{Test, done, race, rounds, same, seed},
    threads::id,
    values::{secs, tenant},
};
use crate::{SeededRandom, StoreHarness};
use concentric_core::{
    Str,
    context::Random as _,
    store::{CacheEntry, CacheKey, CacheStore, ThreadStore},
};
use std::{collections::BTreeMap, time::Duration};

cases! {
    $ __store_cache cache [CacheStore]
    a_cached_value_is_read_as_it_was_written
    a_cached_value_replaces_one_with_the_same_key
    a_cached_value_expires_after_its_time
    a_read_does_not_extend_the_time_of_a_cached_value
    each_part_of_a_key_separates_cached_values
    cached_values_are_removed_by_conversation_and_space
    another_process_reads_a_cached_value
    tenants_do_not_share_cached_values
    one_of_two_cached_values_is_stored_whole
    random_cached_values_equal_a_model
}

cases! {
    $ __store_cache_of_threads cache_of_threads [CacheStore, ThreadStore]
    a_deleted_conversation_takes_its_cached_values_with_it
}

trait WithCache: StoreHarness<Store: CacheStore> {}

impl<H: StoreHarness<Store: CacheStore>> WithCache for H {}

fn key(of: &'static str, thread: &str, space: &str, digest: u8) -> CacheKey {
    let thread = (!thread.is_empty()).then(|| id(thread));
    CacheKey::new(tenant(of), thread, space.to_owned(), [digest; 32])
}

/// The key of most cases.
fn first() -> CacheKey {
    key("acme", "", "model", 1)
}

async fn put<S: CacheStore>(store: &S, key: CacheKey, value: &[u8], keep: Duration) {
    done(
        store.put_entry(key, value.to_vec(), keep).await,
        "`put_entry`",
    );
}

async fn entry<S: CacheStore>(store: &S, key: CacheKey) -> Option<CacheEntry> {
    done(store.get_entry(key).await, "`get_entry`")
}

async fn value<S: CacheStore>(store: &S, key: CacheKey) -> Option<Vec<u8>> {
    entry(store, key).await.map(|entry| entry.value)
}

fn is(value: &[u8]) -> Option<Vec<u8>> {
    Some(value.to_vec())
}

async fn a_cached_value_is_read_as_it_was_written<H: WithCache>(test: Test<H>) {
    same(
        entry(&test.store, first()).await,
        None,
        "the entry of an unknown key",
    );
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let large = bytes.repeat(4 << 10);
    for written in [&bytes[..], &[], &[0], &large] {
        put(&test.store, first(), written, secs(100)).await;
        test.harness.purge().await;
        let read = value(&test.store, first()).await;
        let what = format!("that {} bytes are read as written", written.len());
        same(read == is(written), true, what);
    }
}

async fn a_cached_value_replaces_one_with_the_same_key<H: WithCache>(test: Test<H>) {
    put(&test.store, first(), b"one", secs(100)).await;
    test.set(60);
    put(&test.store, first(), b"two", secs(100)).await;
    let replaced = entry(&test.store, first()).await;
    let expected = CacheEntry::new(b"two".to_vec(), Duration::ZERO);
    same(replaced, Some(expected), "the entry after a second write");
    test.set(120);
    test.harness.purge().await;
    let read = value(&test.store, first()).await;
    same(
        read,
        is(b"two"),
        "the value after the time of the first write",
    );
}

async fn a_cached_value_expires_after_its_time<H: WithCache>(test: Test<H>) {
    let keys = [1, 2, 3].map(|digest| key("acme", "", "model", digest));
    let [none, minute, longest] = keys;
    put(&test.store, none.clone(), b"x", Duration::ZERO).await;
    put(&test.store, minute.clone(), b"x", secs(60)).await;
    put(&test.store, longest.clone(), b"x", Duration::MAX).await;
    let found = async |key: &CacheKey| value(&test.store, key.clone()).await;
    same(
        found(&none).await,
        None,
        "the value that is kept for no time",
    );
    test.set(59);
    test.harness.purge().await;
    same(
        found(&minute).await,
        is(b"x"),
        "the value a second before its end",
    );
    test.set(60);
    same(found(&minute).await, None, "the value at its end");
    test.set(24 * 60 * 60);
    test.harness.purge().await;
    same(
        found(&longest).await,
        is(b"x"),
        "the value that is kept for the longest time, a day later,",
    );
    put(&test.store, minute.clone(), b"y", secs(60)).await;
    same(
        found(&minute).await,
        is(b"y"),
        "the value that is written again",
    );
}

async fn a_read_does_not_extend_the_time_of_a_cached_value<H: WithCache>(test: Test<H>) {
    put(&test.store, first(), b"x", secs(120)).await;
    for seconds in [0, 60, 119] {
        test.set(seconds);
        let age = entry(&test.store, first()).await.map(|entry| entry.age);
        same(
            age,
            Some(secs(seconds)),
            format!("the age after {seconds} s"),
        );
    }
    test.set(120);
    let read = entry(&test.store, first()).await;
    same(read, None, "the entry at its end, after it was read,");
}

async fn each_part_of_a_key_separates_cached_values<H: WithCache>(test: Test<H>) {
    let keys = [
        first(),
        key("acme", "t", "model", 1),
        key("acme", "model", "", 1),
        key("acme", "", "", 1),
        key("acme", "", "model2", 1),
        key("acme", "", "model", 2),
        key("acmemodel", "", "", 1),
        key("", "acme", "model", 1),
        key("", "", "model", 1),
        key("acme", "'\u{1f980}\n", "%_\\", 1),
    ];
    for (n, key) in keys.iter().enumerate() {
        let found = value(&test.store, key.clone()).await;
        same(found, None, format!("the value with the new key {key:?}"));
        let text = n.to_string();
        put(&test.store, key.clone(), text.as_bytes(), secs(100)).await;
    }
    for (n, key) in keys.iter().enumerate() {
        let found = value(&test.store, key.clone()).await;
        let text = n.to_string();
        same(
            found,
            is(text.as_bytes()),
            format!("the value with the key {key:?}"),
        );
    }
}

async fn cached_values_are_removed_by_conversation_and_space<H: WithCache>(test: Test<H>) {
    let all = [
        ("", "a"),
        ("", "b"),
        ("t", "a"),
        ("t", "b"),
        ("u", "a"),
        ("u", "b"),
    ];
    for (thread, space, left) in [
        (None, Some("a"), vec![("", "b"), ("t", "b"), ("u", "b")]),
        (
            Some("t"),
            None,
            vec![("", "a"), ("", "b"), ("u", "a"), ("u", "b")],
        ),
        (
            Some("t"),
            Some("a"),
            vec![("", "a"), ("", "b"), ("t", "b"), ("u", "a"), ("u", "b")],
        ),
        (Some("v"), None, all.to_vec()),
        (None, Some("c"), all.to_vec()),
        (None, None, Vec::new()),
    ] {
        for (thread, space) in all {
            put(&test.store, key("acme", thread, space, 1), b"x", secs(100)).await;
        }
        let what = format!("after `remove_entries` of {thread:?} and {space:?}");
        let removed =
            test.store
                .remove_entries(tenant("acme"), thread.map(id), space.map(Str::from));
        let removed = done(removed.await, "`remove_entries`");
        let mut found = Vec::new();
        for (thread, space) in all {
            if value(&test.store, key("acme", thread, space, 1))
                .await
                .is_some()
            {
                found.push((thread, space));
            }
        }
        let gone = u64::try_from(all.len() - left.len()).unwrap_or_default();
        same(found, left, format!("the entries {what}"));
        same(removed, gone, format!("the number returned {what}"));
    }
}

async fn another_process_reads_a_cached_value<H: WithCache>(test: Test<H>) {
    let other = test.harness.open().await;
    put(&test.store, first(), b"x", secs(100)).await;
    test.set(60);
    test.harness.purge().await;
    let expected = CacheEntry::new(b"x".to_vec(), secs(60));
    same(
        entry(&other, first()).await,
        Some(expected),
        "the entry that another process reads",
    );
    let removed = other.remove_entries(tenant("acme"), None, None).await;
    done(removed, "`remove_entries`");
    same(
        value(&test.store, first()).await,
        None,
        "the value after another process removed it",
    );
}

async fn tenants_do_not_share_cached_values<H: WithCache>(test: Test<H>) {
    let theirs = || key("other", "t", "model", 1);
    let ours = || key("acme", "t", "model", 1);
    put(&test.store, ours(), b"ours", secs(100)).await;
    same(
        value(&test.store, theirs()).await,
        None,
        "the value of another tenant",
    );
    for (thread, space) in [(None, None), (Some("t"), Some("model"))] {
        let removed =
            test.store
                .remove_entries(tenant("other"), thread.map(id), space.map(Str::from));
        same(
            done(removed.await, "`remove_entries`"),
            0,
            "the number of entries that another tenant removes",
        );
    }
    put(&test.store, theirs(), b"theirs", secs(100)).await;
    same(
        value(&test.store, ours()).await,
        is(b"ours"),
        "the value of a tenant after another one wrote its own",
    );
    let removed = test.store.remove_entries(tenant("other"), None, None).await;
    same(
        done(removed, "`remove_entries`"),
        1,
        "the number of entries that another tenant removes",
    );
    same(
        value(&test.store, ours()).await,
        is(b"ours"),
        "the value of a tenant after another one removed its own",
    );
}

async fn one_of_two_cached_values_is_stored_whole<H: WithCache>(test: Test<H>) {
    let other = test.harness.open().await;
    let values = [vec![1; 10_000], vec![2; 100]];
    for _ in 0..rounds() {
        let put =
            |store: &H::Store, value: &Vec<u8>| store.put_entry(first(), value.clone(), secs(100));
        let [one, two] = &values;
        for result in race(put(&test.store, one), put(&other, two)).await {
            done(result, "`put_entry` by two processes");
        }
        let found = value(&test.store, first()).await.unwrap_or_default();
        let what = "that the value is one of those that two processes wrote";
        same(values.contains(&found), true, what);
    }
}

async fn random_cached_values_equal_a_model<H: WithCache>(test: Test<H>) {
    let other = test.harness.open().await;
    let mut now = 0;
    for seed in seed()..seed().saturating_add(rounds()) {
        let random = SeededRandom::new(seed);
        let below = |limit: u64| random.next_u64() % limit;
        // The value of each key, and the times of its write and of its end.
        let mut model: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
        let removed = test.store.remove_entries(tenant("acme"), None, None).await;
        done(removed, "`remove_entries`");
        for step in 0..40 {
            let store = match below(2) {
                0 => &test.store,
                _ => &other,
            };
            let n = below(6);
            let thread = match n < 3 {
                true => "t",
                false => "",
            };
            let key = || key("acme", thread, "model", u8::try_from(n).unwrap_or_default());
            match below(8) {
                0..3 => {
                    let keep = below(4) * 30;
                    put(store, key(), &step.to_string().into_bytes(), secs(keep)).await;
                    model.insert(n, (step, now, now + keep));
                }
                3 => {
                    now += 20;
                    test.set(now);
                }
                4 => test.harness.purge().await,
                5 if below(4) == 0 => {
                    let removed = store.remove_entries(tenant("acme"), Some(id("t")), None);
                    done(removed.await, "`remove_entries`");
                    model.retain(|n, _| *n >= 3);
                }
                _ => {
                    let expected = model.get(&n).filter(|(_, _, until)| *until > now);
                    let expected = expected.map(|(step, at, _)| {
                        CacheEntry::new(step.to_string().into_bytes(), secs(now - at))
                    });
                    let what = format!("the entry {n} in step {step} with the seed {seed}");
                    same(entry(store, key()).await, expected, what);
                }
            }
        }
    }
}

async fn a_deleted_conversation_takes_its_cached_values_with_it<
    H: StoreHarness<Store: CacheStore + ThreadStore>,
>(
    test: Test<H>,
) {
    let keys = [("acme", "t"), ("acme", "u"), ("acme", ""), ("other", "t")];
    let keys = keys.map(|(of, thread)| key(of, thread, "model", 1));
    for key in &keys {
        put(&test.store, key.clone(), b"x", secs(100)).await;
    }
    // The conversation itself was never stored.
    done(test.store.delete(tenant("acme"), id("t")).await, "`delete`");
    for (n, key) in keys.iter().enumerate() {
        let expected = (n > 0).then(|| b"x".to_vec());
        let found = value(&test.store, key.clone()).await;
        let what = format!("the value with the key {key:?} after `delete` of a conversation");
        same(found, expected, what);
    }
}
