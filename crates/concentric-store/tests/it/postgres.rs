//! What is special about the store in PostgreSQL. The tests need the server that `.ci/postgres` starts, and
//! are skipped without it.

mod cut;
mod figures;
mod load;
mod opening;
mod restart;
#[cfg(feature = "postgres-rustls")]
mod tls;

use crate::common::{
    client, fill, key,
    postgres::{TABLES, connect, migrated, number},
    question, reads, running, tenant, waiting,
};
use concentric_core::{
    Outcome, Reply, RunId, ThreadId, Turn,
    store::{RunStatus, RunStore, StoreError, ThreadChange, ThreadStore},
};
use concentric_store::{Fault, Options, PostgresStore};
use std::time::Duration;
use tokio_postgres::Client;

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

async fn begin(store: &PostgresStore, run: &str) -> u64 {
    let begun = store.begin(key(run), client(run), running("hi").into(), LEASE);
    begun.await.unwrap()
}

/// Checks whether a page, of which the first turn and the limit are given, has a damaged turn.
async fn check_page(
    store: &PostgresStore,
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
async fn a_run_that_an_earlier_release_ends_has_no_outcome() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let store = store.await.unwrap();
    let fence = begin(&store, "run").await;
    let database = connect(&url).await;
    // The functions of version 1.
    let end = format!("SELECT {schema}.run_end('acme', 'thread', 'run', {fence}, NULL)");
    database.batch_execute(&end).await.unwrap();
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    let found = store.find_by_client_id(tenant("acme"), id("thread"), client("run"));
    let found = found.await.unwrap();
    assert_eq!((found.status, found.outcome), (RunStatus::Ended, None));
    let record = store.get(key("run")).await.unwrap();
    assert_eq!((record.status, record.outcome), (RunStatus::Ended, None));
    let read = format!(
        "SELECT o_status, o_run FROM {schema}.run_get('acme', 'thread', 'run', NULL, NULL, 1000000)"
    );
    let row = database.query_one(&read, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), ("ended", "run"));
}

#[tokio::test]
async fn a_changed_turn_is_corrupt_and_others_are_read() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let store = store.await.unwrap();
    begin(&store, "changed").await;
    begin(&store, "other").await;
    for thread in ["changed", "other"] {
        let change = add(0, &["a".into(), "b".into()]);
        let appended = store.append(tenant("acme"), id(thread), 0, change);
        appended.await.unwrap();
    }
    let database = connect(&url).await;
    let change = |what: &str| {
        format!(
            "UPDATE {schema}.turns SET body = convert_to(
                 replace(convert_from(body, 'UTF8'), '\"text\":\"', '\"text\":\"x'), 'UTF8')
             WHERE n = 0 AND log = (SELECT log FROM {schema}.{what})"
        )
    };
    for what in [
        "runs WHERE run = 'changed'",
        "threads WHERE thread = 'changed'",
    ] {
        let changed = database.execute(&change(what), &[]).await.unwrap();
        assert_eq!(changed, 1, "{what}");
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
    for run in ["changed", "other"] {
        let fence = store.get(key("other")).await.unwrap().fence;
        let fence = if run == "other" { fence } else { fence - 1 };
        let _ = store.renew(key(run), fence, Duration::ZERO).await.unwrap();
    }
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    let names: Vec<_> = claimed.iter().map(|it| it.key.run.as_str()).collect();
    assert_eq!(names, ["other"]);
    assert!(store.claim_abandoned(9, LEASE).await.unwrap().is_empty());

    // A missing turn, and a changed head.
    let delete = format!(
        "DELETE FROM {schema}.turns
         WHERE log = (SELECT log FROM {schema}.threads WHERE thread = 'other') AND n = 1"
    );
    database.execute(&delete, &[]).await.unwrap();
    let read = store.load(tenant("acme"), id("other")).await.unwrap_err();
    assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
    for (page, is_corrupt) in [((0, 1), false), ((0, 2), true), ((2, 1), false)] {
        check_page(&store, "other", page, is_corrupt).await;
    }
    let append = store
        .append(tenant("acme"), id("other"), 0, add(0, &[]))
        .await;
    let Err(StoreError::Moved { found, .. }) = append else {
        panic!("{append:?}");
    };
    let append = store.append(tenant("acme"), id("other"), found, add(2, &["c".into()]));
    let append = append.await.unwrap_err();
    assert!(
        matches!(fault(&append), Fault::Corrupt { .. }),
        "{append:?}"
    );
    let change = format!("UPDATE {schema}.runs SET replies = '[ ]' WHERE run = 'other'");
    database.execute(&change, &[]).await.unwrap();
    let read = store.get(key("other")).await.unwrap_err();
    assert!(matches!(fault(&read), Fault::Corrupt { .. }), "{read:?}");
}

#[tokio::test]
async fn a_name_with_the_character_zero_is_unwritable() {
    let Some((store, _schema)) = crate::common::postgres::store(Options::new()).await else {
        return;
    };
    let begun = store.begin(key("a\0b"), client("c"), running("hi").into(), LEASE);
    let error = begun.await.unwrap_err();
    assert!(matches!(error, StoreError::Unwritable(_)), "{error:?}");
    let long = "x".repeat(9_000);
    let begun = store.begin(key(&long), client("c"), running("hi").into(), LEASE);
    // A long name of one character is compressed, a random one is not.
    begun.await.unwrap();
    // A text may contain it.
    let begun = store.begin(key("a"), client("d"), running("a\0b").into(), LEASE);
    begun.await.unwrap();
    assert_eq!(store.get(key("a")).await.unwrap().state, running("a\0b"));
}

#[tokio::test]
async fn a_fork_of_a_long_conversation_copies_no_turn() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let store = store.await.unwrap();
    let texts: Vec<_> = (0..10_000).map(|n| n.to_string()).collect();
    let version = store.append(tenant("acme"), id("t"), 0, add(0, &texts));
    let version = version.await.unwrap();
    let database = connect(&url).await;
    let rows = format!("SELECT count(*) FROM {schema}.turns");
    assert_eq!(number(&database, &rows).await, 10_000);
    let change = || add(9_000, &["x".into()]);
    let forked = store.fork(tenant("acme"), id("t"), version, id("u"), change());
    forked.await.unwrap();
    assert_eq!(number(&database, &rows).await, 10_001);
    let fork = store.load(tenant("acme"), id("u")).await.unwrap().unwrap();
    assert_eq!(fork.history.len(), 9_001);
    let last = fork.history.iter().next_back().unwrap().as_message().text();
    assert_eq!(last, "x");
    reads::print_times(&store, "t").await;
    // The fastest, so that it is not the load of the machine that is measured.
    let (mut fastest, mut forks) = (Duration::MAX, Vec::new());
    for n in 0..20 {
        let (to, began) = (format!("u{n}"), std::time::Instant::now());
        let forked = store.fork(tenant("acme"), id("t"), version, id(&to), change());
        forked.await.unwrap();
        fastest = fastest.min(began.elapsed());
        forks.push(to);
    }
    println!("a fork of 10,000 turns takes {fastest:?}");
    // Their last one takes all turns with it.
    forks.extend(["t", "u"].map(str::to_owned));
    for thread in &forks {
        assert!(store.delete(tenant("acme"), id(thread)).await.unwrap());
    }
    assert_eq!(number(&database, &rows).await, 0);
    let logs = format!("SELECT count(*) FROM {schema}.logs");
    assert_eq!(number(&database, &logs).await, 0);
}

#[tokio::test]
async fn a_run_shares_the_turns_of_its_conversation() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let store = store.await.unwrap();
    let state = running("hi");
    let mut change = ThreadChange::default();
    change.turns = state.transcript().iter().cloned().collect();
    let turns = i64::try_from(change.turns.len()).unwrap();
    let version = store.append(tenant("acme"), id("thread"), 0, change.clone());
    let version = version.await.unwrap();
    let database = connect(&url).await;
    let rows = format!("SELECT count(*) FROM {schema}.turns");
    let fence = begin(&store, "run").await;
    assert_eq!(number(&database, &rows).await, turns);
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
    assert_eq!(number(&database, &rows).await, 0);
}

/// The number of rows of each table of a schema, except that of its version.
/// The rows of each table, except the digests of deleted runs, which have no names.
async fn rows(database: &Client, schema: &str) -> Vec<(String, i64)> {
    let find = "SELECT table_name::text FROM information_schema.tables
                WHERE table_schema = $1 AND table_name NOT IN ('meta', 'deleted_runs') ORDER BY 1";
    let mut all = Vec::new();
    for row in database.query(find, &[&schema]).await.unwrap() {
        let table: String = row.get(0);
        let rows = number(database, &format!("SELECT count(*) FROM {schema}.{table}")).await;
        all.push((table, rows));
    }
    assert_eq!(all.len() + 1, TABLES.len());
    all
}

#[tokio::test]
async fn a_deleted_tenant_leaves_no_row() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let store = PostgresStore::open_with(&url, Options::new().schema(schema.as_str()));
    let store = store.await.unwrap();
    for of in ["acme", "other"] {
        fill(&store, of).await;
    }
    let database = connect(&url).await;
    let both = rows(&database, &schema).await;
    assert!(both.iter().all(|(_, rows)| *rows > 0), "{both:?}");
    assert_eq!(store.delete_tenant(tenant("acme")).await.unwrap(), 2);
    let half = both.into_iter().map(|(table, rows)| (table, rows / 2));
    assert_eq!(rows(&database, &schema).await, half.collect::<Vec<_>>());
    // More than one step deletes.
    let many = format!(
        "INSERT INTO {schema}.once (tenant, key, until, n, attempt)
         SELECT 'other', n::text, 0, n, '' FROM generate_series(1, 2500) n"
    );
    assert_eq!(database.execute(&many, &[]).await.unwrap(), 2500);
    for n in 0..12 {
        let append = store.append(tenant("other"), id(&n.to_string()), 0, add(0, &[]));
        append.await.unwrap();
    }
    assert_eq!(store.delete_tenant(tenant("other")).await.unwrap(), 14);
    let left = rows(&database, &schema).await;
    assert!(left.iter().all(|(_, rows)| *rows == 0), "{left:?}");
}

#[tokio::test]
async fn a_deletion_that_fails_has_deleted_some_runs() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new().schema(schema.as_str());
    let short = options.clone().statement_timeout(Duration::from_secs(2));
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    let fails = PostgresStore::open_with(&url, short).await.unwrap();
    let mut database = connect(&url).await;
    let rows = format!("SELECT count(*) FROM {schema}.runs");
    for of_tenant in [false, true] {
        let append = store.append(tenant("acme"), id("thread"), 0, add(0, &["a".into()]));
        append.await.unwrap();
        for n in 0..150 {
            begin(&store, &format!("{n:03}")).await;
        }
        let other = connect(&url).await;
        let lock = database.transaction().await.unwrap();
        let last = format!("SELECT FROM {schema}.runs WHERE run = '149' FOR UPDATE");
        lock.query(&last, &[]).await.unwrap();
        let delete = async |store: &PostgresStore| match of_tenant {
            false => store
                .delete(tenant("acme"), id("thread"))
                .await
                .map(u64::from),
            true => store.delete_tenant(tenant("acme")).await,
        };
        let error = delete(&fails).await.unwrap_err();
        assert!(matches!(fault(&error), Fault::Database(_)), "{error:?}");
        assert_eq!(number(&other, &rows).await, 50);
        lock.rollback().await.unwrap();
        let deleted = delete(&store).await.unwrap();
        // Those of a tenant are deleted in any order.
        assert!(of_tenant || deleted == 1);
        assert_eq!(number(&other, &rows).await, 0);
        let left = store.load(tenant("acme"), id("thread")).await.unwrap();
        assert!(left.is_none());
    }
}

#[tokio::test]
async fn a_run_begins_while_an_ended_one_is_removed() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new().schema(schema.as_str());
    let store = PostgresStore::open_with(&url, options.statement_timeout(Duration::from_secs(5)));
    let store = store.await.unwrap();
    let mut change = ThreadChange::default();
    change.turns = running("hi").transcript().iter().cloned().collect();
    let appended = store.append(tenant("acme"), id("thread"), 0, change);
    appended.await.unwrap();
    let fence = begin(&store, "ended").await;
    store
        .end(key("ended"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    let database = connect(&url).await;
    let rows = format!("SELECT count(*) FROM {schema}.runs");
    let purge = format!("BEGIN; SELECT {schema}.purge(NULL, NULL, 0, NULL, 0, 9, 9)");
    database.batch_execute(&purge).await.unwrap();
    assert_eq!(number(&database, &rows).await, 0);
    begin(&store, "run").await;
    database.batch_execute("COMMIT").await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap().state, running("hi"));
}

#[tokio::test]
async fn a_damaged_run_is_not_claimed() {
    let Some((store, schema)) = crate::common::postgres::store(Options::new()).await else {
        return;
    };
    let database = connect(&crate::common::postgres::direct().unwrap()).await;
    for (n, damage) in [
        "head = head || '\\x20'",
        "replies = '[ ]'",
        "checksum = ''",
        "len = 9",
    ]
    .into_iter()
    .enumerate()
    {
        let run = n.to_string();
        let change = running("hi").into();
        let begun = store.begin(key(&run), client(&run), change, Duration::ZERO);
        begun.await.unwrap();
        let record = store.get(key(&run)).await.unwrap();
        let damage = format!(
            "UPDATE {}.runs SET {damage} WHERE run = '{run}'",
            schema.name()
        );
        assert_eq!(database.execute(&damage, &[]).await.unwrap(), 1);
        let replies = vec![Reply::approve(question("q"))];
        let claim = store.claim(record, replies, LEASE).await.unwrap_err();
        assert!(matches!(fault(&claim), Fault::Corrupt { .. }), "{claim:?}");
    }
}

#[tokio::test]
async fn claims_of_runs_that_are_not_read_are_given_back() {
    let Some((url, schema)) = migrated().await else {
        return;
    };
    let options = Options::new().schema(schema.as_str());
    let short = options
        .clone()
        .statement_timeout(Duration::from_millis(300));
    let store = PostgresStore::open_with(&url, options).await.unwrap();
    let fails = PostgresStore::open_with(&url, short).await.unwrap();
    for run in ["a", "b", "c"] {
        let change = running("hi").into();
        let begun = store.begin(key(run), client(run), change, Duration::ZERO);
        begun.await.unwrap();
    }
    // The claim does not read the turns.
    let mut database = connect(&url).await;
    for _ in 0..7 {
        let lock = database.transaction().await.unwrap();
        let statement = format!("LOCK TABLE {schema}.turns IN ACCESS EXCLUSIVE MODE");
        lock.batch_execute(&statement).await.unwrap();
        let error = fails.claim_abandoned(2, LEASE).await.unwrap_err();
        assert!(matches!(fault(&error), Fault::Database(_)), "{error:?}");
        lock.rollback().await.unwrap();
    }
    let claimed = store.claim_abandoned(9, LEASE).await.unwrap();
    let mut claims: Vec<_> = claimed
        .iter()
        .map(|it| (it.key.run.as_str(), it.takeovers))
        .collect();
    claims.sort_unstable();
    assert_eq!(claims, [("a", 1), ("b", 1), ("c", 1)]);
    for record in claimed {
        assert_eq!(store.get(record.key.clone()).await.unwrap(), record);
    }
}

#[tokio::test]
async fn a_lease_is_measured_by_the_servers_clock() {
    let Some((store, _schema)) = crate::common::postgres::store(Options::new()).await else {
        return;
    };
    let fence = begin(&store, "run").await;
    let record = store.get(key("run")).await.unwrap();
    let now = std::time::SystemTime::now();
    let until = now + LEASE;
    let differs = record
        .lease_until
        .max(until)
        .duration_since(record.lease_until.min(until));
    // The server is this machine.
    assert!(differs.unwrap() < Duration::from_secs(5), "{record:?}");
    assert_eq!(record.status, RunStatus::Running);
    let taken = store.claim(record, vec![], LEASE).await;
    assert!(matches!(taken, Err(StoreError::Taken)), "{taken:?}");
    let _ = store
        .renew(key("run"), fence, Duration::ZERO)
        .await
        .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert_eq!(record.status, RunStatus::Abandoned);
    let reply = Reply::approve(question("q"));
    let claim = store.claim(record, vec![reply.clone()], Duration::MAX);
    let claimed = claim.await.unwrap();
    assert_eq!((claimed.takeovers, &*claimed.replies), (1, &[reply][..]));
    assert_eq!(store.get(key("run")).await.unwrap(), claimed);
    assert!(
        store
            .is_live(tenant("acme"), id("thread"), RunId::new("run"))
            .await
            .unwrap()
    );
}
