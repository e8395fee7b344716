//! The cost, sharing and deletion of conversations in SQLite.

use crate::common::{
    file::{self, assert_equal, count, empty_log, file, logged},
    fill, reads, tenant,
};
use concentric_core::{
    ThreadId, Turn,
    state::{SlotPlace, StoredSlot},
    store::{StoreError, ThreadChange, ThreadStore},
};
use concentric_store::{Fault, Options, SqliteStore};
use rusqlite::Connection;
use std::time::{Duration, Instant};

fn id(thread: &str) -> ThreadId {
    ThreadId::new(thread)
}

fn add(keep: usize, count: usize) -> ThreadChange {
    let mut change = ThreadChange::default();
    change.keep = keep;
    let turn = |n| Turn::user(format!("{n:06} {}", "x".repeat(500)));
    change.turns = (keep..keep + count).map(turn).collect();
    change
}

async fn append(store: &SqliteStore, thread: &str, version: u64, change: ThreadChange) -> u64 {
    let append = store.append(tenant("acme"), id(thread), version, change);
    append.await.unwrap()
}

/// Appends turns in rows of these lengths.
async fn append_rows(store: &SqliteStore, thread: &str, rows: &[usize]) -> u64 {
    let (mut version, mut len) = (0, 0);
    for row in rows {
        version = append(store, thread, version, add(len, *row)).await;
        len += row;
    }
    version
}

async fn fork(store: &SqliteStore, from: (&str, u64), to: &str, keep: usize) -> u64 {
    let change = add(keep, 0);
    let fork = store.fork(tenant("acme"), id(from.0), from.1, id(to), change);
    fork.await.unwrap()
}

#[tokio::test]
async fn the_bytes_of_an_append_do_not_grow_with_the_conversation() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let (mut version, mut len) = (0, 0);
    let mut found = Vec::new();
    for start in [10, 1_000, 10_000] {
        version = append(&store, "t", version, add(len, start - len)).await;
        empty_log(&path);
        for n in 0..100 {
            version = append(&store, "t", version, add(start + n, 1)).await;
        }
        let bytes = logged(&path) / 100;
        len = start + 100;
        println!("{bytes} bytes per append after {start} turns");
        found.push(bytes);
    }
    assert_equal(&found);
}

#[tokio::test]
async fn a_fork_stores_no_turns() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let version = append(&store, "t", 0, add(0, 10_000)).await;
    let mut shortest = Duration::MAX;
    for n in 0..5 {
        let start = Instant::now();
        fork(&store, ("t", version), &format!("f{n}"), 10_000).await;
        shortest = shortest.min(start.elapsed());
    }
    println!("a fork of 10,000 turns takes {shortest:?}");
    assert_eq!(file::turns(&path), 10_000);
    reads::print_times(&store, "f4").await;
}

#[tokio::test]
async fn no_turn_is_left_when_all_conversations_are_deleted() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let first = append_rows(&store, "t", &[4, 6]).await;
    let second = fork(&store, ("t", first), "u", 4).await;
    let second = append(&store, "u", second, add(4, 3)).await;
    // In the middle of a row, whose first two turns are copied.
    fork(&store, ("u", second), "v", 6).await;
    assert_eq!(file::turns(&path), 10 + 3 + 2);
    // The fork keeps the first 4 of 10.
    store.delete(tenant("acme"), id("t")).await.unwrap();
    assert_eq!(file::turns(&path), 4 + 3 + 2);
    store.delete(tenant("acme"), id("u")).await.unwrap();
    assert_eq!(file::turns(&path), 6);
    // A rewrite removes what no other conversation has.
    let stored = store.load(tenant("acme"), id("v")).await.unwrap().unwrap();
    append(&store, "v", stored.version, add(2, 1)).await;
    assert_eq!(file::turns(&path), 3);
    store.delete(tenant("acme"), id("v")).await.unwrap();
    for table in ["turns", "logs", "threads", "slots"] {
        assert_eq!(count(&path, table), 0, "{table}");
    }
}

#[tokio::test]
async fn a_modified_turn_fails_its_conversation_only() {
    for change in [
        "UPDATE turns SET turn = replace(turn, '000001', '000009') WHERE log = 1 AND n = 2",
        "UPDATE turns SET chain = zeroblob(32) WHERE log = 1 AND n = 4",
        "UPDATE turns SET n = 3 WHERE log = 1 AND n = 2",
        "DELETE FROM turns WHERE log = 1 AND n = 2",
        "DELETE FROM turns WHERE log = 1 AND n = 4",
        "UPDATE logs SET parent = id WHERE id = 1",
        "DELETE FROM logs WHERE id = 1",
        "UPDATE threads SET len = 2000 WHERE thread = 't'",
        "UPDATE slots SET value = '{'",
    ] {
        let (_dir, path) = file();
        let store = SqliteStore::open(&path).unwrap();
        let mut first = add(0, 3);
        first.slots = vec![StoredSlot::new("s", 1, 1.into(), SlotPlace::Whole)];
        let version = append(&store, "t", 0, first).await;
        append(&store, "t", version, add(3, 2)).await;
        append(&store, "other", 0, add(0, 3)).await;
        let db = Connection::open(&path).unwrap();
        assert_eq!(db.execute(change, []).unwrap(), 1, "{change}");
        let error = store.load(tenant("acme"), id("t")).await.unwrap_err();
        let StoreError::Failed(error) = error else {
            panic!("{change}: {error:?}");
        };
        let fault = error.downcast_ref().unwrap();
        assert!(matches!(fault, Fault::Corrupt { .. }), "{change}: {fault}");
        store.load(tenant("acme"), id("other")).await.unwrap();
    }
}

#[tokio::test]
async fn a_page_is_verified_from_the_checksum_before_it() {
    const TURN: &str = "UPDATE turns SET turn = replace(turn, '000002', '000009') WHERE n = 2";
    const CHECKSUM: &str = "UPDATE turns SET chain = zeroblob(32) WHERE n = 2";
    const MISSING: &str = "DELETE FROM turns WHERE n = 2";
    // With each page, the changes that it detects. The row in the middle has turns 1 and 2.
    let pages = [
        ((0, 1), &[] as &[_]),
        ((0, 2), &[TURN, CHECKSUM, MISSING]),
        ((1, 1), &[TURN, CHECKSUM, MISSING]),
        ((2, 1), &[TURN, CHECKSUM, MISSING]),
        ((2, 9), &[TURN, CHECKSUM, MISSING]),
        ((3, 1), &[CHECKSUM, MISSING]),
        ((4, 9), &[CHECKSUM, MISSING]),
        ((5, 1), &[]),
        ((3, 0), &[]),
    ];
    for change in [TURN, CHECKSUM, MISSING] {
        let (_dir, path) = file();
        let store = SqliteStore::open(&path).unwrap();
        append_rows(&store, "t", &[1, 2, 2, 1]).await;
        let db = Connection::open(&path).unwrap();
        assert_eq!(db.execute(change, []).unwrap(), 1, "{change}");
        for ((start, limit), detects) in pages {
            let found = store.turns(tenant("acme"), id("t"), Some(start), limit);
            let found = found.await;
            let is_corrupt = match &found {
                Err(StoreError::Failed(error)) => {
                    matches!(error.downcast_ref(), Some(Fault::Corrupt { .. }))
                }
                _ => false,
            };
            assert_eq!(
                (found.is_err(), is_corrupt),
                (detects.contains(&change), detects.contains(&change)),
                "{limit} turns from {start} on after {change}: {found:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_conversation_larger_than_the_limit_is_not_read() {
    let (_dir, path) = file();
    let version = append(&SqliteStore::open(&path).unwrap(), "t", 0, add(0, 30)).await;
    let options = Options::new().max_state_bytes(10_000);
    let store = SqliteStore::open_with(&path, options).unwrap();
    let error = store.load(tenant("acme"), id("t")).await.unwrap_err();
    assert_eq!(error.code(), "store_failed");
    let append = store.append(tenant("acme"), id("t"), version, add(30, 1));
    assert_eq!(append.await.unwrap_err().code(), "unwritable");
}

/// The number of rows of each table that has rows of a tenant.
/// The rows of each table, except the digests of deleted runs, which have no names.
fn rows(path: &std::path::Path) -> Vec<(String, i64)> {
    let db = Connection::open(path).unwrap();
    let find = "SELECT name FROM sqlite_schema
                WHERE type = 'table' AND name NOT IN ('counter', 'cache_total', 'deleted_runs')
                ORDER BY name";
    let mut find = db.prepare(find).unwrap();
    let tables = find.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let rows = |table: String| (table.clone(), count(path, &table));
    tables.map(|table| rows(table.unwrap())).collect()
}

#[tokio::test]
async fn a_deleted_tenant_leaves_no_row() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    for of in ["acme", "other"] {
        fill(&store, of).await;
    }
    let both = rows(&path);
    assert!(both.iter().all(|(_, rows)| *rows > 0), "{both:?}");
    assert_eq!(store.delete_tenant(tenant("acme")).await.unwrap(), 2);
    let half = both
        .into_iter()
        .map(|(table, rows)| (table, rows / 2))
        .collect::<Vec<_>>();
    assert_eq!(rows(&path), half);
    assert_eq!(store.delete_tenant(tenant("other")).await.unwrap(), 2);
    let left = rows(&path);
    assert!(left.iter().all(|(_, rows)| *rows == 0), "{left:?}");
    let db = Connection::open(&path).unwrap();
    let cached = "SELECT n + bytes FROM cache_total";
    let cached: i64 = db.query_row(cached, [], |row| row.get(0)).unwrap();
    assert_eq!(cached, 0);
}

#[tokio::test]
async fn a_tenant_with_more_entries_than_a_step_deletes_is_deleted() {
    let (_dir, path) = file();
    let store = SqliteStore::open(&path).unwrap();
    let db = Connection::open(&path).unwrap();
    let many = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 250)
                INSERT INTO once (tenant, key, until, n) SELECT 'acme', n, 0, n FROM n";
    assert_eq!(db.execute(many, []).unwrap(), 250);
    for n in 0..25 {
        append(&store, &n.to_string(), 0, add(0, 1)).await;
    }
    assert_eq!(store.delete_tenant(tenant("acme")).await.unwrap(), 25);
    let left = rows(&path);
    assert!(left.iter().all(|(_, rows)| *rows == 0), "{left:?}");
}
