//! What is special about the store in Redis. The tests need the servers that `.ci/redis` starts, and are skipped
//! without them.

mod cut;
mod damage;
mod load;
mod opening;
mod restart;
#[cfg(feature = "redis-rustls")]
mod tls;

use crate::common::{
    client, fill, key, reads,
    redis::{self, command, connect, direct, list},
    running, tenant, waiting,
};
use concentric_core::{
    Outcome, RunId, ThreadId, Turn,
    store::{
        Amounts, BudgetStore, BudgetWindow, Limits, Memories, Memory, Once, RunChange, RunStatus,
        RunStore, SharedBudget, StoreError, ThreadChange, ThreadStore,
    },
};
use concentric_store::{Fault, Options, RedisStore};
use concentric_test::ManualClock;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(30);

fn id(thread: &str) -> ThreadId {
    ThreadId::new(thread)
}

/// A change that appends messages after `keep` turns.
fn add(keep: usize, texts: &[String]) -> ThreadChange {
    let mut change = ThreadChange::default();
    change.keep = keep;
    change.turns = texts.iter().map(|text| Turn::user(text.clone())).collect();
    change
}

fn fault(error: &StoreError) -> &Fault {
    match error {
        StoreError::Failed(error) | StoreError::Unwritable(error) => error.downcast_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn begin(store: &RedisStore, run: &str) -> u64 {
    let begun = RunStore::begin(store, key(run), client(run), running("hi").into(), LEASE);
    begun.await.unwrap()
}

/// The keys of a store.
async fn keys(schema: &str) -> Vec<String> {
    let mut database = connect(&direct().unwrap()).await;
    let pattern = format!("{schema}:*");
    list(command(&mut database, &["KEYS", &pattern]).await)
}

/// The entries of all logs of turns of a store.
async fn turns(schema: &str) -> usize {
    let mut database = connect(&direct().unwrap()).await;
    let mut count = 0;
    for key in keys(schema).await.iter().filter(|key| key.contains(":gt:")) {
        count += list(command(&mut database, &["LRANGE", key, "0", "-1"]).await).len();
    }
    count
}

/// Checks whether a page, of which the first turn and the limit are given, has a damaged turn.
async fn check_page(
    store: &RedisStore,
    thread: &str,
    (start, limit): (usize, usize),
    is_corrupt: bool,
) {
    let found = store.turns(tenant("acme"), id(thread), Some(start), limit);
    match found.await {
        Ok(_) => assert!(!is_corrupt, "{start} {limit}"),
        Err(error) => {
            let fault = fault(&error);
            assert!(
                is_corrupt && matches!(fault, Fault::Corrupt { .. }),
                "{fault:?}"
            );
        }
    }
}

#[tokio::test]
async fn budgets_are_removed_after_their_windows() {
    let clock = ManualClock::default();
    let Some((store, schema)) = redis::store(Options::new().clock(clock.clone())).await else {
        return;
    };
    let limits = Limits::new().model_calls(9);
    let always = SharedBudget::new("always", limits);
    let budgets = [
        always.clone(),
        SharedBudget::new("hour", limits).per(BudgetWindow::Hour),
        SharedBudget::new("day", limits).per(BudgetWindow::Day { offset: 0 }),
        SharedBudget::new("month", limits).per(BudgetWindow::Month { offset: 0 }),
    ];
    let (of, call) = (|| tenant("acme"), Amounts::new().model_calls(1));
    let reserved = store.reserve(of(), "1".into(), budgets.to_vec(), call, LEASE);
    reserved.await.unwrap().unwrap();
    BudgetStore::settle(&store, of(), "1".into(), call)
        .await
        .unwrap();
    let mut database = connect(&direct().unwrap()).await;
    let stored = format!("{schema}:{{t:acme}}:lb");
    for (hours, expected) in [(0, 4), (27, 3), (27, 2), (33 * 24, 1)] {
        clock.advance(Duration::from_hours(hours));
        // Any change of the tenant's budgets.
        store.spent(of(), always.clone()).await.unwrap();
        let left = list(command(&mut database, &["HKEYS", &stored]).await);
        assert_eq!(left.len(), expected, "{left:?} after {hours} hours more");
    }
}

#[tokio::test]
async fn a_changed_turn_is_corrupt_and_others_are_read() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let fences = [begin(&store, "changed").await, begin(&store, "other").await];
    for thread in ["changed", "other"] {
        let change = add(0, &["a".into(), "b".into()]);
        let appended = store.append(tenant("acme"), id(thread), 0, change);
        appended.await.unwrap();
    }
    let mut database = connect(&direct().unwrap()).await;
    let base = format!("{schema}:{{t:acme}}");
    for of in [":r:thread:changed", ":t:changed"] {
        let of = format!("{base}{of}");
        let log = redis::text(command(&mut database, &["HGET", &of, "log"]).await);
        let log = format!("{base}:gt:{log}");
        let entry = redis::text(command(&mut database, &["LINDEX", &log, "0"]).await);
        let entry = entry.replacen("\"text\":\"", "\"text\":\"x", 1);
        command(&mut database, &["LSET", &log, "0", &entry]).await;
    }
    let read = store.get(key("changed")).await.unwrap_err();
    assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
    let read = store.load(tenant("acme"), id("changed")).await.unwrap_err();
    assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
    check_page(&store, "changed", (0, 1), true).await;
    check_page(&store, "changed", (1, 1), false).await;
    store.get(key("other")).await.unwrap();
    let other = store.load(tenant("acme"), id("other")).await.unwrap();
    assert_eq!(other.unwrap().history.len(), 2);

    // A run that cannot be read keeps its claim, and does not hide the others.
    for (run, fence) in ["changed", "other"].into_iter().zip(fences) {
        let _ = store.renew(key(run), fence, Duration::ZERO).await.unwrap();
    }
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    let names: Vec<_> = claimed.iter().map(|it| it.key.run.as_str()).collect();
    assert_eq!(names, ["other"]);
    assert!(store.claim_abandoned(9, LEASE).await.unwrap().is_empty());

    // Changed replies, and a missing turn.
    let run = format!("{base}:r:thread:other");
    command(&mut database, &["HSET", &run, "replies", "[ ]"]).await;
    let read = store.get(key("other")).await.unwrap_err();
    assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
    let thread = format!("{base}:t:other");
    let log = redis::text(command(&mut database, &["HGET", &thread, "log"]).await);
    command(&mut database, &["RPOP", &format!("{base}:gt:{log}")]).await;
    let read = store.load(tenant("acme"), id("other")).await.unwrap_err();
    assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
    let version = match store
        .append(tenant("acme"), id("other"), 0, add(0, &[]))
        .await
    {
        Err(StoreError::Moved { found, .. }) => found,
        other => panic!("{other:?}"),
    };
    let append = store.append(tenant("acme"), id("other"), version, add(2, &["c".into()]));
    let append = append.await.unwrap_err();
    assert!(
        matches!(fault(&append), Fault::Corrupt { .. }),
        "{append:?}"
    );
}

#[tokio::test]
async fn lost_indexes_are_repaired_from_the_runs() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let fence = begin(&store, "waits").await;
    let suspended = store.suspend(key("waits"), fence, waiting("hi", "q").into());
    suspended.await.unwrap();
    let begun = store.begin(
        key("left"),
        client("left"),
        running("hi").into(),
        Duration::ZERO,
    );
    begun.await.unwrap();
    let mut database = connect(&direct().unwrap()).await;
    let base = format!("{schema}:{{t:acme}}");
    for index in [":l", ":w", ":o:thread", ":c:thread:left", ":k", ":k:thread"] {
        command(&mut database, &["DEL", &format!("{base}{index}")]).await;
    }
    // Entries of runs that do not exist.
    for index in [":l", ":w", ":e", ":x"] {
        command(
            &mut database,
            &["ZADD", &format!("{base}{index}"), "1", "thread:none"],
        )
        .await;
    }
    store.purge().await.unwrap();
    let listed = store.list_by_thread(tenant("acme"), id("thread"), None, 9);
    let listed: Vec<_> = listed
        .await
        .unwrap()
        .into_iter()
        .map(|it| it.status)
        .collect();
    assert_eq!(listed, [RunStatus::Suspended, RunStatus::Abandoned]);
    let live = store.is_live(tenant("acme"), id("thread"), RunId::new("left"));
    assert!(live.await.unwrap());
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(
        store.withdraw(tenant("acme"), id("thread")).await.unwrap(),
        1
    );
    for key in keys(&schema).await {
        let found = match redis::text(command(&mut database, &["TYPE", &key]).await).as_str() {
            "zset" => list(command(&mut database, &["ZRANGE", &key, "0", "-1"]).await),
            "set" => list(command(&mut database, &["SMEMBERS", &key]).await),
            _ => Vec::new(),
        };
        assert!(!found.contains(&"thread:none".to_owned()), "{key}");
    }
}

#[tokio::test]
async fn a_lost_list_of_tenants_is_repaired() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let begun = store.begin(
        key("left"),
        client("left"),
        running("hi").into(),
        Duration::ZERO,
    );
    begun.await.unwrap();
    let mut database = connect(&direct().unwrap()).await;
    for key in keys(&schema).await.iter().filter(|key| key.contains("{s:")) {
        command(&mut database, &["DEL", key]).await;
    }
    assert!(store.claim_abandoned(9, LEASE).await.unwrap().is_empty());
    // As if the tenant had been listed a long time ago: its next write lists it again, with all leases.
    let listed = format!("{schema}:{{t:acme}}:i");
    command(&mut database, &["SET", &listed, "1"]).await;
    assert!(
        store
            .once(tenant("acme"), "key".into(), LEASE)
            .await
            .unwrap()
    );
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    assert_eq!(claimed.len(), 1);
}

#[tokio::test]
async fn a_fork_of_a_long_conversation_copies_no_turn() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let texts: Vec<_> = (0..10_000).map(|n| n.to_string()).collect();
    let version = store.append(tenant("acme"), id("t"), 0, add(0, &texts));
    let version = version.await.unwrap();
    assert_eq!(turns(&schema).await, 10_000);
    reads::print_times(&store, "t").await;
    let began = std::time::Instant::now();
    let change = add(9_000, &["x".into()]);
    let forked = store.fork(tenant("acme"), id("t"), version, id("u"), change);
    forked.await.unwrap();
    println!("a fork of 10,000 turns takes {:?}", began.elapsed());
    assert_eq!(turns(&schema).await, 10_001);
    let fork = store.load(tenant("acme"), id("u")).await.unwrap().unwrap();
    assert_eq!(fork.history.len(), 9_001);
    let last = fork.history.iter().next_back().unwrap().as_message().text();
    assert_eq!(last, "x");
    // Their last one takes all turns with it.
    for thread in ["t", "u"] {
        assert!(store.delete(tenant("acme"), id(thread)).await.unwrap());
    }
    let left = keys(&schema).await;
    assert!(left.iter().all(|key| !key.contains(":g")), "{left:?}");
}

#[tokio::test]
async fn a_run_shares_the_turns_of_its_conversation() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let state = running("hi");
    let mut change = ThreadChange::default();
    change.turns = state.transcript().iter().cloned().collect();
    let count = change.turns.len();
    let version = store.append(tenant("acme"), id("thread"), 0, change);
    let version = version.await.unwrap();
    let fence = begin(&store, "run").await;
    assert_eq!(turns(&schema).await, count);
    assert_eq!(store.get(key("run")).await.unwrap().state, state);
    // The conversation is shortened and deleted, and the run keeps its turns.
    let cut = store.append(tenant("acme"), id("thread"), version, add(0, &["x".into()]));
    cut.await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap().state, state);
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    assert!(store.delete(tenant("acme"), id("thread")).await.unwrap());
    assert_eq!(turns(&schema).await, 0);
}

/// The keys of a tenant, and its entries in the list of tenants.
async fn of_tenant(schema: &str, tenant: &str) -> (Vec<String>, usize) {
    let mut database = connect(&direct().unwrap()).await;
    let (mut of, mut listed) = (Vec::new(), 0);
    for key in keys(schema).await {
        if let Some(key) = key.strip_prefix(&format!("{schema}:{{t:{tenant}}}")) {
            of.push(key.to_owned());
        } else if key.ends_with(":due") {
            let due = list(command(&mut database, &["ZRANGE", &key, "0", "-1"]).await);
            listed += due.iter().filter(|it| *it == tenant).count();
        } else if key.ends_with(":fresh") {
            let fresh = list(command(&mut database, &["HKEYS", &key]).await);
            listed += fresh.iter().filter(|it| *it == tenant).count();
        }
    }
    of.sort();
    (of, listed)
}

/// Deleting a tenant leaves only its counter of versions, the digests of its runs and conversations, and the time of the
/// deletion, for an hour.
#[tokio::test]
async fn a_deleted_tenant_leaves_no_entry() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    for of in ["acme", "other"] {
        fill(&store, of).await;
    }
    let before = of_tenant(&schema, "acme").await;
    assert_eq!(before.1, 2, "{before:?}");
    // Effects that a purge has seen.
    store.purge().await.unwrap();
    let other = of_tenant(&schema, "other").await;
    assert_eq!(store.delete_tenant(tenant("acme")).await.unwrap(), 2);
    // The digests of the conversations `t` and `u`.
    let left = [
        ":jd",
        ":jd:51e69892ab49df85c6230ccc57f8e1d1606caccc",
        ":jd:8efd86fb78a56a5145ed7739dcb00c78581c5375",
        ":n",
        ":y",
    ];
    let left = (left.map(str::to_owned).to_vec(), 0);
    assert_eq!(of_tenant(&schema, "acme").await, left);
    let mut database = connect(&direct().unwrap()).await;
    for key in &left.0 {
        let key = format!("{schema}:{{t:acme}}{key}");
        let kept = command(&mut database, &["TTL", &key]).await;
        let ::redis::Value::Int(1..=3_600) = kept else {
            panic!("{key}: {kept:?}");
        };
    }
    // A purge does not list it again.
    store.purge().await.unwrap();
    assert_eq!(of_tenant(&schema, "acme").await, left);
    assert_eq!(of_tenant(&schema, "other").await, other);
    // More than one step deletes.
    for n in 0..250 {
        let key = n.to_string();
        assert!(
            store
                .once(tenant("other"), key.into(), LEASE)
                .await
                .unwrap()
        );
    }
    for n in 0..150 {
        let memory = Memory::new("m", "tea", std::time::SystemTime::UNIX_EPOCH);
        let owner = n.to_string();
        let put = store.put(tenant("other"), owner.into(), memory);
        put.await.unwrap();
    }
    for n in 0..12 {
        let append = store.append(tenant("other"), id(&format!("c:{n}")), 0, add(0, &[]));
        append.await.unwrap();
    }
    assert_eq!(store.delete_tenant(tenant("other")).await.unwrap(), 14);
    let mut others = of_tenant(&schema, "other").await;
    others.0.retain(|key| left.0.contains(key));
    assert_eq!(others, left);
    // A tenant that writes again is listed again, with a greater version.
    fill(&store, "acme").await;
    let mut again = of_tenant(&schema, "acme").await;
    again.0.retain(|key| key != ":y" && !key.starts_with(":jd"));
    assert_eq!((again.0.len(), again.1), (before.0.len(), before.1));
}

#[tokio::test]
async fn tenants_and_names_with_any_characters_are_separate() {
    let Some((store, _schema)) = redis::store(Options::new()).await else {
        return;
    };
    let names = [
        "", "a", "a:b", "a}:n", "{a}", "}", "%41", "A", "a\0b", "é*?[x]",
    ];
    for tenant_name in names {
        for thread in names {
            let appended = store.append(
                tenant(tenant_name),
                id(thread),
                0,
                add(0, &[format!("{tenant_name}/{thread}")]),
            );
            appended.await.unwrap();
        }
        assert!(
            store
                .once(tenant(tenant_name), "key".into(), LEASE)
                .await
                .unwrap()
        );
        let memory = Memory::new("m", tenant_name, std::time::SystemTime::UNIX_EPOCH);
        store
            .put(tenant(tenant_name), "o".into(), memory)
            .await
            .unwrap();
    }
    for tenant_name in names {
        for thread in names {
            let stored = store.load(tenant(tenant_name), id(thread)).await.unwrap();
            let history = stored.unwrap().history;
            let text = history.iter().next().unwrap().as_message().text();
            assert_eq!(text, format!("{tenant_name}/{thread}"));
        }
        let listed = store
            .list_threads(tenant(tenant_name), None, 99)
            .await
            .unwrap();
        let listed: Vec<_> = listed.iter().map(|it| it.thread.as_str()).collect();
        let newest_first: Vec<_> = names.into_iter().rev().collect();
        assert_eq!(listed, newest_first);
    }
}

#[tokio::test]
async fn a_lease_is_measured_by_the_servers_clock() {
    let Some((store, _schema)) = redis::store(Options::new()).await else {
        return;
    };
    let fence = begin(&store, "run").await;
    let record = store.get(key("run")).await.unwrap();
    let until = std::time::SystemTime::now() + LEASE;
    let differs = record
        .lease_until
        .max(until)
        .duration_since(record.lease_until.min(until));
    // The server is this machine.
    assert!(differs.unwrap() < Duration::from_secs(5), "{record:?}");
    let _ = store
        .renew(key("run"), fence, Duration::ZERO)
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Abandoned);
    let claim = store.claim(record, vec![], Duration::MAX);
    let claimed = claim.await.unwrap();
    assert_eq!(claimed.takeovers, 1);
    assert_eq!(store.get(key("run")).await.unwrap(), claimed);
}

#[tokio::test]
async fn versions_do_not_restart_with_a_lost_counter() {
    let Some((store, schema)) = redis::store(Options::new()).await else {
        return;
    };
    let first = begin(&store, "a").await;
    let mut database = connect(&direct().unwrap()).await;
    // Otherwise the counter of the same second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    command(&mut database, &["DEL", &format!("{schema}:{{t:acme}}:n")]).await;
    assert!(begin(&store, "b").await > first);
}
