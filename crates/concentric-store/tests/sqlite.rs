//! What a file adds to what every store keeps to.
#![cfg(feature = "sqlite")]
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

mod common;

use common::{at, key, question, running, tenant, waiting};
use concentric_core::{
    Reply, ThreadId,
    store::{Once, RunStatus, RunStore, StoreError},
};
use concentric_store::{Fault, Options, SqliteStore};
use futures_util::future::{Either, join_all, select};
use rusqlite::Connection;
use std::{
    future::Future,
    path::PathBuf,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};
use tempfile::TempDir;

fn file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    (dir, path)
}

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
    store.begin(key(run), running("hi"), at(30)).await.unwrap()
}

#[tokio::test]
async fn what_was_acknowledged_is_there_for_the_next_who_opens() {
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
    two.suspend(key("run"), fence, waiting("hi", "q"), at(0))
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
                .save(key(&run), fence, running("on"), at(60))
                .await
                .unwrap();
            store.end(key(&run), fence, at(10)).await.unwrap();
        }
    });
    join_all(work).await;
}

#[tokio::test]
async fn a_run_is_claimed_by_one_of_many_handles() {
    let (_dir, path) = file();
    let stores: Vec<_> = (0..6).map(|_| SqliteStore::open(&path).unwrap()).collect();
    for round in 0..20 {
        let run = format!("{round}");
        let fence = begun(&stores[0], &run).await;
        stores[0]
            .suspend(key(&run), fence, waiting("hi", "q"), at(0))
            .await
            .unwrap();
        let version = stores[0].get(key(&run)).await.unwrap().version;
        let claims = stores.iter().map(|store| {
            let replies = vec![Reply::approve(question("q"))];
            store.claim(key(&run), version, replies, at(0), at(30))
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
async fn a_row_that_was_changed_is_refused() {
    for change in [
        "UPDATE runs SET state = replace(state, '\"order\\\":7', '\"order\\\":8')",
        "UPDATE runs SET state = substr(state, 1, length(state) / 2)",
        "UPDATE runs SET replies = '[{\"interruptId\":\"q\",\"status\":\"resolved\",\
         \"payload\":{\"approved\":true}}]'",
        "UPDATE runs SET checksum = zeroblob(32)",
        "UPDATE runs SET checksum = x''",
        // Another run's.
        "UPDATE runs SET state = (SELECT state FROM runs WHERE run = 'other'),
                         checksum = (SELECT checksum FROM runs WHERE run = 'other')",
    ] {
        let (_dir, path) = file();
        let store = SqliteStore::open(&path).unwrap();
        let fence = begun(&store, "run").await;
        let other = running("somebody else");
        store.begin(key("other"), other, at(30)).await.unwrap();
        let changed = Connection::open(&path).unwrap();
        let changed = changed
            .execute(&format!("{change} WHERE run = 'run'"), [])
            .unwrap();
        assert_eq!(changed, 1);

        let version = fence;
        let claim = store
            .claim(key("run"), version, vec![], at(60), at(90))
            .await;
        for error in [store.get(key("run")).await.unwrap_err(), claim.unwrap_err()] {
            let said = fault(error);
            let expected = "the run `run` of the thread `thread` is not as it was written";
            assert!(said.starts_with(expected), "{change}: {said}");
        }
        hides_no_other(&store).await;
    }
}

/// The other run of the thread goes on.
async fn hides_no_other(store: &SqliteStore) {
    let left = store.abandoned(at(60), 1).await.unwrap();
    let of_thread = store.of_thread(tenant("acme"), ThreadId::new("thread"));
    for found in [left, of_thread.await.unwrap()] {
        let found: Vec<_> = found.into_iter().map(|record| record.key).collect();
        assert_eq!(found, [key("other")]);
    }
}

#[tokio::test]
async fn a_row_that_is_no_text_is_refused_and_hides_no_other() {
    for change in [
        "UPDATE runs SET state = CAST(x'ff' AS TEXT) WHERE run = 'run'",
        "UPDATE questions SET question = CAST(x'ff' AS TEXT) WHERE run = 'run'",
    ] {
        let (_dir, path) = file();
        let store = SqliteStore::open(&path).unwrap();
        let state = waiting("hi", "q");
        store.begin(key("run"), state, at(30)).await.unwrap();
        begun(&store, "other").await;
        let changed = Connection::open(&path).unwrap().execute(change, []);
        assert_eq!(changed.unwrap(), 1);
        let said = fault(store.get(key("run")).await.unwrap_err());
        assert!(said.starts_with("a row is not as it was written"), "{said}");
        hides_no_other(&store).await;
    }
}

#[tokio::test]
async fn a_database_that_fails_is_not_taken_for_one_without_runs() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    begun(&store, "run").await;
    let broken = Connection::open(&path).unwrap();
    broken.execute_batch("DROP TABLE questions").unwrap();
    let of_thread = store.of_thread(tenant("acme"), ThreadId::new("thread"));
    assert_eq!(fault(of_thread.await.unwrap_err()), "the database failed");
    let abandoned = store.abandoned(at(60), 1).await;
    assert_eq!(fault(abandoned.unwrap_err()), "the database failed");
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
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
                known: 1
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn another_programs_file_is_refused_and_left_as_it_is() {
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
        "this is no database, and longer than its header".repeat(9),
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
async fn a_file_is_only_for_its_owner() {
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
    // With its log and the log's index.
    assert_eq!(files, 4);
}

#[tokio::test]
async fn a_copy_is_a_store() {
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
async fn a_database_in_memory_is_copied() {
    let (_dir, path) = file();
    let store = SqliteStore::open_in_memory().unwrap();
    begun(&store, "run").await;
    store.back_up(&path).await.unwrap();
    let copy = SqliteStore::open(&path).unwrap();
    copy.get(key("run")).await.unwrap();
}

#[tokio::test]
async fn leases_are_renewed_while_a_large_database_is_copied() {
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
        let renewal = store.renew(key("run"), fence, at(60));
        match select(&mut copied, renewal).await {
            Either::Left((copied, _)) => break copied.unwrap(),
            Either::Right((done, _)) => done.unwrap(),
        }
        renewed += 1;
    }
    assert!(renewed > 0, "the renewals have waited for the copy");
    let copy = SqliteStore::open(copy).unwrap();
    copy.get(key("run")).await.unwrap();
}

/// Polls once, and drops.
fn start<T>(work: impl Future<Output = T>) {
    let _ = pin!(work).poll(&mut Context::from_waker(Waker::noop()));
}

#[tokio::test]
async fn what_was_begun_is_done_after_its_future_and_the_store_are_dropped() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    for n in 0..20 {
        start(store.begin(key(&n.to_string()), running("hi"), at(30)));
    }
    // Nothing is done for a future that is never polled.
    drop(store.begin(key("never"), running("hi"), at(30)));
    drop(store);
    // The log is gone once the last connection is.
    let log = path.with_file_name("runs.db-wal");
    for _ in 0..500 {
        if !log.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!log.exists(), "the thread has not ended");
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
async fn a_file_that_another_process_writes_for_too_long_fails_and_nothing_is_written() {
    let (_dir, path) = file();
    let store = Options::new()
        .busy_timeout(Duration::from_millis(50))
        .open(&path)
        .unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store
        .begin(key("run"), running("hi"), at(30))
        .await
        .unwrap_err();
    assert_eq!(fault(error), "the database failed");
    // To read does not wait.
    assert!(matches!(
        store.get(key("run")).await,
        Err(StoreError::NotFound)
    ));
    other.execute_batch("COMMIT").unwrap();
    begun(&store, "run").await;
}

#[tokio::test]
async fn times_that_no_number_holds_are_kept_as_the_nearest_that_one_does() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let far = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
    store.begin(key("run"), running("hi"), far).await.unwrap();
    assert!(store.get(key("run")).await.unwrap().lease_until > at(1_000_000_000));
    assert!(store.once(tenant("acme"), "k".into(), far).await.unwrap());
    let early = std::time::SystemTime::UNIX_EPOCH - Duration::from_secs(9);
    let fence = store.get(key("run")).await.unwrap().fence;
    store.renew(key("run"), fence, early).await.unwrap();
    assert_eq!(store.get(key("run")).await.unwrap().lease_until, early);
}
