mod cache;
mod decisions;
mod ledger;
mod limits;
mod log;
mod memories;
mod runs;
mod schema;
mod threads;
mod values;
mod worker;

use self::{
    log::NewTurns,
    worker::{Db, Job, QUEUE, RENEWALS, Renewal, Renewing, job, spawn, transact},
};
use crate::{Fault, Options};
use concentric_core::{
    Turn,
    store::{StoreError, StoreFuture},
};
use rusqlite::{Transaction, TransactionBehavior};
use std::{path::Path, sync::Arc};
use tokio::sync::{mpsc, oneshot};

/// A store in one SQLite file that any number of processes on one machine share.
///
/// See the [docs of `concentric-store`](https://docs.rs/concentric-store) for durability, fences,
/// limits and backups.
///
/// Three threads do the work, each with its own connection and a queue: one writes, one reads, and one renews leases,
/// all queued renewals in one transaction. Reads therefore do not delay the renewal of a lease, and writes do for the
/// time of their statements: they are serialized before. Clones share the threads, which exit after the last clone is
/// dropped and the queued work is done. An in-memory database has one thread.
#[derive(Clone)]
pub struct SqliteStore {
    writer: mpsc::Sender<Job>,
    reader: mpsc::Sender<Job>,
    // `None` if the writer renews leases.
    renewer: Option<mpsc::Sender<Renewal>>,
    options: Options,
    // `None` for an in-memory database.
    path: Option<Arc<Path>>,
}

impl SqliteStore {
    /// Opens or creates a file, with the default [`Options`].
    ///
    /// A new file is readable only by its owner. The file must be on a local disk: the locks of
    /// network file systems are unreliable. This blocks on disk I/O, so call it at program start.
    ///
    /// # Errors
    ///
    /// [`Fault::Newer`], [`Fault::Foreign`], [`Fault::OldSqlite`], [`Fault::Database`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Fault> {
        Self::open_with(path, Options::new())
    }

    /// Opens or creates a file, with these options.
    ///
    /// Otherwise like [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, Fault> {
        Self::with(options, Some(path.as_ref()))
    }

    /// Creates an in-memory database, for tests. It is lost with the last handle.
    ///
    /// # Errors
    ///
    /// [`Fault::OldSqlite`], [`Fault::Database`].
    pub fn open_in_memory() -> Result<Self, Fault> {
        Self::open_in_memory_with(Options::new())
    }

    /// Creates an in-memory database, with these options.
    ///
    /// # Errors
    ///
    /// Those of [`open_in_memory`](Self::open_in_memory).
    pub fn open_in_memory_with(options: Options) -> Result<Self, Fault> {
        Self::with(options, None)
    }

    fn with(options: Options, path: Option<&Path>) -> Result<Self, Fault> {
        // The path must stay valid if the program changes its working directory.
        let path = path
            .map(|path| std::path::absolute(path).map(Arc::from))
            .transpose()
            .map_err(|error| Fault::Database(Box::new(error)))?;
        let renewing = Renewing::default();
        let serve = |name, db: Db| -> Result<_, Fault> {
            let (jobs, queue) = mpsc::channel(QUEUE);
            let renewing = Arc::clone(&renewing);
            spawn(name, move || db.serve(queue, &renewing))?;
            Ok(jobs)
        };
        let writer = serve(
            "concentric-store",
            Db::open(options.clone(), path.as_ref(), true)?,
        )?;
        let (reader, renewer) = match path.as_ref() {
            None => (writer.clone(), None),
            Some(path) => {
                let db = Db::open(options.clone(), Some(path), false)?;
                // Its own lock, since reads need not wait for renewals.
                let (reader, queue) = mpsc::channel(QUEUE);
                spawn("concentric-reads", move || {
                    db.serve(queue, &Renewing::default())
                })?;
                let db = Db::open(options.clone(), Some(path), false)?;
                let (renewer, queue) = mpsc::channel(RENEWALS);
                spawn("concentric-leases", move || db.renew(queue, &renewing))?;
                (reader, Some(renewer))
            }
        };
        Ok(Self {
            writer,
            reader,
            renewer,
            options,
            path,
        })
    }

    /// Writes a consistent copy of the database to a new file.
    ///
    /// The copy runs on its own thread and connection; reads and writes continue meanwhile, in this
    /// store and in other processes. The log beside the file (`-wal`) grows until the copy is done.
    ///
    /// # Errors
    ///
    /// The file exists, or cannot be written.
    pub fn back_up(&self, to: impl AsRef<Path>) -> StoreFuture<()> {
        let to = to.as_ref().to_path_buf();
        let Some(path) = self.path.clone() else {
            return job(&self.writer, move |db| {
                Ok(schema::copy(&db.connection, &to)?)
            });
        };
        let options = self.options.clone();
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            spawn("concentric-backup", move || {
                let _ = reply.send(schema::copy_file(&options, &path, &to));
            })?;
            Ok(answer.await.map_err(|_| Fault::Closed)??)
        })
    }

    /// Serializes turns that follow the first `keep` ones of a log, whose last checksum `before` reads. Large ones get
    /// their checksums here, so that the transaction that writes them is short.
    async fn new_turns(
        &self,
        turns: &[Turn],
        keep: usize,
        before: impl FnOnce(&Transaction<'_>) -> Result<Vec<u8>, StoreError> + Send + 'static,
    ) -> Result<NewTurns, StoreError> {
        let mut new = NewTurns::new(turns, self.options.max_state_bytes).await?;
        match (new.is_large(), keep) {
            (false, _) => {}
            (true, 0) => new.begin().await,
            (true, _) => {
                // The writer reports what is wrong with the log.
                if let Ok(before) = self.read(|tx, _| before(tx)).await {
                    new.follow(before).await;
                }
            }
        }
        Ok(new)
    }

    /// Runs `work` on the writer's thread, in an exclusive write transaction.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, &Options) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        job(&self.writer, move |db| {
            let immediate = TransactionBehavior::Immediate;
            transact(&mut db.connection, immediate, |tx| work(tx, &db.options))
        })
    }

    /// Runs `work` on the reader's thread, in a transaction that sees one snapshot.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, &Options) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        job(&self.reader, move |db| {
            let deferred = TransactionBehavior::Deferred;
            transact(&mut db.connection, deferred, |tx| work(tx, &db.options))
        })
    }
}

concentric_core::opaque_debug!(SqliteStore);

#[cfg(test)]
mod tests {
    use super::{values::time, *};
    use concentric_core::store::{Decisions, Once, Tenant};
    use std::time::Duration;

    fn fault(error: &StoreError) -> &Fault {
        match error {
            StoreError::Failed(error) => error.downcast_ref().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn panics(_: &Transaction<'_>, _: &Options) -> Result<(), StoreError> {
        panic!("over this work")
    }

    #[tokio::test]
    async fn a_panic_fails_its_work_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = SqliteStore::open(dir.path().join("runs.db")).unwrap();
        for store in [file, SqliteStore::open_in_memory().unwrap()] {
            let used = |name| store.once(Tenant::default(), name, Duration::ZERO);
            assert!(used("before".into()).await.unwrap());
            let half_done = store.write(|tx, options| {
                ledger::once(tx, &Tenant::default(), &"in it".into(), time(0))?;
                panics(tx, options)
            });
            let error = half_done.await.unwrap_err();
            assert!(matches!(fault(&error), Fault::Panicked), "{error:?}");
            let error = store.read(panics).await.unwrap_err();
            assert!(matches!(fault(&error), Fault::Panicked), "{error:?}");
            assert!(used("in it".into()).await.unwrap(), "it was written");
            assert!(!used("before".into()).await.unwrap(), "it is lost");
            assert!(store.list(Tenant::default()).await.unwrap().is_empty());
        }
    }
}
