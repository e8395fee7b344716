//! Cases of a [`ThreadStore`].

use super::{
    kit::{All, Test, done, fails, same, text},
    ledger::{effect, intent},
    values::{at, key, running, secs, tenant, waiting},
};
use crate::StoreHarness;
use concentric_core::{
    CancelReason, ErrorKind, Outcome, RunId, Str, ThreadId, Transcript, Turn,
    state::{SlotPlace, StoredSlot},
    store::{
        Decisions, Ledger, LedgerEntry, RunClaim, RunStatus, RunStore, StoreError, StoredDecision,
        StoredScope, StoredThread, ThreadChange, ThreadStore, ThreadSummary,
    },
};
use serde_json::{Value, json};
use std::fmt::Debug;

cases! {
    $ __store_threads threads [ThreadStore]
    a_conversation_is_created_once
    a_change_of_another_version_is_refused
    a_repeated_change_is_applied_once
    a_change_replaces_the_turns_that_it_does_not_keep
    a_change_of_missing_turns_is_refused
    a_large_conversation_is_read_as_it_was_written
    pages_of_turns_cover_a_conversation
    pages_of_a_fork_have_the_turns_of_its_origins
    a_page_beyond_the_end_is_empty
    a_page_has_at_most_500_turns
    slots_are_changed_one_by_one
    a_suspended_turn_is_kept_until_the_next_change
    a_fork_shares_turns_and_diverges
    forks_of_forks_keep_their_turns
    a_fork_needs_a_source_and_a_free_id
    a_repeated_fork_is_made_once
    a_fork_keeps_its_session
    forks_survive_the_deletion_of_their_origin
    a_deleted_conversation_gets_new_versions
    conversations_are_listed_in_pages
    another_process_reads_a_conversation
    all_conversations_of_a_tenant_are_deleted
}

cases! {
    $ __store_threads_of_runs threads_of_runs [RunStore, Ledger, Decisions, ThreadStore]
    a_deleted_conversation_takes_its_runs_with_it
    a_run_that_is_deleted_while_it_is_driven_stays_deleted
    a_deleted_run_does_not_bring_its_conversation_back
    a_reused_run_key_gets_new_versions_and_fences
    a_run_keeps_its_turns_when_its_conversation_changes
    a_change_ends_its_run
    a_change_records_the_outcome_of_its_run
    a_change_of_a_lost_run_is_refused
    a_change_of_an_interrupted_run_does_not_end_it
}

pub(super) fn id(thread: &str) -> ThreadId {
    ThreadId::new(thread)
}

fn turns(texts: &[&str]) -> Vec<Turn> {
    let texts = texts.iter();
    texts.map(|text| Turn::user(String::from(*text))).collect()
}

/// A change that appends messages after `keep` turns.
pub(super) fn add(keep: usize, texts: &[&str]) -> ThreadChange {
    let mut change = ThreadChange::default();
    change.keep = keep;
    change.turns = turns(texts);
    change
}

fn text_of(turn: &Turn) -> String {
    turn.as_message().text()
}

fn slot(name: &'static str, value: Value) -> StoredSlot {
    StoredSlot::new(name, 1, value, SlotPlace::Whole)
}

pub(super) trait WithThreads: StoreHarness<Store: ThreadStore> {}

impl<H: StoreHarness<Store: ThreadStore>> WithThreads for H {}

impl<H: WithThreads> Test<H> {
    pub(super) async fn try_append(
        &self,
        thread: &str,
        version: u64,
        change: ThreadChange,
    ) -> Result<u64, StoreError> {
        self.store
            .append(tenant("acme"), id(thread), version, change)
            .await
    }

    pub(super) async fn append(&self, thread: &str, version: u64, change: ThreadChange) -> u64 {
        let appended = self.try_append(thread, version, change).await;
        done(
            appended,
            format!("`append` to version {version} of the conversation `{thread}`"),
        )
    }

    pub(super) async fn try_fork(
        &self,
        (thread, version): (&str, u64),
        to: &str,
        change: ThreadChange,
    ) -> Result<u64, StoreError> {
        self.store
            .fork(tenant("acme"), id(thread), version, id(to), change)
            .await
    }

    pub(super) async fn fork(&self, from: (&str, u64), to: &str, change: ThreadChange) -> u64 {
        let forked = self.try_fork(from, to, change).await;
        done(
            forked,
            format!("`fork` of the conversation `{}` to `{to}`", from.0),
        )
    }

    pub(super) async fn load(&self, thread: &str) -> Option<StoredThread> {
        let loaded = self.store.load(tenant("acme"), id(thread)).await;
        done(loaded, format!("`load` of the conversation `{thread}`"))
    }

    pub(super) async fn delete(&self, thread: &str) -> bool {
        let deleted = self.store.delete(tenant("acme"), id(thread)).await;
        done(deleted, format!("`delete` of the conversation `{thread}`"))
    }

    /// The summary of a conversation, and the texts of a page of its turns.
    pub(super) async fn page(
        &self,
        thread: &str,
        start: Option<usize>,
        limit: usize,
    ) -> Option<(ThreadSummary, Vec<String>)> {
        let found = self.store.turns(tenant("acme"), id(thread), start, limit);
        let found = done(
            found.await,
            format!("`turns` of the conversation `{thread}`"),
        );
        found.map(|(summary, turns)| (summary, turns.iter().map(text_of).collect()))
    }

    /// The number of turns of a conversation, and the texts of a page of them.
    async fn page_of(
        &self,
        thread: &str,
        start: Option<usize>,
        limit: usize,
    ) -> (usize, Vec<String>) {
        let page = self.page(thread, start, limit).await;
        let page = page.map(|(summary, turns)| (summary.turns, turns));
        page.unwrap_or_default()
    }

    /// The texts of a conversation, and its version.
    pub(super) async fn texts(&self, thread: &str) -> (String, u64) {
        let stored = self.load(thread).await.unwrap_or_default();
        let texts = stored.history.iter().map(|turn| turn.as_message().text());
        (texts.collect::<Vec<_>>().join(" "), stored.version)
    }
}

/// Checks that a change fails because the conversation has the version `found`.
#[track_caller]
fn moved<T: Debug>(result: Result<T, StoreError>, expected: u64, found: u64, what: &str) {
    let error = match result {
        Err(StoreError::Moved {
            expected: e,
            found: f,
        }) if (e, f) == (expected, found) => return,
        Err(StoreError::Moved { expected, found }) => format!("Moved from {expected} to {found}"),
        Err(error) => text(&error),
        Ok(value) => format!("{value:?}"),
    };
    let should = format!("Moved from {expected} to {found}");
    same(error, should, format!("the result of {what}"));
}

async fn a_conversation_is_created_once<H: WithThreads>(test: Test<H>) {
    same(
        test.load("t").await.is_none(),
        true,
        "that `load` of an unknown conversation returns none",
    );
    let unknown = test.try_append("t", 7, add(0, &["a"])).await;
    moved(
        unknown,
        7,
        0,
        "`append` to a version of an unknown conversation",
    );
    let version = test.append("t", 0, add(0, &["a", "b"])).await;
    same(version > 0, true, "that a version is greater than 0");
    moved(
        test.try_append("t", 0, add(0, &["c"])).await,
        0,
        version,
        "a second creation",
    );
    same(
        test.texts("t").await,
        ("a b".to_owned(), version),
        "the new conversation",
    );
    let stored = test.load("t").await.unwrap_or_default();
    same(
        stored.session,
        Some(id("t")),
        "the session of a new conversation",
    );
    let is_plain = stored.slots.is_empty() && stored.suspended.is_none();
    same(
        is_plain,
        true,
        "that a new conversation has neither slots nor a suspended turn",
    );
    // An empty conversation exists as well.
    let empty = test.append("empty", 0, add(0, &[])).await;
    same(
        test.texts("empty").await,
        (String::new(), empty),
        "a conversation without turns",
    );
}

async fn a_change_of_another_version_is_refused<H: WithThreads>(test: Test<H>) {
    let first = test.append("t", 0, add(0, &["a"])).await;
    let second = test.append("t", first, add(1, &["b"])).await;
    same(
        second > first,
        true,
        "that the version increases with an `append`",
    );
    for version in [0, first, second + 1] {
        let refused = test.try_append("t", version, add(1, &["x"])).await;
        moved(
            refused,
            version,
            second,
            "`append` to another version than the stored one",
        );
    }
    same(
        test.texts("t").await,
        ("a b".to_owned(), second),
        "the conversation",
    );
}

async fn a_repeated_change_is_applied_once<H: WithThreads>(test: Test<H>) {
    let change = |name: &str, keep, text| {
        let mut change = add(keep, &[text]);
        change.id = Some(name.to_owned().into());
        change
    };
    let first = test.append("t", 0, change("1", 0, "a")).await;
    let again = test.append("t", 0, change("1", 0, "a")).await;
    same(again, first, "the version that a repeated creation returns");
    let second = test.append("t", first, change("2", 1, "b")).await;
    // The answer was lost, so the change is made again, with the version that it was based on.
    let again = test.append("t", first, change("2", 1, "b")).await;
    same(again, second, "the version that a repeated change returns");
    same(
        test.texts("t").await,
        ("a b".to_owned(), second),
        "the conversation after a repeated change",
    );
    // Only the last change is known.
    let older = test.try_append("t", 0, change("1", 0, "a")).await;
    moved(
        older,
        0,
        second,
        "the repetition of a change before the last one",
    );
    // Ids are those of one conversation.
    test.append("u", 0, change("2", 0, "c")).await;
    same(
        test.texts("u").await.0.as_str(),
        "c",
        "another conversation with a change of this id",
    );
    // Without an id, a change is applied whenever its version matches.
    let third = test.append("t", second, add(2, &["c"])).await;
    test.append("t", third, add(3, &["c"])).await;
    same(
        test.texts("t").await.0.as_str(),
        "a b c c",
        "the conversation after changes without ids",
    );
}

async fn a_change_replaces_the_turns_that_it_does_not_keep<H: WithThreads>(test: Test<H>) {
    let mut version = test.append("t", 0, add(0, &["a", "b", "c"])).await;
    for (keep, new, expected) in [
        (1, &["d"] as &[_], "a d"),
        (2, &["e", "f"], "a d e f"),
        (4, &[], "a d e f"),
        (0, &["g"], "g"),
        (0, &[], ""),
        (0, &["h"], "h"),
    ] {
        version = test.append("t", version, add(keep, new)).await;
        let what = format!("the turns after a change that keeps {keep} and adds {new:?}");
        same(test.texts("t").await.0.as_str(), expected, what);
    }
}

async fn a_change_of_missing_turns_is_refused<H: WithThreads>(test: Test<H>) {
    let what = "a change that keeps more turns than there are";
    fails(
        test.try_append("t", 0, add(1, &["a"])).await,
        "unwritable",
        what,
    );
    same(
        test.load("t").await.is_none(),
        true,
        "that a failed `append` creates no conversation",
    );
    let version = test.append("t", 0, add(0, &["a"])).await;
    fails(
        test.try_append("t", version, add(2, &["a"])).await,
        "unwritable",
        what,
    );
    fails(
        test.try_append("t", version, add(usize::MAX, &[])).await,
        "unwritable",
        what,
    );
    fails(
        test.try_fork(("t", version), "u", add(2, &[])).await,
        "unwritable",
        what,
    );
    same(
        test.texts("t").await,
        ("a".to_owned(), version),
        "the conversation after failed changes",
    );
    same(
        test.load("u").await.is_none(),
        true,
        "that a failed `fork` creates no conversation",
    );
}

async fn a_large_conversation_is_read_as_it_was_written<H: WithThreads>(test: Test<H>) {
    let large = "x é \"".repeat(700_000);
    let version = test.append("t", 0, add(0, &[&large])).await;
    let version = test.append("t", version, add(1, &["it's 🦀 % _ \\"])).await;
    let expected = format!("{large} it's 🦀 % _ \\");
    let is_same = test.texts("t").await == (expected, version);
    same(
        is_same,
        true,
        "that a conversation of 4 MiB is read as written",
    );
    let page = test.page("t", Some(0), 1).await;
    let is_same = page.is_some_and(|(_, turns)| turns == [large]);
    same(is_same, true, "that a turn of 4 MiB is read as written");
}

/// Checks that pages of `thread` have its turns, whose texts are `all`, from both ends.
async fn same_pages<H: WithThreads>(
    test: &Test<H>,
    thread: &str,
    all: &[String],
    limit: usize,
    of: &str,
) {
    for start in 0..all.len() {
        let found = test.page_of(thread, Some(start), limit).await;
        let expected: Vec<_> = all.iter().skip(start).take(limit).cloned().collect();
        let what = format!("the turns {of}from position {start} on");
        same(found, (all.len(), expected), what);
    }
    let found = test.page_of(thread, None, limit).await;
    let expected = all.iter().skip(all.len().saturating_sub(limit));
    let expected: Vec<_> = expected.cloned().collect();
    let what = format!("the newest turns {of}with the limit {limit}");
    same(found, (all.len(), expected), what);
}

async fn pages_of_turns_cover_a_conversation<H: WithThreads>(test: Test<H>) {
    let version = test.append("t", 0, add(0, &["0", "1", "2", "x"])).await;
    let version = test.append("t", version, add(3, &["3"])).await;
    let mut change = add(4, &["4", "5", "6"]);
    change.slots = vec![slot("s", json!(1))];
    let version = test.append("t", version, change).await;
    let all: Vec<_> = (0..7).map(|n: u8| n.to_string()).collect();
    for limit in [1, 2, 7, 8] {
        same_pages(&test, "t", &all, limit, "").await;
    }
    let expected = ThreadSummary::new(id("t"), id("t"), version, 7, at(0));
    let summary = test.page("t", Some(2), 3).await.map(|(summary, _)| summary);
    same(summary, Some(expected), "the summary of a conversation");
    let other = test.harness.open().await;
    let found = other.turns(tenant("acme"), id("t"), Some(1), 2).await;
    let found = done(found, "`turns` by another process").map(|(_, turns)| turns);
    same(
        found,
        Some(turns(&["1", "2"])),
        "the turns that another process reads",
    );
}

async fn pages_of_a_fork_have_the_turns_of_its_origins<H: WithThreads>(test: Test<H>) {
    let mut version = test.append("t0", 0, add(0, &["0", "x"])).await;
    let mut all = vec!["0".to_owned()];
    // More than a store may link before it copies.
    for n in 1..=20 {
        let (from, to, text) = (format!("t{}", n - 1), format!("t{n}"), n.to_string());
        version = test
            .fork((&from, version), &to, add(n, &[&text, "x"]))
            .await;
        all.push(text);
    }
    all.push("x".to_owned());
    for limit in [1, 3, 100] {
        same_pages(&test, "t20", &all, limit, "of fork 20 of a fork ").await;
    }
    // A fork that has turns of its origin only.
    test.fork(("t20", version), "short", add(12, &[])).await;
    for thread in ["t20", "t0"] {
        test.delete(thread).await;
    }
    let all = all.get(..12).unwrap_or_default();
    same_pages(&test, "short", all, 5, "of the last fork ").await;
}

async fn a_page_beyond_the_end_is_empty<H: WithThreads>(test: Test<H>) {
    for (start, limit) in [(None, 9), (Some(0), 9), (Some(9), 0)] {
        let page = test.page("t", start, limit).await;
        same(page, None, "the turns of an unknown conversation");
    }
    let empty = test.append("empty", 0, add(0, &[])).await;
    let version = test.append("t", 0, add(0, &["a", "b"])).await;
    for (thread, version, turns) in [("empty", empty, 0), ("t", version, 2)] {
        let summary = ThreadSummary::new(id(thread), id(thread), version, turns, at(0));
        let expected = Some((summary, Vec::new()));
        for start in [2, 3, usize::MAX] {
            for limit in [1, usize::MAX] {
                let page = test.page(thread, Some(start), limit).await;
                let what = format!("the turns of `{thread}` from position {start} on");
                same(page, expected.clone(), what);
            }
        }
        for start in [None, Some(0), Some(1), Some(usize::MAX)] {
            let page = test.page(thread, start, 0).await;
            let found = page.as_ref().map(|(_, turns)| turns.as_slice());
            same(found, Some(&[][..]), "the turns of a page of at most 0");
            same(page, expected.clone(), "a page of at most 0");
        }
    }
}

async fn a_page_has_at_most_500_turns<H: WithThreads>(test: Test<H>) {
    let texts: Vec<_> = (0..601).map(|n: u16| n.to_string()).collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    test.append("t", 0, add(0, &texts)).await;
    for limit in [500, 501, usize::MAX] {
        for (start, first, count) in [
            (Some(0), "0", 500),
            (Some(100), "100", 500),
            (Some(150), "150", 451),
            (None, "101", 500),
        ] {
            let (_, found) = test.page_of("t", start, limit).await;
            same(found.len(), count, "the number of turns of a page");
            let found = found.first().map(String::as_str);
            same(found, Some(first), "the first turn of a page");
        }
    }
}

async fn slots_are_changed_one_by_one<H: WithThreads>(test: Test<H>) {
    let slots = async || test.load("t").await.unwrap_or_default().slots;
    let mut change = add(0, &[]);
    change.slots = vec![
        slot("b", json!(1)),
        slot("a", json!({"k": [1, null, "it's"]})),
    ];
    let version = test.append("t", 0, change).await;
    let first = [
        slot("a", json!({"k": [1, null, "it's"]})),
        slot("b", json!(1)),
    ];
    same(
        slots().await,
        first.clone(),
        "the slots, in the order of their names,",
    );
    let stored = test.load("t").await.unwrap_or_default();
    let [a, _] = first;
    let next = [a.clone(), slot("b", json!(2)), slot("c", json!(3))];
    let change = stored.change_to(&Transcript::new(), &next);
    let version = test.append("t", version, change).await;
    same(slots().await, next, "the slots after some were changed");
    let stored = test.load("t").await.unwrap_or_default();
    // Two slots are gone.
    let change = stored.change_to(&Transcript::new(), std::slice::from_ref(&a));
    let version = test.append("t", version, change).await;
    same(
        slots().await,
        [a.clone()],
        "the slots after some were removed",
    );
    test.append("t", version, add(0, &["hi"])).await;
    same(slots().await, [a], "the slots after a change of the turns");
}

async fn a_suspended_turn_is_kept_until_the_next_change<H: WithThreads>(test: Test<H>) {
    let state = waiting("hi", "q");
    let history: Transcript = turns(&["before"]).into_iter().collect();
    let mut whole = history.clone();
    whole.extend(state.transcript().iter().cloned());
    let state = state.with_transcript(whole);
    let change = StoredThread::default().change_to(&history, &[]);
    let change = change.suspend(&history, Box::new(state.clone()), vec![slot("s", json!(1))]);
    let version = test.append("t", 0, change).await;
    let stored = test.load("t").await.unwrap_or_default();
    let sizes = (stored.history.len(), stored.slots.len());
    same(
        sizes,
        (1, 0),
        "the number of finished turns and slots beside a suspended turn",
    );
    let (read, slots) = stored
        .suspended
        .unwrap_or_else(|| (Box::new(running("none")), Vec::new()));
    same(
        *read == state,
        true,
        "that a suspended turn is read as written",
    );
    same(
        slots,
        [slot("s", json!(1))],
        "the slots of a suspended turn",
    );
    test.fork(("t", version), "u", add(1, &[])).await;
    let forked = test.load("u").await.unwrap_or_default();
    same(
        forked.suspended.is_none(),
        true,
        "that a fork has no suspended turn",
    );
    test.append("t", version, add(1, &[])).await;
    let stored = test.load("t").await.unwrap_or_default();
    same(
        stored.suspended.is_none(),
        true,
        "that the next change removes a suspended turn",
    );
}

async fn a_fork_shares_turns_and_diverges<H: WithThreads>(test: Test<H>) {
    let mut change = add(0, &["a", "b"]);
    change.slots = vec![slot("n", json!(1))];
    let version = test.append("t", 0, change).await;
    let mut change = add(1, &["x"]);
    change.slots = vec![slot("m", json!(2))];
    let forked = test.fork(("t", version), "u", change).await;
    same(
        test.texts("t").await,
        ("a b".to_owned(), version),
        "the origin of a fork",
    );
    same(
        test.texts("u").await,
        ("a x".to_owned(), forked),
        "the fork",
    );
    let slots = async |thread: &str| test.load(thread).await.unwrap_or_default().slots;
    same(
        slots("u").await,
        [slot("m", json!(2)), slot("n", json!(1))],
        "the slots of a fork",
    );
    test.append("t", version, add(2, &["c"])).await;
    let mut change = add(2, &["y"]);
    change.slots = vec![slot("n", json!(9))];
    test.append("u", forked, change).await;
    same(
        test.texts("t").await.0.as_str(),
        "a b c",
        "the origin after both were changed",
    );
    same(
        test.texts("u").await.0.as_str(),
        "a x y",
        "the fork after both were changed",
    );
    same(
        slots("t").await,
        [slot("n", json!(1))],
        "the slots of the origin",
    );
}

async fn forks_of_forks_keep_their_turns<H: WithThreads>(test: Test<H>) {
    let mut version = test.append("t0", 0, add(0, &["0"])).await;
    let mut expected = String::from("0");
    // More than a store may link before it copies.
    for n in 1..40 {
        let (from, to, text) = (format!("t{}", n - 1), format!("t{n}"), n.to_string());
        version = test.fork((&from, version), &to, add(n, &[&text])).await;
        expected = format!("{expected} {n}");
        same(
            test.texts(&to).await.0,
            expected.clone(),
            format!("the turns of fork {n} of a fork"),
        );
    }
    for n in 1..39 {
        test.delete(&format!("t{n}")).await;
    }
    same(
        test.texts("t39").await.0,
        expected,
        "the turns after the forks between were deleted",
    );
    same(
        test.texts("t0").await.0.as_str(),
        "0",
        "the turns of the first origin",
    );
}

async fn a_fork_needs_a_source_and_a_free_id<H: WithThreads>(test: Test<H>) {
    let fork = async |thread, version, to, keep| {
        test.try_fork((thread, version), to, add(keep, &[])).await
    };
    moved(
        fork("t", 3, "u", 0).await,
        3,
        0,
        "`fork` of a version of an unknown conversation",
    );
    fails(
        fork("t", 0, "u", 0).await,
        "run_not_found",
        "`fork` of an unknown conversation",
    );
    let version = test.append("t", 0, add(0, &["a"])).await;
    let other = test.append("u", 0, add(0, &["b"])).await;
    moved(
        fork("t", version, "u", 1).await,
        0,
        other,
        "`fork` to the id of a conversation",
    );
    moved(
        fork("t", other, "v", 1).await,
        other,
        version,
        "`fork` of another version",
    );
    moved(
        fork("t", version, "t", 1).await,
        0,
        version,
        "`fork` of a conversation to itself",
    );
    same(
        test.texts("u").await.0.as_str(),
        "b",
        "a conversation after a fork to it failed",
    );
    same(
        test.load("v").await.is_none(),
        true,
        "that a failed `fork` creates no conversation",
    );
}

async fn a_repeated_fork_is_made_once<H: WithThreads>(test: Test<H>) {
    let version = test.append("t", 0, add(0, &["a"])).await;
    let change = || {
        let mut change = add(1, &["b"]);
        change.id = Some("fork 1".into());
        change
    };
    let forked = test.fork(("t", version), "u", change()).await;
    // The source has changed since the first attempt, whose answer was lost.
    test.append("t", version, add(1, &["c"])).await;
    let again = test.fork(("t", version), "u", change()).await;
    same(again, forked, "the version that a repeated fork returns");
    same(
        test.texts("u").await,
        ("a b".to_owned(), forked),
        "the fork",
    );
}

async fn a_fork_keeps_its_session<H: WithThreads>(test: Test<H>) {
    let session = async |thread: &str| test.load(thread).await.unwrap_or_default().session;
    let mut change = add(0, &["a"]);
    change.session = Some(id("first"));
    let version = test.append("t", 0, change).await;
    let forked = test.fork(("t", version), "u", add(1, &[])).await;
    same(
        session("u").await,
        Some(id("first")),
        "the session of a fork",
    );
    // It is set when a conversation is created only.
    let mut change = add(1, &[]);
    change.session = Some(id("other"));
    test.append("u", forked, change.clone()).await;
    same(
        session("u").await,
        Some(id("first")),
        "the session after a change",
    );
    test.fork(("t", version), "v", change).await;
    same(
        session("v").await,
        Some(id("other")),
        "the session of a fork that sets it",
    );
}

async fn forks_survive_the_deletion_of_their_origin<H: WithThreads>(test: Test<H>) {
    let version = test.append("t", 0, add(0, &["a", "b", "c"])).await;
    let forked = test.fork(("t", version), "u", add(2, &["x"])).await;
    same(test.delete("t").await, true, "the result of `delete`");
    same(
        test.delete("t").await,
        false,
        "the result of a second `delete`",
    );
    same(
        test.load("t").await.is_none(),
        true,
        "that a deleted conversation is not loaded",
    );
    same(
        test.texts("u").await.0.as_str(),
        "a b x",
        "the fork of a deleted conversation",
    );
    test.append("u", forked, add(1, &["y"])).await;
    same(
        test.texts("u").await.0.as_str(),
        "a y",
        "the fork after a change",
    );
}

async fn a_deleted_conversation_gets_new_versions<H: WithThreads>(test: Test<H>) {
    let old = test.append("t", 0, add(0, &["a"])).await;
    test.delete("t").await;
    let new = test.append("t", 0, add(0, &["b"])).await;
    same(
        new == old,
        false,
        "that the version of a deleted conversation is used again",
    );
    moved(
        test.try_append("t", old, add(1, &["late"])).await,
        old,
        new,
        "a change from before `delete`",
    );
    same(
        test.texts("t").await,
        ("b".to_owned(), new),
        "the new conversation",
    );
}

async fn conversations_are_listed_in_pages<H: WithThreads>(test: Test<H>) {
    let mut versions = Vec::new();
    for (n, thread) in (0..).zip(["c", "a", "d", "b", "B", "ä"]) {
        test.set(n);
        versions.push(test.append(thread, 0, add(0, &["x", "y"])).await);
    }
    same(
        versions.is_sorted_by(|a, b| a < b),
        true,
        format!("that later versions are greater: {versions:?}"),
    );
    // The threads of a page with the seconds of their last writes, and the version of the last one.
    let list = async |before: Option<u64>, limit| {
        let page = test.store.list_threads(tenant("acme"), before, limit).await;
        let page = done(page, "`list_threads`");
        for it in &page {
            let is_whole = it.turns == 2 && it.session == it.thread;
            same(
                is_whole,
                true,
                format!("that the summary of `{}` is right: {it:?}", it.thread),
            );
        }
        let threads = page.iter().map(|it| {
            let since = it.at.duration_since(at(0)).unwrap_or_default();
            format!("{}:{}", it.thread, since.as_secs())
        });
        let threads: Vec<_> = threads.collect();
        (threads.join(" "), page.last().map(|it| it.version))
    };
    let (all, _) = list(None, 9).await;
    same(&*all, "ä:5 B:4 b:3 d:2 a:1 c:0", "all conversations");
    let (first, last) = list(None, 2).await;
    same(&*first, "ä:5 B:4", "the first page");
    same(
        last,
        versions.get(4).copied(),
        "the version of a listed conversation",
    );
    // A page continues even if the last conversation of the one before is gone, or is written again.
    test.delete("B").await;
    let (second, last) = list(last, 1).await;
    same(&*second, "b:3", "the second page");
    test.set(7);
    let old = versions.get(2).copied().unwrap_or_default();
    let version = test.append("d", old, add(2, &[])).await;
    let (third, last) = list(last, 9).await;
    same(&*third, "a:1 c:0", "the third page, after `d` was written");
    let (none, _) = list(last, 9).await;
    same(&*none, "", "the conversations after the last one");
    let (newest, last) = list(None, 1).await;
    same(
        (&*newest, last),
        ("d:7", Some(version)),
        "the conversation that was written last",
    );
    for (before, limit, expected) in [
        (None, 0, ""),
        (Some(0), 9, ""),
        (Some(u64::MAX), usize::MAX, "d:7 ä:5 b:3 a:1 c:0"),
    ] {
        let (found, _) = list(before, limit).await;
        same(
            &*found,
            expected,
            format!("at most {limit} before {before:?}"),
        );
    }
}

async fn another_process_reads_a_conversation<H: WithThreads>(test: Test<H>) {
    let other = test.harness.open().await;
    let version = test.append("t", 0, add(0, &["a"])).await;
    test.harness.purge().await;
    let appended = other
        .append(tenant("acme"), id("t"), version, add(1, &["b"]))
        .await;
    let version = done(appended, "`append` by another process");
    same(
        test.texts("t").await,
        ("a b".to_owned(), version),
        "what the first process reads",
    );
}

async fn all_conversations_of_a_tenant_are_deleted<H: WithThreads>(test: Test<H>) {
    for n in 0..250 {
        test.append(&format!("t{n}"), 0, add(0, &["a"])).await;
    }
    let theirs = test
        .store
        .append(tenant("other"), id("t1"), 0, add(0, &["theirs"]));
    done(theirs.await, "`append` of another tenant");
    for expected in [250, 0] {
        let deleted = test.store.delete_tenant(tenant("acme")).await;
        let deleted = done(deleted, "`delete_tenant`");
        same(deleted, expected, "the number of deleted conversations");
    }
    let left = test.store.list_threads(tenant("acme"), None, 9).await;
    same(
        done(left, "`list_threads`"),
        [],
        "the conversations of a deleted tenant",
    );
    let left = test.store.list_threads(tenant("other"), None, 9).await;
    same(
        done(left, "`list_threads`").len(),
        1,
        "the number of conversations of another tenant",
    );
}

fn decision(span: StoredScope) -> StoredDecision {
    let (tool, definition) = (Str::from("t"), Str::from("d"));
    StoredDecision::new(
        tenant("acme"),
        tool,
        definition,
        None,
        span,
        true,
        None,
        at(0),
    )
}

async fn a_deleted_conversation_takes_its_runs_with_it<H: All>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    test.waiting("waits", "q").await;
    let begun = Ledger::begin(&test.store, effect("e"), intent(Some(("run", fence)))).await;
    done(begun, "`begin` of an effect");
    let here = Some(id("thread"));
    let run = RunId::new("run");
    for span in [
        StoredScope::Always,
        StoredScope::Thread(id("thread")),
        StoredScope::Run { thread: here, run },
    ] {
        done(test.store.remember(decision(span)).await, "`remember`");
    }
    // The conversation itself was never stored.
    same(
        test.delete("thread").await,
        false,
        "the result of `delete` of a conversation of runs only",
    );
    for run in ["run", "waits"] {
        let what = format!("`get` of the run `{run}` of a deleted conversation");
        fails(test.store.get(key(run)).await, "run_not_found", what);
    }
    let asking = test.asking(&["q"]).await;
    fails(
        asking,
        "run_not_found",
        "`find_by_interrupt` in a deleted conversation",
    );
    let known = done(test.store.known(effect("e")).await, "`known`");
    same(
        known,
        LedgerEntry::New,
        "the effect of a run of a deleted conversation",
    );
    let left = done(test.store.list(tenant("acme")).await, "`list`");
    same(
        left,
        [decision(StoredScope::Always)],
        "the decisions after `delete`",
    );
}

async fn a_run_that_is_deleted_while_it_is_driven_stays_deleted<H: All>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    test.delete("thread").await;
    let (store, code) = (&test.store, "run_not_found");
    let saved = store
        .save(key("run"), fence, running("late").into(), secs(60))
        .await;
    fails(saved, code, "`save` of a deleted run");
    let renewed = store.renew(key("run"), fence, secs(60)).await;
    fails(renewed, code, "`renew` of a deleted run");
    let suspended = store
        .suspend(key("run"), fence, waiting("late", "q").into())
        .await;
    fails(suspended, code, "`suspend` of a deleted run");
    let begun = Ledger::begin(store, effect("e"), intent(Some(("run", fence)))).await;
    fails(
        begun,
        "stale_claim",
        "`begin` of an effect of a deleted run",
    );
    fails(
        store.end(key("run"), fence, Ok(Outcome::Completed)).await,
        code,
        "`end` of a deleted run",
    );
    fails(store.get(key("run")).await, code, "`get` of a deleted run");
}

async fn a_deleted_run_does_not_bring_its_conversation_back<H: All>(test: Test<H>) {
    let code = "run_not_found";
    let mut version = 0;
    for (n, of) in ["conversation", "tenant"].into_iter().enumerate() {
        // The turn of an ended run may be stored after its end.
        let [driven, ended] = ["driven", "ended"].map(|name| format!("{name} {n}"));
        let runs = [
            (&driven, test.begin(&driven, secs(30)).await),
            (&ended, test.begin(&ended, secs(30)).await),
        ];
        test.end(&ended, runs[1].1).await;
        match of {
            "tenant" => {
                let deleted = test.store.delete_tenant(tenant("acme")).await;
                done(deleted, "`delete_tenant`");
            }
            _ => {
                let existed = test.delete("thread").await;
                same(
                    existed,
                    false,
                    "the result of `delete` before the first turn",
                );
            }
        }
        test.harness.purge().await;
        for (run, fence) in runs {
            let append = test.try_append("thread", 0, last("late", 0, run, fence));
            let what = format!("`append` of the run `{run}` that was deleted with its {of}");
            fails(append.await, code, what);
        }
        same(
            test.load("thread").await.is_none(),
            true,
            "that a deleted conversation stays deleted",
        );
        // A new run creates a conversation with the same id, and so does one of another store.
        let (new, name) = (format!("new {n}"), format!("new{n}"));
        let fence = test.begin(&new, secs(30)).await;
        version = test.append("thread", 0, last(&name, 0, &new, fence)).await;
        for (run, fence) in runs {
            let append = test.try_append("thread", version, last("late", 1, run, fence));
            let what = format!("`append` of the deleted run `{run}` to a later conversation");
            fails(append.await, code, what);
        }
        version = test
            .append("thread", version, last("other", 1, "none", fence))
            .await;
        let texts = test.texts("thread").await;
        let what = "the conversation of a new run";
        same(texts, (format!("{name} other"), version), what);
    }
    test.delete("thread").await;
    let new = test.append("thread", 0, last("again", 0, "none", 1)).await;
    same(
        new > version,
        true,
        "that a run of another store creates a conversation again",
    );
}

async fn a_reused_run_key_gets_new_versions_and_fences<H: All>(test: Test<H>) {
    let old = test.begin("run", secs(30)).await;
    let version = test.get("run").await.version;
    test.delete("thread").await;
    let new = test.begin("run", secs(30)).await;
    same(
        new > old,
        true,
        "that the fence of a run with the key of a deleted one is greater",
    );
    let record = test.get("run").await;
    same(
        record.version > version,
        true,
        "that its version is greater",
    );
    same(record.asked, [], "the interrupts of a new run");
    fails(
        test.store
            .end(key("run"), old, Ok(Outcome::Completed))
            .await,
        "stale_claim",
        "`end` with a fence of a deleted run",
    );
    same(
        test.is_live("run").await,
        true,
        "`is_live` after an `end` that failed",
    );
}

async fn a_run_keeps_its_turns_when_its_conversation_changes<H: All>(test: Test<H>) {
    // The run begins with the turns of the conversation, which a store may share.
    let version = test.append("thread", 0, add(0, &["hi"])).await;
    let fence = test.begin("run", secs(30)).await;
    let version = test.append("thread", version, add(0, &["changed"])).await;
    same(
        test.get("run").await.state == running("hi"),
        true,
        "that a run keeps its turns",
    );
    let saved = test
        .store
        .save(key("run"), fence, running("x").into(), secs(30))
        .await;
    done(saved, "`save` with the newest fence");
    same(
        test.texts("thread").await,
        ("changed".to_owned(), version),
        "the conversation of a run",
    );
}

/// A change with an id that ends a run.
fn last(name: &str, keep: usize, run: &str, fence: u64) -> ThreadChange {
    let mut change = add(keep, &[name]);
    change.id = Some(name.to_owned().into());
    let completed = Ok(Outcome::Completed);
    change.ends = Some((RunClaim::new(key(run), fence), completed));
    change
}

async fn a_change_records_the_outcome_of_its_run<H: All>(test: Test<H>) {
    let mut version = 0;
    for (n, outcome) in [
        Ok(Outcome::StepLimit),
        Ok(Outcome::Aborted {
            reason: CancelReason::Shutdown,
        }),
        Err(ErrorKind::Server),
    ]
    .into_iter()
    .enumerate()
    {
        let (run, name) = (format!("run {n}"), format!("turn {n}"));
        let fence = test.begin(&run, secs(30)).await;
        let mut change = last(&name, n, &run, fence);
        change.ends = Some((RunClaim::new(key(&run), fence), outcome.clone()));
        version = test.append("t", version, change).await;
        let what = "the outcome of a run that ended with a change";
        same(test.get(&run).await.outcome, Some(outcome.clone()), what);
        // The answer was lost, so the change is made again; then the run is ended as usual.
        let again = test.append("t", version, last(&name, n, &run, fence)).await;
        same(again, version, "the version that a repeated change returns");
        test.end(&run, fence).await;
        let what = "the outcome of a run after a repeated change and an `end`";
        same(test.get(&run).await.outcome, Some(outcome), what);
    }
    // The turn of a run may be stored after its end.
    let fence = test.begin("run", secs(30)).await;
    test.end_as("run", fence, Err(ErrorKind::Timeout)).await;
    test.append("t", version, last("late", 3, "run", fence))
        .await;
    let what = "the outcome of a run that had ended before its change";
    same(
        test.get("run").await.outcome,
        Some(Err(ErrorKind::Timeout)),
        what,
    );
}

async fn a_change_ends_its_run<H: All>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    let version = test.append("t", 0, last("a", 0, "run", fence)).await;
    let what = "the status of a run after the change that ends it";
    same(test.status("run").await, RunStatus::Ended, what);
    // The answer was lost, so the change is made again.
    let again = test.append("t", 0, last("a", 0, "run", fence)).await;
    same(again, version, "the version that a repeated change returns");
    let saved = test
        .store
        .save(key("run"), fence, running("x").into(), secs(30));
    fails(saved.await, "run_ended", "`save` after the end of the run");
    test.end("run", fence).await;
    test.set(60);
    let left = test.store.claim_abandoned(9, secs(30)).await;
    let left = done(left, "`claim_abandoned`").len();
    same(
        left,
        0,
        "the number of abandoned runs, of one that has ended",
    );
    // The turn of a run may be stored after its end.
    let version = test.append("t", version, last("b", 1, "run", fence)).await;
    // Another store may have the run.
    let version = test.append("t", version, last("c", 2, "none", fence)).await;
    let texts = test.texts("t").await;
    same(texts, ("a b c".to_owned(), version), "the conversation");
}

/// The turn of a run that waits from now on.
fn waits(name: &str, keep: usize, run: &str, fence: u64) -> ThreadChange {
    let mut change = last(name, keep, run, fence);
    change.ends = Some((RunClaim::new(key(run), fence), Ok(Outcome::Interrupted)));
    change
}

async fn a_change_of_an_interrupted_run_does_not_end_it<H: All>(test: Test<H>) {
    let fence = test.begin("run", secs(30)).await;
    let version = test.append("t", 0, waits("a", 0, "run", fence)).await;
    let what = "the status of a run after the change with which it is interrupted";
    same(test.status("run").await, RunStatus::Running, what);
    let again = test.append("t", 0, waits("a", 0, "run", fence)).await;
    same(again, version, "the version that a repeated change returns");
    let what = "the status of a run after a repeated change";
    same(test.status("run").await, RunStatus::Running, what);
    test.suspend("run", fence, "q").await;
    let late = test.try_append("t", version, waits("b", 1, "run", fence));
    let what = "`append` with the claim of a run that waits";
    fails(late.await, "stale_claim", what);
    let claimed = test.claim("run", secs(30)).await;
    let new = done(claimed, "`claim` of a run that waits").fence;
    let late = test.try_append("t", version, waits("b", 1, "run", fence));
    let what = "`append` with an earlier claim of a run";
    fails(late.await, "stale_claim", what);
    let version = test.append("t", version, waits("b", 1, "run", new)).await;
    let version = test.append("t", version, last("c", 2, "run", new)).await;
    let outcome = test.get("run").await.outcome;
    let what = "the outcome of a run that was interrupted twice";
    same(outcome, Some(Ok(Outcome::Completed)), what);
    // Another store may have the run.
    let version = test.append("t", version, waits("d", 3, "none", 1)).await;
    let texts = test.texts("t").await;
    same(texts, ("a b c d".to_owned(), version), "the conversation");

    // A deleted run does not bring its conversation back.
    let fence = test.begin("deleted", secs(30)).await;
    test.delete("thread").await;
    let late = test.try_append("thread", 0, waits("late", 0, "deleted", fence));
    let what = "`append` of a run that was deleted with its conversation";
    fails(late.await, "run_not_found", what);
    let is_gone = test.load("thread").await.is_none();
    same(is_gone, true, "that a deleted conversation stays deleted");
}

async fn a_change_of_a_lost_run_is_refused<H: All>(test: Test<H>) {
    let old = test.begin("run", secs(30)).await;
    test.set(30);
    let claimed = test.claim("run", secs(30)).await;
    let new = done(claimed, "`claim` of an abandoned run").fence;
    let what = "`append` with the claim of a run that another process has taken over";
    let append = test.try_append("t", 0, last("a", 0, "run", old));
    fails(append.await, "stale_claim", what);
    same(
        test.load("t").await.is_none(),
        true,
        "that nothing is stored",
    );
    let what = "the status of a run after a change with an earlier claim";
    same(test.status("run").await, RunStatus::Running, what);
    let version = test.append("t", 0, last("a", 0, "run", new)).await;
    let what = "the status of a run after the change that ends it";
    same(test.status("run").await, RunStatus::Ended, what);
    // Nor does an earlier owner learn that the change was made.
    let append = test.try_append("t", 0, last("a", 0, "run", old));
    let what = "the repetition of a change with an earlier claim";
    fails(append.await, "stale_claim", what);
    // A suspension releases the claim.
    let fence = test.begin("waits", secs(30)).await;
    test.suspend("waits", fence, "q").await;
    let append = test.try_append("t", version, last("b", 1, "waits", fence));
    fails(
        append.await,
        "stale_claim",
        "`append` with the claim of a run that waits",
    );
    let texts = test.texts("t").await;
    same(texts, ("a".to_owned(), version), "the conversation");
}
