mod cache;
mod decisions;
mod effects;
mod limits;
mod memories;
mod pool;
mod renewals;
mod runs;
mod schema;
mod threads;
mod tls;
mod values;

use self::{
    pool::{Db, Repeat},
    renewals::Renewal,
    values::{keep, now, params},
};
use crate::{Fault, Options, columns::position};
use concentric_core::store::StoreError;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_postgres::Row;

/// A store in a PostgreSQL database that any number of processes on any number of machines share.
///
/// See the [docs of `concentric-store`](https://docs.rs/concentric-store) for durability, fences and
/// limits, and [`Options`] for the connections.
///
/// Each method is one call of a function in the database, so that a dropped future is applied completely
/// or not at all, and that a connection has no state: the store also works through pgbouncer in
/// transaction mode ([`Options::prepared`]). A statement that failed because of a conflict, or because the
/// connection was lost, is repeated up to three times; while no server can be reached, until
/// [`Options::pool_wait`] has passed. If it may have been applied before, the repetition
/// recognises that by a random id, and returns the result of the first execution; the methods that return
/// how many entries they have removed are not repeated then, and fail.
///
/// The store belongs to the runtime that opened it, whose tasks read from its connections. Clones share
/// the connections, which are closed after the last clone is dropped.
#[derive(Clone)]
pub struct PostgresStore {
    db: Arc<Db>,
    renewals: mpsc::Sender<Renewal>,
}

impl PostgresStore {
    /// Opens the schema `concentric` of a database (`postgres://user:password@host/database`), with the
    /// default [`Options`].
    ///
    /// It neither creates nor changes tables: call [`migrate`](Self::migrate) before, for which another
    /// role may be used.
    ///
    /// # Errors
    ///
    /// [`Fault::Outdated`], [`Fault::Newer`], [`Fault::Foreign`], [`Fault::Busy`], [`Fault::Database`].
    pub async fn open(url: &str) -> Result<Self, Fault> {
        Self::open_with(url, Options::new()).await
    }

    /// Opens a database, with these options.
    ///
    /// Otherwise like [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub async fn open_with(url: &str, options: Options) -> Result<Self, Fault> {
        let db = Arc::new(Db::new(url, options)?);
        schema::check(&db).await?;
        let renewals = renewals::start(Arc::clone(&db));
        Ok(Self { db, renewals })
    }

    /// Creates the tables and functions in a schema of a database, or migrates them to the newest version;
    /// does nothing if they have it.
    ///
    /// Creates the schema if it does not exist. Concurrent calls wait for each other. Migrations keep what
    /// the previous release uses, so that processes of both can run meanwhile.
    ///
    /// # Errors
    ///
    /// [`Fault::Newer`], [`Fault::Foreign`], [`Fault::Database`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it resolves, some of the migrations may be done, each completely.
    pub async fn migrate(url: &str, schema: &str) -> Result<(), Fault> {
        Self::migrate_with(url, &Options::new().schema(schema.to_owned())).await
    }

    /// Migrates the schema of these options, whose limits do not matter.
    ///
    /// Otherwise like [`migrate`](Self::migrate).
    ///
    /// # Errors
    ///
    /// Those of [`migrate`](Self::migrate).
    pub async fn migrate_with(url: &str, options: &Options) -> Result<(), Fault> {
        schema::migrate(url, options).await
    }
}

/// Removes at most a hundred expired entries of each kind; returns whether more may be left.
async fn purge(db: &Db) -> Result<bool, StoreError> {
    let options = &db.options;
    let (now, keys) = (now(options), position(options.keep_used_keys));
    let params = params![
        INT8: now,
        INT8: keep(options.keep_waiting),
        INT8: keep(options.keep_ended),
        INT8: keep(options.keep_effects),
        INT8: keys,
        INT8: position(options.max_cache_entries),
        INT8: position(options.max_cache_bytes),
    ];
    let row = db.call_one("purge", params, Repeat::Yes).await?;
    column(&row, 0)
}

/// Removes some expired entries after another change, which has succeeded regardless.
async fn purge_after(db: &Db) {
    if let Err(error) = purge(db).await {
        tracing::warn!(%error, "expired entries were not removed");
    }
}

/// Reads a column, which has the type that the function in the database returns.
fn column<'a, T>(row: &'a Row, at: usize) -> Result<T, StoreError>
where
    T: tokio_postgres::types::FromSql<'a>,
{
    row.try_get(at)
        .map_err(|error| Fault::corrupt("a row", error).into())
}

/// The error of a code that no function returns.
fn unknown(code: &str) -> StoreError {
    Fault::Database(format!("the schema returned the unknown code `{code}`").into()).into()
}

concentric_core::opaque_debug!(PostgresStore);
