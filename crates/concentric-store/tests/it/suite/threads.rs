use super::*;
use concentric_core::{
    Transcript, Turn,
    state::{SlotPlace, StoredSlot},
    store::{StoredThread, ThreadChange, ThreadSummary},
};

suite! {
    a_conversation_is_created_once
    a_change_of_an_older_version_is_refused
    a_repeated_change_is_applied_once
    a_change_replaces_the_turns_that_it_does_not_keep
    slots_are_changed_one_by_one
    a_suspended_turn_is_kept_until_the_next_change
    a_fork_shares_turns_and_diverges
    forks_of_forks_keep_their_turns
    a_fork_needs_a_source_and_a_free_id
    a_fork_keeps_its_session
    forks_survive_the_deletion_of_their_origin
    conversations_are_listed_in_pages
    a_deleted_conversation_takes_its_runs_with_it
    a_tenant_reaches_no_other_tenants_conversation
    a_conversation_over_the_size_limit_is_not_written
    a_change_of_missing_turns_is_refused
    random_changes_equal_a_model
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

async fn fork<S: Store>(
    store: &S,
    (thread, version): (&str, u64),
    to: &str,
    change: ThreadChange,
) -> Result<u64, StoreError> {
    store
        .fork(tenant("acme"), id(thread), version, id(to), change)
        .await
}

async fn load<S: Store>(store: &S, thread: &str) -> Option<StoredThread> {
    store.load(tenant("acme"), id(thread)).await.unwrap()
}

/// The texts of a stored conversation, and its version.
async fn texts<S: Store>(store: &S, thread: &str) -> (Vec<String>, u64) {
    let stored = load(store, thread).await.unwrap();
    let texts = stored.history.iter().map(|turn| turn.as_message().text());
    (texts.collect(), stored.version)
}

fn moved<T: std::fmt::Debug>(result: Result<T, StoreError>) -> (u64, u64) {
    match result.unwrap_err() {
        StoreError::Moved { expected, found } => (expected, found),
        other => panic!("{other:?}"),
    }
}

async fn a_conversation_is_created_once<S: Store>(store: S, _: ManualClock) {
    assert!(load(&store, "t").await.is_none());
    assert_eq!(moved(append(&store, "t", 7, add(0, &["a"])).await), (7, 0));
    let version = append(&store, "t", 0, add(0, &["a", "b"])).await.unwrap();
    assert!(version > 0);
    assert_eq!(
        moved(append(&store, "t", 0, add(0, &["c"])).await),
        (0, version)
    );
    let stored = load(&store, "t").await.unwrap();
    assert_eq!(
        texts(&store, "t").await,
        (vec!["a".into(), "b".into()], version)
    );
    assert_eq!(stored.session, Some(id("t")));
    assert!(stored.slots.is_empty() && stored.suspended.is_none());
}

async fn a_change_of_an_older_version_is_refused<S: Store>(store: S, _: ManualClock) {
    let first = append(&store, "t", 0, add(0, &["a"])).await.unwrap();
    let second = append(&store, "t", first, add(1, &["b"])).await.unwrap();
    assert!(second > first);
    assert_eq!(
        moved(append(&store, "t", first, add(1, &["c"])).await),
        (first, second)
    );
    assert_eq!(
        texts(&store, "t").await,
        (vec!["a".into(), "b".into()], second)
    );
    // A deleted conversation does not get its versions again.
    assert!(store.delete(tenant("acme"), id("t")).await.unwrap());
    let again = append(&store, "t", 0, add(0, &["new"])).await.unwrap();
    assert!(again > second);
}

async fn a_repeated_change_is_applied_once<S: Store>(store: S, _: ManualClock) {
    let with_id = |name: &'static str, keep| {
        let mut change = add(keep, &["x"]);
        change.id = Some(name.into());
        change
    };
    let first = append(&store, "t", 0, with_id("r/1", 0)).await.unwrap();
    assert_eq!(
        append(&store, "t", 0, with_id("r/1", 0)).await.unwrap(),
        first
    );
    let second = append(&store, "t", first, with_id("r/2", 1)).await.unwrap();
    assert_eq!(
        append(&store, "t", first, with_id("r/2", 1)).await.unwrap(),
        second
    );
    moved(append(&store, "t", first, with_id("r/3", 1)).await);
    assert_eq!(texts(&store, "t").await.0.len(), 2);
    let forked = fork(&store, ("t", second), "u", with_id("f", 2))
        .await
        .unwrap();
    let again = fork(&store, ("t", second), "u", with_id("f", 2)).await;
    assert_eq!(again.unwrap(), forked);
    assert_eq!(texts(&store, "u").await.0.len(), 3);
}

async fn a_change_replaces_the_turns_that_it_does_not_keep<S: Store>(store: S, _: ManualClock) {
    let mut version = append(&store, "t", 0, add(0, &["a", "b", "c"]))
        .await
        .unwrap();
    for (keep, new, expected) in [
        (1, &["d"] as &[_], "a d"),
        (2, &["e", "f"], "a d e f"),
        (4, &[], "a d e f"),
        (0, &["g"], "g"),
        (0, &[], ""),
        (0, &["h"], "h"),
    ] {
        version = append(&store, "t", version, add(keep, new)).await.unwrap();
        assert_eq!(texts(&store, "t").await.0.join(" "), expected);
    }
}

async fn slots_are_changed_one_by_one<S: Store>(store: S, _: ManualClock) {
    let mut change = add(0, &[]);
    change.slots = vec![slot("b", json!(1)), slot("a", json!({"k": [1]}))];
    let version = append(&store, "t", 0, change).await.unwrap();
    let stored = load(&store, "t").await.unwrap();
    assert_eq!(
        stored.slots,
        [slot("a", json!({"k": [1]})), slot("b", json!(1))]
    );
    let next = [
        slot("a", json!({"k": [1]})),
        slot("b", json!(2)),
        slot("c", json!(3)),
    ];
    let change = stored.change_to(&Transcript::new(), &next);
    assert_eq!(change.slots, next[1..]);
    let version = append(&store, "t", version, change).await.unwrap();
    let stored = load(&store, "t").await.unwrap();
    assert_eq!(stored.slots, next);
    // A slot that is gone.
    let change = stored.change_to(&Transcript::new(), &next[..1]);
    append(&store, "t", version, change).await.unwrap();
    assert_eq!(load(&store, "t").await.unwrap().slots, next[..1]);
}

async fn a_suspended_turn_is_kept_until_the_next_change<S: Store>(store: S, _: ManualClock) {
    let state = waiting("hi", "q");
    let history: Transcript = turns(&["before"]).into_iter().collect();
    let mut whole = history.clone();
    whole.extend(state.transcript().iter().cloned());
    let state = state.with_transcript(whole);
    let change = StoredThread::default().change_to(&history, &[]);
    let change = change.suspend(&history, Box::new(state.clone()), vec![slot("s", json!(1))]);
    let suspended = change.suspended.as_ref().unwrap();
    // Only its own turns are written.
    assert_eq!(
        (suspended.shared, suspended.state.transcript().len()),
        (1, 1)
    );
    let version = append(&store, "t", 0, change).await.unwrap();
    let stored = load(&store, "t").await.unwrap();
    assert_eq!((stored.history.len(), stored.slots.len()), (1, 0));
    let (read, slots) = stored.suspended.unwrap();
    assert_eq!(
        (read.transcript(), read.interrupts()),
        (state.transcript(), state.interrupts())
    );
    assert_eq!(slots, [slot("s", json!(1))]);
    let forked = fork(&store, ("t", version), "u", add(1, &[])).await;
    forked.unwrap();
    assert!(load(&store, "u").await.unwrap().suspended.is_none());
    append(&store, "t", version, add(1, &[])).await.unwrap();
    assert!(load(&store, "t").await.unwrap().suspended.is_none());
}

async fn a_fork_shares_turns_and_diverges<S: Store>(store: S, _: ManualClock) {
    let mut change = add(0, &["a", "b"]);
    change.slots = vec![slot("n", json!(1))];
    let version = append(&store, "t", 0, change).await.unwrap();
    let mut change = add(1, &["x"]);
    change.slots = vec![slot("m", json!(2))];
    let forked = fork(&store, ("t", version), "u", change).await.unwrap();
    assert_eq!(
        texts(&store, "t").await,
        (vec!["a".into(), "b".into()], version)
    );
    assert_eq!(
        texts(&store, "u").await,
        (vec!["a".into(), "x".into()], forked)
    );
    let slots = load(&store, "u").await.unwrap().slots;
    assert_eq!(slots, [slot("m", json!(2)), slot("n", json!(1))]);
    append(&store, "t", version, add(2, &["c"])).await.unwrap();
    let mut change = add(2, &["y"]);
    change.slots = vec![slot("n", json!(9))];
    append(&store, "u", forked, change).await.unwrap();
    assert_eq!(texts(&store, "t").await.0.join(" "), "a b c");
    assert_eq!(texts(&store, "u").await.0.join(" "), "a x y");
    assert_eq!(
        load(&store, "t").await.unwrap().slots,
        [slot("n", json!(1))]
    );
}

async fn forks_of_forks_keep_their_turns<S: Store>(store: S, _: ManualClock) {
    let mut version = append(&store, "t0", 0, add(0, &["0"])).await.unwrap();
    let mut expected = String::from("0");
    // More than a store links before it copies.
    for n in 1..40 {
        let (from, to, text) = (format!("t{}", n - 1), format!("t{n}"), n.to_string());
        version = fork(&store, (&from, version), &to, add(n, &[&text]))
            .await
            .unwrap();
        expected = format!("{expected} {n}");
        assert_eq!(texts(&store, &to).await.0.join(" "), expected);
    }
    // Without those between.
    for n in 1..39 {
        store
            .delete(tenant("acme"), id(&format!("t{n}")))
            .await
            .unwrap();
    }
    assert_eq!(texts(&store, "t39").await.0.join(" "), expected);
    assert_eq!(texts(&store, "t0").await.0.join(" "), "0");
}

async fn a_fork_needs_a_source_and_a_free_id<S: Store>(store: S, _: ManualClock) {
    assert_eq!(
        moved(fork(&store, ("t", 3), "u", add(0, &[])).await),
        (3, 0)
    );
    let none = fork(&store, ("t", 0), "u", add(0, &[])).await.unwrap_err();
    assert!(matches!(none, StoreError::NotFound));
    let version = append(&store, "t", 0, add(0, &["a"])).await.unwrap();
    let other = append(&store, "u", 0, add(0, &["b"])).await.unwrap();
    let taken = fork(&store, ("t", version), "u", add(1, &[])).await;
    assert_eq!(moved(taken), (0, other));
    let stale = fork(&store, ("t", other), "v", add(1, &[])).await;
    assert_eq!(moved(stale), (other, version));
    let itself = fork(&store, ("t", version), "t", add(1, &[])).await;
    assert_eq!(moved(itself), (0, version));
    assert_eq!(texts(&store, "u").await.0, ["b"]);
    assert!(load(&store, "v").await.is_none());
}

async fn a_fork_keeps_its_session<S: Store>(store: S, _: ManualClock) {
    let mut change = add(0, &["a"]);
    change.session = Some(id("first"));
    let version = append(&store, "t", 0, change).await.unwrap();
    let forked = fork(&store, ("t", version), "u", add(1, &[]))
        .await
        .unwrap();
    assert_eq!(load(&store, "u").await.unwrap().session, Some(id("first")));
    // It is set when a conversation is created only.
    let mut change = add(1, &[]);
    change.session = Some(id("other"));
    append(&store, "u", forked, change.clone()).await.unwrap();
    assert_eq!(load(&store, "u").await.unwrap().session, Some(id("first")));
    fork(&store, ("t", version), "v", change).await.unwrap();
    assert_eq!(load(&store, "v").await.unwrap().session, Some(id("other")));
}

async fn forks_survive_the_deletion_of_their_origin<S: Store>(store: S, _: ManualClock) {
    let version = append(&store, "t", 0, add(0, &["a", "b", "c"]))
        .await
        .unwrap();
    let forked = fork(&store, ("t", version), "u", add(2, &["x"]))
        .await
        .unwrap();
    assert!(store.delete(tenant("acme"), id("t")).await.unwrap());
    assert!(!store.delete(tenant("acme"), id("t")).await.unwrap());
    assert!(load(&store, "t").await.is_none());
    assert_eq!(texts(&store, "u").await.0.join(" "), "a b x");
    append(&store, "u", forked, add(1, &["y"])).await.unwrap();
    assert_eq!(texts(&store, "u").await.0.join(" "), "a y");
}

async fn conversations_are_listed_in_pages<S: Store>(store: S, _: ManualClock) {
    for thread in ["c", "a", "d", "b"] {
        append(&store, thread, 0, add(0, &["x", "y"]))
            .await
            .unwrap();
    }
    let other = store.append(tenant("other"), id("e"), 0, add(0, &["x"]));
    other.await.unwrap();
    let list = async |after: Option<&str>, limit| {
        let page = store
            .list_threads(tenant("acme"), after.map(id), limit)
            .await;
        let page: Vec<ThreadSummary> = page.unwrap();
        assert!(
            page.iter()
                .all(|it| it.turns == 2 && it.version > 0 && it.session == it.thread)
        );
        let threads = page.iter().map(|it| it.thread.as_str().to_owned());
        threads.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list(None, 9).await, "a b c d");
    assert_eq!(list(None, 2).await, "a b");
    // A page continues even if its mark is gone.
    store.delete(tenant("acme"), id("b")).await.unwrap();
    append(&store, "bb", 0, add(0, &["x", "y"])).await.unwrap();
    assert_eq!(list(Some("b"), 9).await, "bb c d");
    assert_eq!(list(Some("d"), 9).await, "");
    assert_eq!(list(None, 0).await, "");
    assert_eq!(list(None, usize::MAX).await, "a bb c d");
}

async fn a_deleted_conversation_takes_its_runs_with_it<S: Store>(store: S, _: ManualClock) {
    let fence = begin_as(&store, "run", "run").await.unwrap();
    let effect = EffectKey::new(tenant("acme"), "effect");
    let mut intent = Intent::new("t".into(), "{}".into(), &concentric_core::Context::new());
    intent.claim = Some(RunClaim::new(key("run"), fence));
    Ledger::begin(&store, effect.clone(), intent).await.unwrap();
    let decision = |span| {
        let (tool, definition) = (Str::from("t"), Str::from("d"));
        let of = tenant("acme");
        StoredDecision::new(of, tool, definition, None, span, true, None, at(0))
    };
    let run = RunId::new("run");
    let here = Some(id("thread"));
    let spans = [
        StoredScope::Always,
        StoredScope::Thread(id("thread")),
        StoredScope::Run { thread: here, run },
    ];
    for span in spans {
        store.remember(decision(span)).await.unwrap();
    }
    // The conversation itself was never stored.
    assert!(!store.delete(tenant("other"), id("thread")).await.unwrap());
    store.get(key("run")).await.unwrap();
    assert!(!store.delete(tenant("acme"), id("thread")).await.unwrap());
    assert_eq!(code(store.get(key("run")).await), "run_not_found");
    let save = store
        .save(key("run"), fence, running("hi").into(), secs(60))
        .await;
    assert_eq!(code(save), "run_not_found");
    assert_eq!(store.known(effect).await.unwrap(), LedgerEntry::New);
    let left = store.list(tenant("acme")).await.unwrap();
    assert_eq!(left, [decision(StoredScope::Always)]);
}

async fn a_tenant_reaches_no_other_tenants_conversation<S: Store>(store: S, _: ManualClock) {
    let version = append(&store, "t", 0, add(0, &["secret"])).await.unwrap();
    let other = || tenant("other");
    assert!(store.load(other(), id("t")).await.unwrap().is_none());
    moved(
        store
            .append(other(), id("t"), version, add(1, &["x"]))
            .await,
    );
    moved(
        store
            .fork(other(), id("t"), version, id("u"), add(1, &[]))
            .await,
    );
    assert!(
        store
            .list_threads(other(), None, 9)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(!store.delete(other(), id("t")).await.unwrap());
    let theirs = store.append(other(), id("t"), 0, add(0, &["theirs"]));
    theirs.await.unwrap();
    assert_eq!(texts(&store, "t").await, (vec!["secret".into()], version));
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

async fn a_change_of_missing_turns_is_refused<S: Store>(store: S, _: ManualClock) {
    assert_eq!(
        code(append(&store, "t", 0, add(1, &["a"])).await),
        "unwritable"
    );
    let version = append(&store, "t", 0, add(0, &["a"])).await.unwrap();
    assert_eq!(
        code(append(&store, "t", version, add(2, &["a"])).await),
        "unwritable"
    );
    assert_eq!(
        code(fork(&store, ("t", version), "u", add(2, &[])).await),
        "unwritable"
    );
    assert_eq!(texts(&store, "t").await, (vec!["a".into()], version));
    assert!(load(&store, "u").await.is_none());
}

/// A generator of numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let limit = u64::try_from(limit).unwrap();
        usize::try_from((z ^ (z >> 31)) % limit).unwrap()
    }
}

async fn random_changes_equal_a_model<S: Store>(store: S, _: ManualClock) {
    let seed = std::env::var("CONCENTRIC_SEED").map_or(14, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut model: std::collections::BTreeMap<String, (u64, Vec<String>)> = Default::default();
    for step in 0..300 {
        let (thread, to) = (random.below(6).to_string(), random.below(6).to_string());
        let (version, old) = model.get(&thread).cloned().unwrap_or_default();
        let keep = match random.below(3) {
            0 => random.below(old.len() + 1),
            _ => old.len(),
        };
        let new: Vec<String> = (0..random.below(3))
            .map(|n| format!("{step}/{n}"))
            .collect();
        let new: Vec<&str> = new.iter().map(String::as_str).collect();
        let mut texts: Vec<String> = old[..keep].to_vec();
        texts.extend(new.iter().map(|text| (*text).to_owned()));
        match random.below(8) {
            0 => {
                let deleted = store.delete(tenant("acme"), id(&thread)).await.unwrap();
                assert_eq!(deleted, model.remove(&thread).is_some(), "step {step}");
            }
            1..4 => {
                let forked = fork(&store, (&thread, version), &to, add(keep, &new)).await;
                assert_eq!(
                    forked.is_ok(),
                    version > 0 && !model.contains_key(&to),
                    "step {step}: {forked:?}"
                );
                if let Ok(version) = forked {
                    model.insert(to, (version, texts));
                }
            }
            _ => {
                let version = append(&store, &thread, version, add(keep, &new)).await;
                model.insert(thread, (version.unwrap(), texts));
            }
        }
        for (thread, (version, expected)) in &model {
            let found = self::texts(&store, thread).await;
            assert_eq!(
                found,
                (expected.clone(), *version),
                "step {step}, thread {thread}"
            );
        }
    }
}
