//! The file of a store, as another program sees it.

use super::clock;
use concentric_store::{Options, SqliteStore};
use concentric_test::ManualClock;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The path of a file in a new folder.
pub(crate) fn file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    (dir, path)
}

/// Opens the file with a clock that shows `at(0)`.
pub(crate) fn open(path: &Path) -> (SqliteStore, ManualClock) {
    let clock = clock();
    let options = Options::new().clock(clock.clone());
    (SqliteStore::open_with(path, options).unwrap(), clock)
}

/// The number of rows.
pub(crate) fn count(path: &Path, table: &str) -> i64 {
    let db = Connection::open(path).unwrap();
    let count = format!("SELECT count(*) FROM {table}");
    db.query_row(&count, [], |row| row.get(0)).unwrap()
}

/// The number of turns in all rows.
pub(crate) fn turns(path: &Path) -> i64 {
    let db = Connection::open(path).unwrap();
    let count = "SELECT ifnull(sum(1 + length(turn) - length(replace(turn, char(10), ''))), 0)
                 FROM turns";
    db.query_row(count, [], |row| row.get(0)).unwrap()
}

/// Empties the write-ahead log, so that [`logged`] returns the bytes that are written from now on.
pub(crate) fn empty_log(path: &Path) {
    let db = Connection::open(path).unwrap();
    let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy: i64 = db.query_row(truncate, [], |row| row.get(0)).unwrap();
    assert_eq!(busy, 0);
}

/// The bytes of the write-ahead log.
pub(crate) fn logged(path: &Path) -> u64 {
    let log = path.with_file_name("runs.db-wal");
    std::fs::metadata(log).unwrap().len()
}

/// Asserts that the figures differ by at most a tenth.
pub(crate) fn assert_equal(figures: &[u64]) {
    let (least, most) = (figures.iter().min().unwrap(), figures.iter().max().unwrap());
    assert!(most * 10 <= least * 11, "{figures:?}");
}
