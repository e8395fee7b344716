//! Conversions between values of the store and columns.

use crate::Fault;
pub(super) use crate::columns::{integer, nanos, number, time};
use concentric_core::store::StoreError;
use rusqlite::{OptionalExtension, Params, Row, Transaction};

/// A [`Fault`] made from an error of `rusqlite`, which is no part of the public API.
#[derive(Debug)]
pub(super) struct Failed(pub(super) Fault);

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self(match error {
            rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..) => Fault::corrupt("a row", error),
            error => Fault::Database(Box::new(error)),
        })
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl From<Failed> for Fault {
    fn from(Failed(fault): Failed) -> Self {
        fault
    }
}

impl From<Failed> for StoreError {
    fn from(Failed(fault): Failed) -> Self {
        fault.into()
    }
}

pub(super) fn failed(error: rusqlite::Error) -> StoreError {
    Failed::from(error).into()
}

/// Executes a statement, and returns the number of changed rows.
pub(super) fn execute(
    tx: &Transaction<'_>,
    statement: &str,
    params: impl Params,
) -> Result<usize, StoreError> {
    let done = tx.prepare_cached(statement);
    done.and_then(|mut it| it.execute(params)).map_err(failed)
}

/// The first row of a query, if there is one.
pub(super) fn find_row<T>(
    tx: &Transaction<'_>,
    query: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, StoreError> {
    let found = tx.prepare_cached(query);
    let found = found.and_then(|mut it| it.query_row(params, read).optional());
    found.map_err(failed)
}

/// The rows of a query.
pub(super) fn find_rows<T>(
    tx: &Transaction<'_>,
    query: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let found = tx.prepare_cached(query);
    let found = found.and_then(|mut it| it.query_map(params, read)?.collect());
    found.map_err(failed)
}

/// Increments the store's counter and returns it, as a version or a fence.
pub(super) fn count(tx: &Transaction<'_>) -> Result<u64, StoreError> {
    let next = "UPDATE counter SET n = n + 1 RETURNING n";
    let n: i64 = tx
        .prepare_cached(next)
        .and_then(|mut next| next.query_row([], |row| row.get(0)))
        .map_err(failed)?;
    Ok(number(n))
}
