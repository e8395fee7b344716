//! Behaviour of the SQLite store beyond the shared suite.

use crate::common::{
    at, client,
    file::{count, file, open},
    key, question, running, secs, set, tenant, waiting,
};
use concentric_core::{
    MessageId, Outcome, Reply, ThreadId, ToolOutcome, Turn,
    store::{
        Amounts, BudgetStore, CacheKey, CacheStore, Decisions, EffectKey, Ledger, LedgerEntry,
        Limits, Memories, Once, Renewed, RunChange, RunClaim, RunKey, RunStatus, RunStore,
        SharedBudget, StoreError, StoreFuture, ThreadChange, ThreadStore,
    },
};
use concentric_store::{Fault, Options, SqliteStore};
use concentric_test::ManualClock;
use futures_util::future::{Either, join_all, select};
use rusqlite::Connection;
use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Waker},
    time::{Duration, SystemTime},
};

fn fault(error: StoreError) -> String {
    match error {
        StoreError::Failed(error) => {
            let fault: &Fault = error.downcast_ref().unwrap();
            fault.to_string()
        }
        other => panic!("{other:?}"),
    }
}

async fn begun(store: &SqliteStore, run: &str) -> u64 {
    RunStore::begin(store, key(run), client(run), running("hi").into(), secs(30))
        .await
        .unwrap()
}

#[tokio::test]
async fn acknowledged_writes_are_visible_after_reopening() {
    let (_dir, path) = file();
    let fence = begun(&SqliteStore::open(&path).unwrap(), "run").await;
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.get(key("run")).await.unwrap().fence, fence);
}

#[tokio::test]
async fn two_handles_see_each_others_writes() {
    let (_dir, path) = file();
    let one = SqliteStore::open(&path).unwrap();
    let two = SqliteStore::open(&path).unwrap();
    let fence = begun(&one, "run").await;
    two.suspend(key("run"), fence, waiting("hi", "q").into())
        .await
        .unwrap();
    assert_eq!(
        one.get(key("run")).await.unwrap().status,
        RunStatus::Suspended
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_wait_for_each_other() {
    let (_dir, path) = file();
    let stores: Vec<_> = (0..6).map(|_| SqliteStore::open(&path).unwrap()).collect();
    let work = stores.iter().enumerate().map(async |(n, store)| {
        for m in 0..20 {
            let run = format!("{n}/{m}");
            let fence = begun(store, &run).await;
            store
                .save(key(&run), fence, running("on").into(), secs(60))
                .await
                .unwrap();
            store
                .end(key(&run), fence, Ok(Outcome::Completed))
                .await
                .unwrap();
        }
    });
    join_all(work).await;
}

#[tokio::test]
async fn one_of_many_handles_claims_a_run() {
    let (_dir, path) = file();
    let stores: Vec<_> = (0..6).map(|_| SqliteStore::open(&path).unwrap()).collect();
    for round in 0..20 {
        let run = format!("{round}");
        let fence = begun(&stores[0], &run).await;
        stores[0]
            .suspend(key(&run), fence, waiting("hi", "q").into())
            .await
            .unwrap();
        let record = stores[0].get(key(&run)).await.unwrap();
        let claims = stores.iter().map(|store| {
            let replies = vec![Reply::approve(question("q"))];
            store.claim(record.clone(), replies, secs(30))
        });
        let claims = join_all(claims).await;
        assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 1);
        let lost = claims
            .iter()
            .filter(|claim| matches!(claim, Err(StoreError::Taken)));
        assert_eq!(lost.count(), 5);
    }
}

#[tokio::test]
async fn a_modified_row_is_rejected() {
    for change in [
        "UPDATE runs SET state = replace(state, '\"order\\\":7', '\"order\\\":8')",
        "UPDATE runs SET state = substr(state, 1, length(state) / 2)",
        "UPDATE runs SET replies = '[{\"interruptId\":\"q\",\"status\":\"resolved\",\
         \"payload\":{\"approved\":true}}]'",
        "UPDATE runs SET checksum = zeroblob(32)",
        "UPDATE runs SET checksum = x''",
        // The checksum of another run.
        "UPDATE runs SET state = (SELECT state FROM runs WHERE run = 'other'),
                         checksum = (SELECT checksum FROM runs WHERE run = 'other')",
    ] {
        let (_dir, path) = file();
        let (store, clock) = open(&path);
        begun(&store, "run").await;
        let record = store.get(key("run")).await.unwrap();
        let other = running("somebody else");
        RunStore::begin(
            &store,
            key("other"),
            client("other"),
            other.into(),
            secs(30),
        )
        .await
        .unwrap();
        let changed = Connection::open(&path).unwrap();
        let changed = changed
            .execute(&format!("{change} WHERE run = 'run'"), [])
            .unwrap();
        assert_eq!(changed, 1);

        set(&clock, 60);
        let claim = store.claim(record, vec![], secs(30)).await;
        for error in [store.get(key("run")).await.unwrap_err(), claim.unwrap_err()] {
            let message = fault(error);
            let expected = "run `run` of thread `thread` is corrupt: ";
            assert!(message.starts_with(expected), "{change}: {message}");
        }
        assert_other_run_is_listed(&store, &clock).await;
    }
}

/// The runs of the thread that have not ended.
async fn listed(store: &SqliteStore) -> Result<Vec<String>, StoreError> {
    let found = store.list_by_thread(tenant("acme"), ThreadId::new("thread"), None, 9);
    let found = found.await?;
    Ok(found.iter().map(|run| run.key.run.to_string()).collect())
}

/// Asserts that the other run of the thread is still found.
async fn assert_other_run_is_listed(store: &SqliteStore, clock: &ManualClock) {
    set(clock, 60);
    let mut left = Vec::new();
    // The broken run is claimed and omitted, and then not read again at once.
    for _ in 0..2 {
        let claimed = store.claim_abandoned(1, secs(30)).await.unwrap();
        left.extend(claimed.into_iter().map(|record| record.key));
    }
    assert_eq!(left, [key("other")]);
    // A list does not read states, so it includes the broken run.
    let mut listed = listed(store).await.unwrap();
    listed.sort();
    assert_eq!(listed, ["other", "run"]);
}

#[tokio::test]
async fn a_row_with_invalid_text_hides_no_other_row() {
    for change in [
        "UPDATE runs SET state = CAST(x'ff' AS TEXT) WHERE run = 'run'",
        "UPDATE questions SET question = CAST(x'ff' AS TEXT) WHERE run = 'run'",
    ] {
        let (_dir, path) = file();
        let (store, clock) = open(&path);
        let state = waiting("hi", "q");
        RunStore::begin(&store, key("run"), client("run"), state.into(), secs(30))
            .await
            .unwrap();
        begun(&store, "other").await;
        let changed = Connection::open(&path).unwrap().execute(change, []);
        assert_eq!(changed.unwrap(), 1);
        let message = fault(store.get(key("run")).await.unwrap_err());
        assert!(message.starts_with("a row is corrupt"), "{message}");
        assert_other_run_is_listed(&store, &clock).await;
    }
}

#[tokio::test]
async fn a_database_failure_is_not_reported_as_no_runs() {
    let (_dir, path) = file();
    let (store, clock) = open(&path);
    begun(&store, "run").await;
    let broken = Connection::open(&path).unwrap();
    broken.execute_batch("DROP TABLE questions").unwrap();
    set(&clock, 60);
    let abandoned = store.claim_abandoned(1, secs(30)).await;
    assert_eq!(fault(abandoned.unwrap_err()), "the database failed");
    broken.execute_batch("DROP TABLE runs").unwrap();
    let listed = listed(&store).await;
    assert_eq!(fault(listed.unwrap_err()), "the database failed");
}

#[tokio::test]
async fn claims_of_runs_that_are_not_read_are_given_back() {
    let (_dir, path) = file();
    let (store, clock) = open(&path);
    begun(&store, "a").await;
    begun(&store, "b").await;
    set(&clock, 30);
    // The claim does not read the turns.
    let database = Connection::open(&path).unwrap();
    let rename = |from: &str, to: &str| {
        let rename = format!("ALTER TABLE {from} RENAME TO {to}");
        database.execute_batch(&rename).unwrap();
    };
    rename("turns", "gone");
    for _ in 0..7 {
        let error = store.claim_abandoned(9, secs(30)).await.unwrap_err();
        assert_eq!(fault(error), "the database failed");
    }
    rename("gone", "turns");
    let claimed = store.claim_abandoned(9, secs(30)).await.unwrap();
    let claims = claimed.iter().map(|it| (it.key.run.as_str(), it.takeovers));
    assert_eq!(claims.collect::<Vec<_>>(), [("a", 1), ("b", 1)]);
    for record in claimed {
        assert_eq!(store.get(record.key.clone()).await.unwrap(), record);
    }
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_rejected() {
    let (_dir, path) = file();
    begun(&SqliteStore::open(&path).unwrap(), "run").await;
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(
        matches!(
            error,
            Fault::Newer {
                found: 99,
                known: 9
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_file_of_another_program_is_rejected_unchanged() {
    let (_dir, path) = file();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE mine (a)").unwrap();
    assert!(matches!(
        SqliteStore::open(&path).unwrap_err(),
        Fault::Foreign
    ));
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete");

    let (dir, path) = file();
    std::fs::write(
        &path,
        "not a database, but longer than the header of one".repeat(9),
    )
    .unwrap();
    assert!(matches!(
        SqliteStore::open(&path).unwrap_err(),
        Fault::Database(_)
    ));
    assert!(matches!(
        SqliteStore::open(dir.path()).unwrap_err(),
        Fault::Database(_)
    ));
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    begun(&store, "run").await;
    store.back_up(dir.path().join("copy.db")).await.unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{entry:?}");
        files += 1;
    }
    // Both databases, the log and its index.
    assert_eq!(files, 4);
}

#[tokio::test]
async fn a_backup_opens_as_a_store() {
    let (dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    begun(&store, "run").await;
    let copy = dir.path().join("copy.db");
    store.back_up(&copy).await.unwrap();
    begun(&store, "later").await;
    store.back_up(&copy).await.unwrap_err();
    let copy = SqliteStore::open(&copy).unwrap();
    assert_eq!(
        copy.get(key("run")).await.unwrap(),
        store.get(key("run")).await.unwrap()
    );
    assert!(matches!(
        copy.get(key("later")).await,
        Err(StoreError::NotFound)
    ));
}

#[tokio::test]
async fn an_in_memory_database_is_backed_up() {
    let (_dir, path) = file();
    let store = SqliteStore::open_in_memory().unwrap();
    begun(&store, "run").await;
    store.back_up(&path).await.unwrap();
    let copy = SqliteStore::open(&path).unwrap();
    copy.get(key("run")).await.unwrap();
}

#[tokio::test]
async fn leases_are_renewed_during_a_large_backup() {
    let (dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let fence = begun(&store, "run").await;
    let large = "INSERT INTO effects (tenant, key, tool, arguments)
                 WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 100)
                 SELECT 'acme', n, 't', printf('%.*c', 1000000, 'x') FROM n";
    let filled = Connection::open(&path).unwrap().execute(large, []);
    assert_eq!(filled.unwrap(), 100);

    let copy = dir.path().join("copy.db");
    let mut copied = store.back_up(&copy);
    let mut renewed = 0;
    loop {
        let renewal = store.renew(key("run"), fence, secs(60));
        match select(&mut copied, renewal).await {
            Either::Left((copied, _)) => break copied.unwrap(),
            Either::Right((done, _)) => assert_eq!(done.unwrap(), Renewed::Held),
        }
        renewed += 1;
    }
    assert!(renewed > 0, "the renewals waited for the copy");
    let copy = SqliteStore::open(copy).unwrap();
    copy.get(key("run")).await.unwrap();
}

/// Polls a future once and drops it.
fn start<T>(work: impl Future<Output = T>) {
    let _ = pin!(work).poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test]
async fn queued_work_completes_after_the_store_is_dropped() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    for n in 0..20 {
        start(RunStore::begin(
            &store,
            key(&n.to_string()),
            client(&n.to_string()),
            running("hi").into(),
            secs(30),
        ));
    }
    // A future that is never polled has no effect.
    drop(RunStore::begin(
        &store,
        key("never"),
        client("never"),
        running("hi").into(),
        secs(30),
    ));
    drop(store);
    // SQLite removes the log when the last connection closes.
    let log = path.with_file_name("runs.db-wal");
    for _ in 0..500 {
        if !log.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!log.exists(), "the thread has not exited");
    let store = SqliteStore::open(&path).unwrap();
    for n in 0..20 {
        store.get(key(&n.to_string())).await.unwrap();
    }
    assert!(matches!(
        store.get(key("never")).await,
        Err(StoreError::NotFound)
    ));
}

#[tokio::test]
async fn a_write_that_exceeds_the_busy_timeout_changes_nothing() {
    let (_dir, path) = file();
    let options = Options::new().busy_timeout(Duration::from_millis(50));
    let store = SqliteStore::open_with(&path, options).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        secs(30),
    )
    .await
    .unwrap_err();
    assert_eq!(fault(error), "the database failed");
    // Reads do not wait.
    assert!(matches!(
        store.get(key("run")).await,
        Err(StoreError::NotFound)
    ));
    other.execute_batch("COMMIT").unwrap();
    begun(&store, "run").await;
}

#[tokio::test]
async fn reads_do_not_wait_for_writers() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    begun(&store, "run").await;
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let write = RunStore::begin(
        &store,
        key("later"),
        client("later"),
        running("hi").into(),
        secs(30),
    );
    match select(write, store.get(key("run"))).await {
        Either::Left((written, _)) => panic!("{written:?}"),
        Either::Right((read, _)) => drop(read.unwrap()),
    }
    other.execute_batch("COMMIT").unwrap();
}

#[tokio::test]
async fn a_renewal_does_not_wait_for_large_reads_or_writes() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let large = || running(&"x".repeat(4 << 20));
    let begun = RunStore::begin(
        &store,
        key("large"),
        client("large"),
        large().into(),
        secs(30),
    );
    let fence = begun.await.unwrap();
    let mut jobs: Vec<StoreFuture<()>> = Vec::new();
    for _ in 0..16 {
        let read = store.get(key("large"));
        jobs.push(Box::pin(async { read.await.map(drop) }));
        jobs.push(store.save(key("large"), fence, large().into(), secs(30)));
    }
    let done = AtomicUsize::new(0);
    let jobs = join_all(jobs.into_iter().map(async |job| {
        job.await.unwrap();
        done.fetch_add(1, Ordering::Relaxed);
    }));
    let renewals = async {
        for n in 0..4 {
            let renewed = store.renew(key("large"), fence, secs(60 + n)).await;
            assert_eq!(renewed.unwrap(), Renewed::Held);
        }
        done.load(Ordering::Relaxed)
    };
    let before = match select(pin!(jobs), pin!(renewals)).await {
        Either::Left(_) => panic!("the renewals waited for all jobs"),
        Either::Right((before, jobs)) => {
            jobs.await;
            before
        }
    };
    assert!(before < 32, "{before}");
}

#[tokio::test]
async fn each_renewal_gets_its_own_result() {
    let (_dir, path) = file();
    let (store, _clock) = open(&path);
    let mut fences = Vec::new();
    for n in 0..40 {
        fences.push(begun(&store, &n.to_string()).await);
    }
    let renewals = fences.iter().enumerate().map(|(n, fence)| {
        // Every other renewal has an older fence.
        let fence = fence - u64::from(n % 2 == 1);
        store.renew(key(&n.to_string()), fence, secs(60))
    });
    for (n, renewed) in join_all(renewals).await.into_iter().enumerate() {
        assert_eq!(renewed.is_ok(), n % 2 == 0, "{n}: {renewed:?}");
        let until = store.get(key(&n.to_string())).await.unwrap().lease_until;
        assert_eq!(until, at(if n % 2 == 0 { 60 } else { 30 }));
    }
}

#[tokio::test]
async fn interrupts_may_exceed_the_parameter_limit_of_sqlite() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let fence = begun(&store, "run").await;
    let waits = store.suspend(key("run"), fence, waiting("hi", "q").into());
    waits.await.unwrap();
    let mut asked: Vec<_> = (0..70_000).map(|n| question(&format!("\"{n}'"))).collect();
    let asking = |ids| store.find_by_interrupt(tenant("acme"), ThreadId::new("thread"), ids);
    assert!(matches!(
        asking(asked.clone()).await,
        Err(StoreError::NotFound)
    ));
    asked.push(question("q"));
    assert_eq!(asking(asked).await.unwrap().key, key("run"));
}

#[tokio::test]
async fn the_end_of_a_run_removes_at_most_a_hundred_others() {
    let (_dir, path) = file();
    let options = Options::new().keep_ended(Duration::ZERO);
    let store = SqliteStore::open_with(&path, options).unwrap();
    let fence = begun(&store, "run").await;
    let rows = || {
        let db = Connection::open(&path).unwrap();
        let count = db.query_row("SELECT count(*) FROM runs", [], |row| row.get(0));
        count.unwrap()
    };
    Connection::open(&path)
        .unwrap()
        .execute_batch(
            "INSERT INTO runs (tenant, thread, run, status, begun, version, fence, lease_until,
                               since, checksum, state, replies)
             WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 250)
             SELECT 'acme', 'thread', 'old' || n, 'ended', 0, 0, 0, 0, 0, x'', '', '' FROM n",
        )
        .unwrap();
    store
        .end(key("run"), fence, Ok(Outcome::Completed))
        .await
        .unwrap();
    let left: i64 = rows();
    assert_eq!(left, 151);
    store.purge().await.unwrap();
    assert_eq!(rows(), 0);
}

/// A dump of a file written by the first schema version.
const FIRST: &str = include_str!("../golden/schema_1.sql");

#[tokio::test]
async fn other_writes_come_between_the_steps_of_a_deletion() {
    let (_dir, path) = file();
    let (store, _clock) = open(&path);
    for (n, of_tenant) in [false, true].into_iter().enumerate() {
        for run in 0..450 {
            begun(&store, &run.to_string()).await;
        }
        let delete: StoreFuture<u64> = match of_tenant {
            false => {
                let deleted = store.delete(tenant("acme"), ThreadId::new("thread"));
                Box::pin(async { deleted.await.map(u64::from) })
            }
            true => store.delete_tenant(tenant("acme")),
        };
        let other = store.once(tenant("other"), n.to_string().into(), secs(9));
        match select(delete, other).await {
            Either::Left(_) => panic!("the other write waited for the deletion"),
            Either::Right((used, delete)) => {
                assert!(used.unwrap());
                delete.await.unwrap();
            }
        }
        assert_eq!(count(&path, "runs"), 0);
        assert_eq!(count(&path, "questions"), 0);
        assert_eq!(count(&path, "turns"), 0);
    }
}

#[tokio::test]
async fn a_file_of_the_first_version_is_migrated() {
    let (_dir, path) = file();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(FIRST).unwrap();
    // The first version also used a write-ahead log.
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    drop(old);

    let (store, clock) = open(&path);
    let thread = || ThreadId::new("thread");
    let asking = store.find_by_interrupt(tenant("acme"), thread(), vec![question("q")]);
    let record = asking.await.unwrap();
    assert_eq!(
        (&record.key, &record.client_id),
        (&key("waits"), &client("waits"))
    );
    assert_eq!(record.status, RunStatus::Suspended);
    assert_eq!(record.state.interrupts(), waiting("hi", "q").interrupts());
    assert_eq!(record.state.transcript(), waiting("hi", "q").transcript());
    // The migration fills the message of the open round.
    let message = |id| Some(MessageId::new(id));
    let found = store.list_by_thread(tenant("acme"), thread(), message("m"), 9);
    let found: Vec<_> = found
        .await
        .unwrap()
        .into_iter()
        .map(|run| run.key)
        .collect();
    assert_eq!(found, [key("waits"), key("left")]);
    let found = store.list_by_thread(tenant("acme"), thread(), message("other"), 9);
    assert!(found.await.unwrap().is_empty());

    let replies = vec![Reply::approve(question("q"))];
    let claim = store.claim(record, replies, secs(30));
    let claimed = claim.await.unwrap();
    let end = store.end(claimed.key, claimed.fence, Ok(Outcome::Completed));
    end.await.unwrap();
    // An abandoned run is live, an ended run is not.
    let live = |id| store.is_live(tenant("acme"), thread(), client(id));
    assert!(live("left").await.unwrap());
    assert!(!live("over").await.unwrap());
    set(&clock, 60);
    let left = store.claim_abandoned(9, secs(30)).await.unwrap();
    assert_eq!((left.len(), &left[0].key), (1, &key("left")));
    assert_eq!(left[0].state.transcript(), running("left").transcript());
    // Effects, used keys and decisions are kept.
    let effect = EffectKey::new(tenant("acme"), "effect");
    let done = LedgerEntry::Finished(Box::new(ToolOutcome::done("paid")));
    assert_eq!(store.known(effect).await.unwrap(), done);
    assert!(
        !store
            .once(tenant("acme"), "token".into(), secs(9))
            .await
            .unwrap()
    );
    assert!(
        store
            .once(tenant("acme"), "other".into(), secs(9))
            .await
            .unwrap()
    );
    assert_eq!(store.list(tenant("acme")).await.unwrap().len(), 1);
    // Conversations are stored beside them.
    let mut change = ThreadChange::default();
    change.turns.push(Turn::user("hi"));
    let append = store.append(tenant("acme"), thread(), 0, change);
    append.await.unwrap();
    // The migrated file opens again.
    drop(SqliteStore::open(&path).unwrap());
}

/// A dump of a file written by schema version 4.
const FOURTH: &str = include_str!("../golden/schema_4.sql");

#[tokio::test]
async fn a_file_of_the_fourth_version_is_migrated() {
    let (_dir, path) = file();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(FOURTH).unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    // A row that was damaged before the migration.
    let damage = "UPDATE runs SET replies = '[1]' WHERE run = 'broken'";
    assert_eq!(old.execute(damage, []).unwrap(), 1);
    drop(old);

    let (store, _clock) = open(&path);
    let states = [
        ("left", running("left")),
        ("waits", waiting("hi", "q")),
        ("claimed", waiting("claimed", "q2")),
        ("over", running("over")),
    ];
    for (run, state) in states {
        let record = store.get(key(run)).await.unwrap();
        assert_eq!(record.state.transcript(), state.transcript(), "{run}");
        assert_eq!(record.state.interrupts(), state.interrupts(), "{run}");
    }
    let claimed = store.get(key("claimed")).await.unwrap();
    assert_eq!(claimed.replies, [Reply::approve(question("q2"))]);
    assert_eq!(claimed.replied_at, Some(at(1)));
    let message = fault(store.get(key("broken")).await.unwrap_err());
    assert!(message.contains("it has no turns"), "{message}");
    // A state is written as before.
    let change = RunChange::new(&running("left again"));
    let saved = store.save(key("claimed"), claimed.fence, change, secs(60));
    saved.await.unwrap();
    let record = store.get(key("claimed")).await.unwrap();
    assert_eq!(record.state, running("left again"));

    let thread = |id| store.load(tenant("acme"), ThreadId::new(id));
    let stored = thread("thread").await.unwrap().unwrap();
    assert_eq!((stored.history.len(), stored.slots.len()), (2, 1));
    let (state, _) = stored.suspended.unwrap();
    assert_eq!(state.interrupts(), waiting("hi", "q3").interrupts());
    assert_eq!(thread("fork").await.unwrap().unwrap().history.len(), 1);
    let found = store.search(tenant("acme"), "user".into(), "tea".into(), 9);
    assert_eq!(found.await.unwrap().len(), 1);
    // A damaged run is removed with its conversation.
    store
        .delete(tenant("acme"), ThreadId::new("thread"))
        .await
        .unwrap();
    assert!(matches!(
        store.get(key("broken")).await,
        Err(StoreError::NotFound)
    ));
}

/// A dump of a file written by schema version 5.
const FIFTH: &str = include_str!("../golden/schema_5.sql");

#[tokio::test]
async fn a_file_of_the_fifth_version_is_migrated() {
    let (_dir, path) = file();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(FIFTH).unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    // A row that was damaged before the migration.
    let damage = "UPDATE runs SET replies = '[1]' WHERE run = 'broken'";
    assert_eq!(old.execute(damage, []).unwrap(), 1);
    drop(old);

    let (store, clock) = open(&path);
    set(&clock, 29);
    let states = [
        ("left", running("left"), RunStatus::Running),
        ("waits", waiting("hi", "q"), RunStatus::Suspended),
        ("claimed", waiting("claimed", "q2"), RunStatus::Running),
        ("over", running("over"), RunStatus::Ended),
    ];
    for (run, state, status) in states {
        let record = store.get(key(run)).await.unwrap();
        assert_eq!((record.state, record.status), (state, status), "{run}");
        assert_eq!(record.takeovers, 0, "{run}");
    }
    let message = fault(store.get(key("broken")).await.unwrap_err());
    assert!(message.contains("checksum mismatch"), "{message}");
    let claimed = store.get(key("claimed")).await.unwrap();
    assert_eq!(claimed.replies, [Reply::approve(question("q2"))]);
    assert_eq!(claimed.replied_at, Some(at(1)));
    let renewed = store.renew(key("claimed"), claimed.fence, secs(60)).await;
    assert_eq!(renewed.unwrap(), Renewed::Held);

    // The runs can be claimed, and have no takeovers yet; the damaged one is omitted.
    set(&clock, 30);
    let left = store.claim_abandoned(9, secs(30)).await.unwrap();
    assert_eq!((left.len(), &left[0].key), (1, &key("left")));
    assert_eq!((left[0].takeovers, &left[0].state), (1, &running("left")));
    let saved = store.save(key("left"), left[0].fence, running("2").into(), secs(30));
    saved.await.unwrap();
    let waits = store.get(key("waits")).await.unwrap();
    let replies = vec![Reply::approve(question("q"))];
    let claim = store.claim(waits, replies, secs(30));
    let waits = claim.await.unwrap();
    assert_eq!(waits.takeovers, 0);
    assert!(store.cancel(key("waits")).await.unwrap());
    let renewed = store.renew(key("waits"), waits.fence, secs(60)).await;
    assert_eq!(renewed.unwrap(), Renewed::CancelRequested);
    store
        .end(key("waits"), waits.fence, Ok(Outcome::Completed))
        .await
        .unwrap();

    // The rest is kept.
    let effect = EffectKey::new(tenant("acme"), "effect");
    let done = LedgerEntry::Finished(Box::new(ToolOutcome::done("paid")));
    assert_eq!(store.known(effect).await.unwrap(), done);
    let once = store.once(tenant("acme"), "token".into(), secs(9));
    assert!(!once.await.unwrap());
    assert_eq!(store.list(tenant("acme")).await.unwrap().len(), 1);
    let thread = |id| store.load(tenant("acme"), ThreadId::new(id));
    let stored = thread("thread").await.unwrap().unwrap();
    assert_eq!((stored.history.len(), stored.slots.len()), (2, 1));
    let (state, _) = stored.suspended.unwrap();
    assert_eq!(state.interrupts(), waiting("hi", "q3").interrupts());
    assert_eq!(thread("fork").await.unwrap().unwrap().history.len(), 1);
    let found = store.search(tenant("acme"), "user".into(), "tea".into(), 9);
    assert_eq!(found.await.unwrap().len(), 1);
    // The migrated file opens again.
    drop(SqliteStore::open(&path).unwrap());
}

/// A dump of a file written by schema version 6.
const SIXTH: &str = include_str!("../golden/schema_6.sql");

#[tokio::test]
async fn a_file_of_the_sixth_version_is_migrated() {
    let (_dir, path) = file();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(SIXTH).unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    drop(old);

    let (store, clock) = open(&path);
    set(&clock, 29);
    let states = [
        ("left", running("left"), RunStatus::Running, 2),
        ("waits", waiting("hi", "q"), RunStatus::Suspended, 0),
        ("claimed", waiting("claimed", "q2"), RunStatus::Running, 0),
        ("over", running("over"), RunStatus::Ended, 0),
    ];
    for (run, state, status, takeovers) in states {
        let record = store.get(key(run)).await.unwrap();
        assert_eq!((record.state, record.status), (state, status), "{run}");
        assert_eq!(record.takeovers, takeovers, "{run}");
    }
    let fence = store.get(key("claimed")).await.unwrap().fence;
    let renewed = store.renew(key("claimed"), fence, secs(60)).await;
    assert_eq!(renewed.unwrap(), Renewed::CancelRequested);
    let found = store.search(tenant("acme"), "user".into(), "tea".into(), 9);
    assert_eq!(found.await.unwrap().len(), 1);

    // The file has a cache from now on, also for the next process that opens it.
    let cached = || CacheKey::new(tenant("acme"), None, "model", [1; 32]);
    let put = store.put_entry(cached(), b"answer".to_vec(), secs(60));
    put.await.unwrap();
    drop(store);
    let (store, clock) = open(&path);
    set(&clock, 30);
    let found = store.get_entry(cached()).await.unwrap().unwrap();
    assert_eq!((&*found.value, found.age), (&b"answer"[..], secs(1)));
    assert_eq!(count(&path, "cache"), 1);
}

/// A dump of a file written by schema version 7.
const SEVENTH: &str = include_str!("../golden/schema_7.sql");

#[tokio::test]
async fn a_file_of_the_seventh_version_is_migrated() {
    let (_dir, path) = file();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(SEVENTH).unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    drop(old);

    let before = SystemTime::now();
    let (store, clock) = open(&path);
    set(&clock, 29);
    let over = store.get(key("over")).await.unwrap();
    assert_eq!(over.outcome, Some(Ok(Outcome::Completed)));
    let waits = store.get(key("waits")).await.unwrap();
    assert_eq!(waits.state, waiting("hi", "q"));
    let found = store.get_entry(CacheKey::new(tenant("acme"), None, "model", [1; 32]));
    assert_eq!(&*found.await.unwrap().unwrap().value, b"answer");

    // The order of the writes is known, and not their times.
    let listed = store.list_threads(tenant("acme"), None, 9).await.unwrap();
    let found: Vec<_> = listed
        .iter()
        .map(|it| (it.thread.as_str(), it.turns))
        .collect();
    assert_eq!(found, [("thread", 4), ("fork", 2)]);
    // SQLite counts milliseconds.
    let since = before - secs(1)..=SystemTime::now();
    assert!(listed.iter().all(|it| since.contains(&it.at)), "{listed:?}");
    let mut change = ThreadChange::default();
    (change.id, change.keep) = (Some("next".into()), 2);
    let append = store.append(
        tenant("acme"),
        ThreadId::new("fork"),
        listed[1].version,
        change,
    );
    let version = append.await.unwrap();
    let listed = store.list_threads(tenant("acme"), None, 1).await.unwrap();
    assert_eq!(
        (listed[0].thread.as_str(), listed[0].version),
        ("fork", version)
    );
    assert_eq!(listed[0].at, at(29));

    // The run whose conversation was deleted does not bring it back.
    let mut change = ThreadChange::default();
    let gone = RunKey::new(tenant("acme"), ThreadId::new("gone"), key("left").run);
    change.ends = Some((RunClaim::new(gone, 1), Ok(Outcome::Completed)));
    let append = store.append(tenant("acme"), ThreadId::new("gone"), 0, change);
    assert!(matches!(append.await, Err(StoreError::NotFound)));
}

#[tokio::test]
async fn the_cache_counts_its_entries_and_their_bytes() {
    let (_dir, path) = file();
    let (store, clock) = open(&path);
    let cached = |n: u8| CacheKey::new(tenant("acme"), Some(ThreadId::new("t")), "s", [n; 32]);
    for (n, bytes) in [(1, 100), (2, 10), (1, 50), (3, 0), (4, 7)] {
        let put = store.put_entry(cached(n), vec![n; bytes], secs(60 * u64::from(n)));
        put.await.unwrap();
    }
    let total = || {
        let db = Connection::open(&path).unwrap();
        let counted = "SELECT n, bytes FROM cache_total";
        let summed = "SELECT count(*), coalesce(sum(bytes), 0) FROM cache";
        let row = |query| {
            db.query_row(query, [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })
            .unwrap()
        };
        assert_eq!(row(counted), row(summed));
        row(counted)
    };
    // Each entry has 38 bytes of names.
    assert_eq!(total(), (4, 50 + 10 + 7 + 4 * 38));
    set(&clock, 60);
    store.purge().await.unwrap();
    assert_eq!(total(), (3, 10 + 7 + 3 * 38));
    let removed = store.remove_entries(tenant("acme"), None, Some("s".into()));
    assert_eq!((removed.await.unwrap(), total()), (3, (0, 0)));
}

#[tokio::test]
async fn out_of_range_times_are_clamped() {
    let (_dir, path) = file();
    let (store, clock) = open(&path);
    RunStore::begin(
        &store,
        key("run"),
        client("run"),
        running("hi").into(),
        Duration::MAX,
    )
    .await
    .unwrap();
    let record = store.get(key("run")).await.unwrap();
    assert!(record.lease_until > at(1_000_000_000));
    let once = || store.once(tenant("acme"), "k".into(), Duration::MAX);
    assert!(once().await.unwrap());
    let renew = || store.renew(key("run"), record.fence, secs(1));
    for (now, until) in [(1 << 40, None), (-9, Some(-8)), (-(1 << 40), None)] {
        let time = |seconds: i64| {
            let since = Duration::from_secs(seconds.unsigned_abs());
            match seconds < 0 {
                true => std::time::SystemTime::UNIX_EPOCH - since,
                false => std::time::SystemTime::UNIX_EPOCH + since,
            }
        };
        clock.set(time(now));
        assert_eq!(renew().await.unwrap(), Renewed::Held);
        let found = store.get(key("run")).await.unwrap().lease_until;
        assert!(until.is_none_or(|until| found == time(until)), "{found:?}");
        assert!(!once().await.unwrap());
    }
}

const EIGHTH: &str = include_str!("../golden/schema_8.sql");

#[tokio::test]
async fn a_file_of_the_eighth_version_is_migrated() {
    let (_dir, path) = file();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(EIGHTH).unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    drop(old);

    let (store, clock) = open(&path);
    set(&clock, 29);
    let waits = store.get(key("waits")).await.unwrap();
    assert_eq!((waits.state, waits.takeovers), (waiting("hi", "q"), 0));
    let budget = SharedBudget::new("b", Limits::new().model_calls(1));
    for (id, fits) in [("1", true), ("2", false)] {
        let (call, lease) = (Amounts::new().model_calls(1), secs(60));
        let budgets = vec![budget.clone()];
        let reserved = store.reserve(tenant("acme"), id.into(), budgets, call, lease);
        assert_eq!(reserved.await.unwrap().is_ok(), fits);
    }
}
