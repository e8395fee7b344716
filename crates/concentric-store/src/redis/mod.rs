mod cache;
mod db;
mod decisions;
mod effects;
mod events;
mod limits;
mod memories;
mod runs;
mod tenants;
mod threads;
mod tls;
mod turns;
mod values;

use self::{
    db::{Db, Repeat},
    tls::info,
    values::{Call, Of, unknown},
};
use crate::{Fault, Options};
use concentric_core::store::StoreError;
use std::sync::Arc;

/// The version of the form in which the values are stored.
const VERSION: i64 = 1;

/// A store in a Redis server or cluster that any number of processes on any number of machines share.
///
/// See the [docs of `concentric-store`](https://docs.rs/concentric-store) for durability, fences and
/// limits, and [`Options`] for the connections.
///
/// Each method calls a script, which no other command interrupts, so that a dropped future is applied
/// completely or not at all. The script takes the time from the server. All keys of a tenant are in one
/// hash slot, so a tenant is on one node of a cluster; versions and fences are unique within it.
///
/// A call that failed because the connection was lost is repeated up to three times; while no server can be
/// reached, until [`Options::pool_wait`] has passed. If it may have been applied before, the repetition
/// recognises that by a random id, and returns the result of the first execution; the methods that return
/// how many entries they have removed are not repeated then, and fail.
///
/// The store belongs to the runtime that opened it, whose tasks read from its connections. Clones share
/// the connections, which are closed after the last clone is dropped.
#[derive(Clone)]
pub struct RedisStore {
    db: Arc<Db>,
}

impl RedisStore {
    /// Opens the store `concentric` in a server (`redis://user:password@host:6379/0`), or in the cluster
    /// that the server belongs to, with the default [`Options`]. Connections are encrypted if the URL
    /// begins with `rediss:`, which needs the feature `redis-rustls`.
    ///
    /// # Errors
    ///
    /// [`Fault::Volatile`] if a server may lose acknowledged writes, unless that was
    /// [accepted](Options::accept_loss); [`Fault::Newer`], [`Fault::Foreign`], [`Fault::Busy`],
    /// [`Fault::Untrusted`], [`Fault::Database`].
    pub async fn open(url: &str) -> Result<Self, Fault> {
        Self::open_with(url, Options::new()).await
    }

    /// Opens a store, with these options.
    ///
    /// Otherwise like [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub async fn open_with(url: &str, options: Options) -> Result<Self, Fault> {
        crate::options::check_schema(&options.schema)?;
        let db = Db::new(info(url, &options)?, options)?;
        db.find_nodes().await?;
        db.check_durability().await?;
        let mark = Call::new(Of::Store, "mark").int(VERSION);
        let marked = db.call(mark, Repeat::Yes).await.map_err(fault)?;
        match marked.code().map_err(fault)? {
            "ok" => {}
            "newer" => {
                return Err(Fault::Newer {
                    found: marked.int(1).map_err(fault)?,
                    known: VERSION,
                });
            }
            "foreign" => return Err(Fault::Foreign),
            other => return Err(fault(unknown(other))),
        }
        Ok(Self { db: Arc::new(db) })
    }
}

/// The fault of an error, which is also that of an operation on a store.
fn fault(error: StoreError) -> Fault {
    match error {
        StoreError::Failed(error) => match error.downcast_ref() {
            Some(Fault::Busy) => Fault::Busy,
            _ => Fault::Database(Box::new(StoreError::Failed(error))),
        },
        error => Fault::Database(Box::new(error)),
    }
}

concentric_core::opaque_debug!(RedisStore);
