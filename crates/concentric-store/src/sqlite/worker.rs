//! The threads of a store, and their queues.

use super::{runs, schema, values::failed};
use crate::{Fault, Options};
use concentric_core::{
    panic::catch,
    store::{Renewed, RunKey, StoreError, StoreFuture},
};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

pub(super) type Job = Box<dyn FnOnce(&mut Db) + Send>;

/// The capacity of a thread's queue, in jobs; callers wait while it is full.
pub(super) const QUEUE: usize = 64;

/// The maximum number of leases renewed in one transaction.
pub(super) const RENEWALS: usize = 256;

pub(super) struct Db {
    pub(super) connection: Connection,
    pub(super) options: Options,
    // `None` for an in-memory database.
    path: Option<Arc<Path>>,
}

/// A request to renew a lease.
pub(super) struct Renewal {
    pub(super) key: RunKey,
    pub(super) fence: u64,
    pub(super) lease: Duration,
    pub(super) reply: oneshot::Sender<Result<Renewed, StoreError>>,
}

/// A lock held while leases are renewed, during which the writer starts no job. Without it, a
/// constantly busy writer could starve the renewals of SQLite's lock.
pub(super) type Renewing = Arc<Mutex<()>>;

impl Db {
    pub(super) fn open(
        options: Options,
        path: Option<&Arc<Path>>,
        is_first: bool,
    ) -> Result<Self, Fault> {
        let connection = match path {
            Some(path) if !is_first => schema::open_again(&options, path)?,
            path => schema::open(&options, path.map(|path| &**path))?,
        };
        Ok(Self {
            connection,
            options,
            path: path.cloned(),
        })
    }

    /// Runs `work` and catches its panics. After a panic, which rolls the transaction back, the
    /// connection is replaced, since its state is unknown; an in-memory database keeps it.
    fn guard(&mut self, work: impl FnOnce(&mut Self)) {
        let Err(panic) = catch(|| work(self)) else {
            return;
        };
        tracing::error!(
            panic = panic.text(),
            "store operation panicked; its thread continues"
        );
        if self.path.is_none() {
            return;
        }
        match Self::open(self.options.clone(), self.path.as_ref(), false) {
            Ok(db) => *self = db,
            Err(error) => tracing::error!(%error, "failed to reopen the store's file"),
        }
    }

    /// Runs jobs until all senders are dropped.
    pub(super) fn serve(mut self, mut queue: mpsc::Receiver<Job>, renewing: &Renewing) {
        while let Some(job) = queue.blocking_recv() {
            drop(renewing.lock().unwrap_or_else(PoisonError::into_inner));
            self.guard(job);
        }
    }

    /// Renews leases until all senders are dropped.
    pub(super) fn renew(mut self, mut queue: mpsc::Receiver<Renewal>, renewing: &Renewing) {
        let mut batch = Vec::new();
        while queue.blocking_recv_many(&mut batch, RENEWALS) > 0 {
            let batch = std::mem::take(&mut batch);
            let _renewing = renewing.lock().unwrap_or_else(PoisonError::into_inner);
            self.guard(|db| renew_all(db, batch));
        }
    }
}

/// Renews leases in one transaction.
fn renew_all(db: &mut Db, batch: Vec<Renewal>) {
    let Db {
        connection,
        options,
        ..
    } = db;
    let renewed = begin_soon(connection, options.busy_timeout).and_then(|tx| {
        let renewals = batch.iter();
        let renewed = renewals.map(|it| runs::renew(&tx, options, &it.key, it.fence, it.lease));
        let renewed: Vec<_> = renewed.collect();
        tx.commit()?;
        Ok(renewed)
    });
    match renewed {
        Ok(renewed) => {
            for (renewal, renewed) in batch.into_iter().zip(renewed) {
                let _ = renewal.reply.send(renewed);
            }
        }
        Err(error) => {
            let error = failed(error);
            for renewal in batch {
                let _ = renewal.reply.send(Err(error.clone()));
            }
        }
    }
}

/// Begins a write transaction within a millisecond after that of another connection has ended: the waits of SQLite
/// itself become as long as 100 ms.
fn begin_soon(connection: &Connection, patience: Duration) -> rusqlite::Result<Transaction<'_>> {
    let since = Instant::now();
    connection.busy_timeout(Duration::from_millis(1))?;
    loop {
        let begun = Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
        match begun {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && since.elapsed() < patience => {}
            begun => return begun,
        }
    }
}

/// Runs `work` in one transaction, which is rolled back on an error or a panic.
pub(super) fn transact<T>(
    connection: &mut Connection,
    behavior: TransactionBehavior,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let tx = connection
        .transaction_with_behavior(behavior)
        .map_err(failed)?;
    let value = work(&tx)?;
    tx.commit().map_err(failed)?;
    Ok(value)
}

/// Runs `work` on a thread. Work that was queued runs to its end even if the future is dropped.
pub(super) fn job<T: Send + 'static>(
    jobs: &mpsc::Sender<Job>,
    work: impl FnOnce(&mut Db) -> Result<T, StoreError> + Send + 'static,
) -> StoreFuture<T> {
    let jobs = jobs.clone();
    Box::pin(async move {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |db| {
            let _ = reply.send(work(db));
        });
        jobs.send(job).await.map_err(|_| Fault::Closed)?;
        // The thread lives as long as `jobs`, so only a panic can have dropped the job.
        answer.await.map_err(|_| Fault::Panicked)?
    })
}

pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| Fault::Database(Box::new(error)))
}
