//! Conversions between values of the store and columns.

use crate::{
    Options,
    columns::nanos,
    rules::{LONGEST, check_total},
};
use concentric_core::{context::Environment, store::StoreError};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};

/// A parameter of a statement. With its type, so that a statement needs no preparation.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Lists parameters, each as `type: value`.
macro_rules! params {
    ($($of:ident: $value:expr),* $(,)?) => {
        &[$((&$value as &(dyn ::tokio_postgres::types::ToSql + Sync), ::tokio_postgres::types::Type::$of)),*]
    };
}

pub(super) use params;

/// The id of a write, by which the store recognises that it has been applied.
pub(super) fn attempt() -> Vec<u8> {
    let environment = Environment::system();
    let half = || environment.random().next_u64().to_le_bytes();
    [half(), half()].concat()
}

/// The time of the store's clock if it has one of its own; otherwise that of the server is used.
pub(super) fn now(options: &Options) -> Option<i64> {
    options.own_now().map(nanos)
}

/// A time that begins when the store handles a request.
pub(super) fn span(time: Duration) -> i64 {
    i64::try_from(time.min(LONGEST).as_nanos()).unwrap_or(i64::MAX)
}

/// How long entries are kept; `None` if it is without limit, or for more than a hundred years.
pub(super) fn keep(time: Duration) -> Option<i64> {
    (time <= LONGEST).then(|| span(time))
}

pub(super) fn bytes(texts: &[String]) -> Vec<&[u8]> {
    texts.iter().map(String::as_bytes).collect()
}

/// The total size of `texts`, which is at most `max`.
pub(super) fn total(texts: &[String], max: usize) -> Result<usize, StoreError> {
    let bytes = texts.iter().map(String::len).sum();
    check_total(bytes, max)?;
    Ok(bytes)
}
