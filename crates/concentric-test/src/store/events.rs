//! Cases of an [`EventStore`].

#![expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "small numbers"
)]

use super::{
    kit::{Test, done, fails, race, rounds, same, seed},
    threads::{add, id},
    values::{at, secs, tenant},
};
use crate::{SeededRandom, StoreHarness};
use bytes::Bytes;
use concentric_core::{
    Str,
    context::Random as _,
    store::{EventBatch, EventKey, EventPage, EventStore, ThreadStore},
};

cases! {
    $ __store_events events [EventStore]
    events_are_read_as_they_were_written
    a_repeated_batch_is_appended_once
    missing_events_remove_the_earlier_ones
    a_second_log_replaces_the_first_one
    a_late_begin_does_not_replace_a_later_log
    an_ended_log_takes_no_more_events
    the_newest_events_are_kept
    a_log_is_kept_after_its_last_write
    the_newest_live_log_of_a_conversation_is_found
    removed_events_are_not_written_again
    a_removal_spares_a_later_log
    each_part_of_a_key_separates_logs
    one_of_two_logs_is_the_current_one
    random_events_equal_a_model
}

cases! {
    $ __store_events_of_threads events_of_threads [EventStore, ThreadStore]
    a_deleted_conversation_takes_its_events_with_it
    a_deleted_tenant_takes_its_events_with_it
}

trait WithEvents: StoreHarness<Store: EventStore> {}

impl<H: StoreHarness<Store: EventStore>> WithEvents for H {}

fn key(of: &'static str, thread: &str, name: &str) -> EventKey {
    EventKey::new(tenant(of), id(thread), name.to_owned())
}

/// The key of most cases.
fn log() -> EventKey {
    key("acme", "thread", "run")
}

fn frames(texts: &[&str]) -> Vec<Bytes> {
    let texts = texts.iter();
    texts
        .map(|text| Bytes::copy_from_slice(text.as_bytes()))
        .collect()
}

fn batch(tag: &'static str, first: u64, texts: &[&str]) -> EventBatch {
    EventBatch::new(Str::from(tag), first, frames(texts))
}

async fn begin<S: EventStore>(store: &S, key: EventKey, tag: &'static str) {
    begin_at(store, key, tag, 0).await;
}

/// Begins a log whose writer took over its run `since` seconds after the start of the case.
async fn begin_at<S: EventStore>(store: &S, key: EventKey, tag: &'static str, since: u64) {
    let begun = store.begin_events(key, Str::from(tag), at(since));
    done(begun.await, "`begin_events`");
}

/// Begins a log that is refused.
async fn is_late<S: EventStore>(store: &S, key: EventKey, tag: &'static str, since: u64) {
    let what = format!("`begin_events` of {key:?} with the tag {tag}");
    let begun = store.begin_events(key, Str::from(tag), at(since));
    fails(begun.await, "stale_claim", what);
}

async fn append<S: EventStore>(store: &S, batch: EventBatch) {
    let appended = store.append_events(log(), batch);
    done(appended.await, "`append_events`");
}

async fn find<S: EventStore>(store: &S, key: EventKey, after: u64) -> Option<EventPage> {
    done(store.read_events(key, after).await, "`read_events`")
}

async fn read<S: EventStore>(store: &S, after: u64) -> EventPage {
    find(store, log(), after).await.unwrap_or_default()
}

/// The tag, the first event, the events, the next one, and whether the log has ended.
#[track_caller]
fn is(page: &EventPage, tag: &str, first: u64, texts: &[&str], is_ended: bool) {
    same(page.tag.as_str(), tag, "the tag of the log");
    same(page.first, first, "the number of the first event");
    same(&page.frames, &frames(texts), "the events");
    same(page.is_ended, is_ended, "that the log has ended");
}

async fn events_are_read_as_they_were_written<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    same(find(store, log(), 0).await, None, "an unknown log");
    let unknown = store.append_events(log(), batch("a", 1, &["1"]));
    fails(unknown.await, "run_not_found", "`append_events` to no log");
    begin(store, log(), "a").await;
    is(&read(store, 0).await, "a", 1, &[], false);
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let large = Bytes::from(all.repeat(4 << 10));
    let written = vec![
        Bytes::from(all),
        Bytes::new(),
        Bytes::from_static(b"\r\n\0"),
        large,
    ];
    append(store, EventBatch::new("a".into(), 1, written.clone())).await;
    test.harness.purge().await;
    // Another process has nothing but the key.
    let other = test.harness.open().await;
    let (mut after, mut pages) = (0, Vec::new());
    while pages.len() < written.len() {
        let page = read(&other, after).await;
        same(
            page.first,
            after + 1,
            "the number of the first event of a page",
        );
        same(
            page.frames.is_empty(),
            false,
            "that a page is empty before the last event",
        );
        same(page.next, 5, "the number of the next event");
        after += page.frames.len() as u64;
        pages.extend(page.frames);
    }
    same(
        pages == written,
        true,
        "that the events are those that were written",
    );
    for after in [4, 5, 1 << 40] {
        is(&read(&other, after).await, "a", 5, &[], false);
    }
    let none = EventBatch::new("a".into(), 0, frames(&["0"]));
    let none = store.append_events(log(), none);
    fails(
        none.await,
        "unwritable",
        "`append_events` with the number 0",
    );
}

async fn a_repeated_batch_is_appended_once<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    begin(store, log(), "a").await;
    let all = ["1", "2", "3", "four", "", "6"];
    for (first, until) in [
        (1, 2),
        (1, 2),
        (1, 1),
        (2, 4),
        (3, 4),
        (1, 6),
        (6, 6),
        (2, 3),
    ] {
        let part = &all[first - 1..until];
        append(store, batch("a", first as u64, part)).await;
    }
    begin(store, log(), "a").await;
    is(&read(store, 0).await, "a", 1, &all, false);
    is(&read(store, 3).await, "a", 4, &all[3..], false);
}

async fn missing_events_remove_the_earlier_ones<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    begin(store, log(), "a").await;
    append(store, batch("a", 1, &["1", "2"])).await;
    append(store, batch("a", 5, &["5", "6"])).await;
    is(&read(store, 0).await, "a", 5, &["5", "6"], false);
    is(&read(store, 5).await, "a", 6, &["6"], false);
    append(store, batch("a", 9, &[])).await;
    is(&read(store, 5).await, "a", 9, &[], false);
    append(store, batch("a", 9, &["9"])).await;
    is(&read(store, 5).await, "a", 9, &["9"], false);
}

async fn a_second_log_replaces_the_first_one<H: WithEvents>(test: Test<H>) {
    let (store, other) = (&test.store, test.harness.open().await);
    begin(store, log(), "a").await;
    append(store, batch("a", 1, &["old", "old"])).await;
    begin(&other, log(), "b").await;
    is(&read(store, 0).await, "b", 1, &[], false);
    let late = store.append_events(log(), batch("a", 3, &["late"]));
    fails(
        late.await,
        "stale_claim",
        "`append_events` to a log that was replaced",
    );
    append(&other, batch("b", 1, &["new"]).end(true)).await;
    is(&read(store, 0).await, "b", 1, &["new"], true);
    // Also a log that has ended.
    begin(store, log(), "c").await;
    is(&read(store, 0).await, "c", 1, &[], false);
}

async fn a_late_begin_does_not_replace_a_later_log<H: WithEvents>(test: Test<H>) {
    let (store, other) = (&test.store, test.harness.open().await);
    begin_at(store, log(), "a", 10).await;
    begin_at(&other, log(), "b", 20).await;
    append(&other, batch("b", 1, &["new"])).await;
    for is_end in [false, true] {
        // The first process repeats its begin, which it believes to be lost.
        for since in [10, 19] {
            is_late(store, log(), "a", since).await;
        }
        begin_at(&other, log(), "b", 20).await;
        is(&read(store, 0).await, "b", 1, &["new"], is_end);
        append(&other, batch("b", 2, &[]).end(true)).await;
    }
    // Two at the same time replace each other.
    begin_at(store, log(), "c", 20).await;
    is(&read(store, 0).await, "c", 1, &[], false);
}

async fn an_ended_log_takes_no_more_events<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    begin(store, log(), "a").await;
    append(store, batch("a", 1, &["1"])).await;
    for _ in 0..2 {
        append(store, batch("a", 2, &["2"]).end(true)).await;
    }
    begin(store, log(), "a").await;
    is(&read(store, 0).await, "a", 1, &["1", "2"], true);
    let late = store.append_events(log(), batch("a", 3, &["3"]));
    fails(late.await, "run_ended", "`append_events` to an ended log");
    is(&read(store, 2).await, "a", 3, &[], true);
}

async fn the_newest_events_are_kept<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    begin(store, log(), "a").await;
    // Each has its number, and together they are larger than any limit.
    let text = |n: u64| format!("{n:08}{}", "x".repeat(1 << 10));
    let (mut next, each) = (1, 100);
    for _ in 0..60 {
        let texts: Vec<String> = (next..next + each).map(text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        append(store, batch("a", next, &texts)).await;
        next += each;
    }
    let page = read(store, 0).await;
    same(page.next, next, "the number of the next event");
    let (mut after, mut read_all) = (page.first - 1, 0);
    while after + 1 < next {
        let page = read(store, after).await;
        same(page.first, after + 1, "the number of the first event");
        for frame in &page.frames {
            after += 1;
            same(frame, text(after).as_bytes(), format!("the event {after}"));
            read_all += 1;
        }
    }
    same(
        read_all >= each,
        true,
        "that the events written last are kept",
    );
    // One that is larger than the limit, but the newest.
    let large = "x".repeat(3 << 20);
    append(store, batch("a", next, &[&large])).await;
    let page = read(store, next - 1).await;
    same(
        page.frames.len(),
        1,
        "the number of large events that are read",
    );
    same(
        page.frames[0].len(),
        large.len(),
        "the size of a large event",
    );
}

async fn a_log_is_kept_after_its_last_write<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    begin(store, log(), "a").await;
    for seconds in [1000, 2000, 3000] {
        test.set(seconds);
        append(store, batch("a", seconds / 1000, &["1"])).await;
    }
    test.set(3600);
    test.harness.purge().await;
    let page = read(store, 0).await;
    same(page.frames.len(), 3, "the number of events");
    same(page.idle, secs(600), "the time since the last write");
    // A sign of life.
    append(store, batch("a", 4, &[])).await;
    same(
        read(store, 0).await.idle,
        secs(0),
        "the time since the last write",
    );
}

async fn the_newest_live_log_of_a_conversation_is_found<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    let newest = async |prefix: &'static str| {
        let found = store.newest_events(tenant("acme"), id("thread"), prefix.into());
        let found = done(found.await, "`newest_events`");
        found.map(|name| name.to_string())
    };
    same(
        newest("").await,
        None,
        "the newest log of an unknown conversation",
    );
    for name in ["a:1", "a:2", "b:\0/3", "a", ""] {
        begin(store, key("acme", "thread", name), "x").await;
    }
    for of in [key("other", "thread", "a:9"), key("acme", "other", "a:9")] {
        begin(store, of, "x").await;
    }
    let is = |name: &str| Some(name.to_owned());
    same(newest("").await, is(""), "the newest log");
    same(
        newest("a:").await,
        is("a:2"),
        "the newest log with a prefix",
    );
    same(
        newest("b:").await,
        is("b:\0/3"),
        "the newest log with another prefix",
    );
    same(
        newest("c:").await,
        None,
        "the newest log with an unknown prefix",
    );
    let end = EventBatch::new("x".into(), 1, Vec::new()).end(true);
    let ended = store.append_events(key("acme", "thread", "a:2"), end);
    done(ended.await, "`append_events`");
    same(
        newest("a:").await,
        is("a:1"),
        "the newest log after another one has ended",
    );
    begin(store, key("acme", "thread", "a:2"), "y").await;
    same(
        newest("a:").await,
        is("a:2"),
        "the newest log after it has begun again",
    );
}

async fn removed_events_are_not_written_again<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    let rounds = [Some(Str::from("run")), None].map(|name| [(name.clone(), false), (name, true)]);
    for (round, (name, is_end)) in (0..).step_by(10).zip(rounds.into_iter().flatten()) {
        begin_at(store, log(), "a", round).await;
        begin_at(store, key("acme", "thread", "other"), "a", round).await;
        begin_at(store, key("acme", "thread2", "run"), "a", round).await;
        append(store, batch("a", 1, &["1"]).end(is_end)).await;
        for of in ["other", "acme"] {
            let until = at(round + 5);
            let removed = store.remove_events(tenant(of), id("thread"), name.clone(), until);
            done(removed.await, "`remove_events`");
            let is_kept = find(store, log(), 0).await.is_some();
            same(is_kept, of == "other", "that the log is kept");
        }
        let late = store.append_events(log(), batch("a", 2, &["2"]));
        fails(
            late.await,
            "stale_claim",
            "`append_events` to a log that was removed",
        );
        same(find(store, log(), 0).await, None, "a log that was removed");
        let other = find(store, key("acme", "thread", "other"), 0).await;
        same(
            other.is_some(),
            name.is_some(),
            "that another log of the conversation is kept",
        );
        let other = find(store, key("acme", "thread2", "run"), 0).await;
        same(
            other.is_some(),
            true,
            "that the log of another conversation is kept",
        );
        let newest = store.newest_events(tenant("acme"), id("thread"), "r".into());
        same(
            done(newest.await, "`newest_events`"),
            None,
            "the newest log",
        );
        // Its writer does not know it, or has waited for the store in its begin.
        for tag in ["a", "b"] {
            is_late(store, log(), tag, round + 5).await;
        }
        let mut waiting = key("acme", "thread", "waiting");
        waiting.name = format!("waiting {round}").into();
        match name {
            Some(_) => begin_at(store, waiting, "a", round + 5).await,
            None => is_late(store, waiting, "a", round + 5).await,
        }
        begin_at(store, log(), "b", round + 6).await;
        is(&read(store, 0).await, "b", 1, &[], false);
    }
}

async fn a_removal_spares_a_later_log<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    let remove = async |name: Option<&'static str>, until| {
        let name = name.map(Str::from);
        let removed = store.remove_events(tenant("acme"), id("thread"), name, at(until));
        done(removed.await, "`remove_events`");
    };
    // A log that was not begun yet, and that of the next attempt with the same name.
    remove(Some("run"), 10).await;
    is_late(store, log(), "a", 10).await;
    begin_at(store, log(), "b", 11).await;
    remove(Some("run"), 10).await;
    append(store, batch("b", 1, &["1"])).await;
    is(&read(store, 0).await, "b", 1, &["1"], false);
    // All content of a conversation is removed, whatever the clocks of the writers.
    remove(None, 10).await;
    same(find(store, log(), 0).await, None, "a log that was removed");
    is_late(store, log(), "b", 11).await;
}

async fn each_part_of_a_key_separates_logs<H: WithEvents>(test: Test<H>) {
    let store = &test.store;
    let parts = [
        "", "a", "a:", ":a", "a:a", "a/a", "a{a}", "a%3Aa", "\0", "ä",
    ];
    let mut keys = Vec::new();
    for of in ["", "a", "a:a"] {
        for thread in parts {
            keys.extend(parts.map(|name| key(of, thread, name)));
        }
    }
    for (n, key) in keys.iter().enumerate() {
        begin(store, key.clone(), "a").await;
        let text = n.to_string();
        let appended = store.append_events(key.clone(), batch("a", 1, &[&text]));
        done(appended.await, "`append_events`");
    }
    for (n, key) in keys.into_iter().enumerate() {
        let page = find(store, key.clone(), 0).await.unwrap_or_default();
        let text = n.to_string();
        same(
            page.frames,
            frames(&[&text]),
            format!("the events of {key:?}"),
        );
    }
}

async fn one_of_two_logs_is_the_current_one<H: WithEvents>(test: Test<H>) {
    let other = test.harness.open().await;
    for _ in 0..rounds() {
        let [one, two] = [(&test.store, "a"), (&other, "b")];
        for (result, what) in race(
            one.0.begin_events(log(), one.1.into(), at(0)),
            two.0.begin_events(log(), two.1.into(), at(0)),
        )
        .await
        .into_iter()
        .zip(["one", "two"])
        {
            done(result, format!("`begin_events` of log {what}"));
        }
        let results = race(
            one.0
                .append_events(log(), batch(one.1, 1, &["a"]).end(true)),
            two.0
                .append_events(log(), batch(two.1, 1, &["b"]).end(true)),
        )
        .await;
        let written = results.iter().filter(|result| result.is_ok()).count();
        same(written, 1, "the number of logs that are written");
        let page = read(&other, 0).await;
        is(&page, &page.tag, 1, &[&page.tag], true);
    }
}

async fn random_events_equal_a_model<H: WithEvents>(test: Test<H>) {
    let other = test.harness.open().await;
    for seed in seed()..seed().saturating_add(rounds()) {
        let random = SeededRandom::new(seed);
        let below = |limit: u64| random.next_u64() % limit;
        let of = EventKey::new(tenant("acme"), id("thread"), seed.to_string());
        begin(&test.store, of.clone(), "a").await;
        // The number of the first event that is kept, and the events.
        let (mut first, mut model): (u64, Vec<String>) = (1, Vec::new());
        for step in 0..60 {
            let store = match below(2) {
                0 => &test.store,
                _ => &other,
            };
            let next = first + model.len() as u64;
            let at = match below(4) {
                0 => next + below(2),
                1 => next.saturating_sub(below(8)).max(first),
                _ => next,
            };
            let count = below(6);
            // What an earlier batch has at this position is repeated.
            let text = |n: u64| match model.get((n - first) as usize) {
                Some(text) if n < next => text.clone(),
                _ => format!("{n}.{step}"),
            };
            let texts: Vec<String> = (at..at + count).map(text).collect();
            let all: Vec<&str> = texts.iter().map(String::as_str).collect();
            let appended = store.append_events(of.clone(), batch("a", at, &all));
            done(
                appended.await,
                format!("`append_events` with the seed {seed}"),
            );
            if at > next {
                (first, model) = (at, Vec::new());
            }
            let known = first + model.len() as u64 - at;
            model.extend(texts.into_iter().skip(known as usize));
            let after = first.saturating_sub(2) + below(12);
            let page = find(store, of.clone(), after).await.unwrap_or_default();
            let next = first + model.len() as u64;
            let wanted = (after + 1).clamp(first, next);
            let what = format!("with the seed {seed} after {step} steps");
            same(
                (page.first, page.next),
                (wanted, next),
                format!("the numbers {what}"),
            );
            let rest: Vec<&str> = model[(wanted - first) as usize..]
                .iter()
                .map(|it| &**it)
                .collect();
            same(&page.frames, &frames(&rest), format!("the events {what}"));
        }
    }
}

async fn a_deleted_conversation_takes_its_events_with_it<H>(test: Test<H>)
where
    H: StoreHarness<Store: EventStore + ThreadStore>,
{
    let store = &test.store;
    test.append("thread", 0, add(0, &["hi"])).await;
    begin(store, log(), "a").await;
    begin(store, key("acme", "thread2", "run"), "a").await;
    append(store, batch("a", 1, &["1"])).await;
    done(store.delete(tenant("acme"), id("thread")).await, "`delete`");
    same(
        find(store, log(), 0).await,
        None,
        "the log of a deleted conversation",
    );
    let kept = find(store, key("acme", "thread2", "run"), 0).await;
    same(
        kept.is_some(),
        true,
        "that the log of another conversation is kept",
    );
    let late = store.append_events(log(), batch("a", 2, &["2"]));
    fails(
        late.await,
        "stale_claim",
        "`append_events` to a log that was removed",
    );
    for name in ["run", "waiting"] {
        is_late(store, key("acme", "thread", name), "a", 0).await;
    }
}

async fn a_deleted_tenant_takes_its_events_with_it<H>(test: Test<H>)
where
    H: StoreHarness<Store: EventStore + ThreadStore>,
{
    let store = &test.store;
    for of in ["acme", "other"] {
        for thread in ["", "thread"] {
            begin(store, key(of, thread, "run"), "a").await;
        }
    }
    done(store.delete_tenant(tenant("acme")).await, "`delete_tenant`");
    for of in ["acme", "other"] {
        for thread in ["", "thread"] {
            let is_kept = find(store, key(of, thread, "run"), 0).await.is_some();
            same(
                is_kept,
                of == "other",
                format!("that a log of {of} is kept"),
            );
        }
    }
    for name in ["run", "waiting"] {
        is_late(store, key("acme", "thread", name), "b", 0).await;
        begin(store, key("other", "thread", name), "b").await;
    }
}
