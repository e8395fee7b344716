mod decisions;
mod ledger;
mod runs;
mod schema;

use crate::{Fault, Options};
use concentric_core::{
    InterruptId, MessageId, Reply, RunId, Str, ThreadId, ToolOutcome,
    machine::MachineState,
    panic::catch,
    store::{
        Decisions, Effect, EffectKey, Intent, Ledger, Once, Remembered, RunKey, RunRecord,
        RunStore, RunSummary, StoreError, StoreFuture, Tenant,
    },
};
use runs::Next;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::sync::{mpsc, oneshot};

/// A store in one SQLite file that any number of processes on one machine share.
///
/// See the [docs of `concentric-store`](https://docs.rs/concentric-store) for durability, fences,
/// limits and backups.
///
/// Three threads do the work, each with its own connection and a queue: one writes, one reads, and
/// one renews leases, all queued renewals in one transaction. Reads and writes of large states
/// therefore do not delay the renewal of a lease. Clones share the threads, which exit after the
/// last clone is dropped and the queued work is done. An in-memory database has one thread.
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

type Job = Box<dyn FnOnce(&mut Db) + Send>;

/// The capacity of a thread's queue, in jobs; callers wait while it is full.
const QUEUE: usize = 64;

/// The maximum number of leases renewed in one transaction.
const RENEWALS: usize = 256;

struct Db {
    connection: Connection,
    options: Options,
    // `None` for an in-memory database.
    path: Option<Arc<Path>>,
}

/// A request to renew a lease.
struct Renewal {
    key: RunKey,
    fence: u64,
    until: SystemTime,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// A lock held while leases are renewed, during which the writer starts no job. Without it, a
/// constantly busy writer could starve the renewals of SQLite's lock.
type Turn = Arc<Mutex<()>>;

impl Db {
    fn open(options: Options, path: Option<&Arc<Path>>, is_first: bool) -> Result<Self, Fault> {
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
        match Self::open(self.options, self.path.as_ref(), false) {
            Ok(db) => *self = db,
            Err(error) => tracing::error!(%error, "failed to reopen the store's file"),
        }
    }

    /// Runs jobs until all senders are dropped.
    fn serve(mut self, mut queue: mpsc::Receiver<Job>, turn: &Turn) {
        while let Some(job) = queue.blocking_recv() {
            drop(turn.lock().unwrap_or_else(PoisonError::into_inner));
            self.guard(job);
        }
    }

    /// Renews leases until all senders are dropped.
    fn renew(mut self, mut queue: mpsc::Receiver<Renewal>, turn: &Turn) {
        let mut batch = Vec::new();
        while queue.blocking_recv_many(&mut batch, RENEWALS) > 0 {
            let batch = std::mem::take(&mut batch);
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            self.guard(|db| renew_all(&mut db.connection, batch));
        }
    }
}

/// Renews leases in one transaction.
fn renew_all(connection: &mut Connection, batch: Vec<Renewal>) {
    let renewed = transact(connection, TransactionBehavior::Immediate, |tx| {
        let renewals = batch.iter();
        Ok(renewals
            .map(|it| runs::renew(tx, &it.key, it.fence, it.until))
            .collect::<Vec<_>>())
    });
    match renewed {
        Ok(renewed) => {
            for (renewal, renewed) in batch.into_iter().zip(renewed) {
                let _ = renewal.reply.send(renewed);
            }
        }
        Err(error) => {
            for renewal in batch {
                let _ = renewal.reply.send(Err(error.clone()));
            }
        }
    }
}

/// Runs `work` in one transaction, which is rolled back on an error or a panic.
fn transact<T>(
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
        let turn = Turn::default();
        let serve = |name, db: Db| -> Result<_, Fault> {
            let (jobs, queue) = mpsc::channel(QUEUE);
            let turn = Arc::clone(&turn);
            spawn(name, move || db.serve(queue, &turn))?;
            Ok(jobs)
        };
        let writer = serve("concentric-store", Db::open(options, path.as_ref(), true)?)?;
        let (reader, renewer) = match path.as_ref() {
            None => (writer.clone(), None),
            Some(path) => {
                let db = Db::open(options, Some(path), false)?;
                // Its own lock, since reads need not wait for renewals.
                let (reader, queue) = mpsc::channel(QUEUE);
                spawn("concentric-reads", move || {
                    db.serve(queue, &Turn::default())
                })?;
                let db = Db::open(options, Some(path), false)?;
                let (renewer, queue) = mpsc::channel(RENEWALS);
                spawn("concentric-leases", move || db.renew(queue, &turn))?;
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

    /// Removes all expired entries.
    ///
    /// Each transaction removes at most a hundred entries of each kind, so that other writers can
    /// run in between. The end of each run performs one such transaction.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it resolves, only some of the entries are removed.
    pub fn purge(&self, now: SystemTime) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            let part = || store.write(move |tx, options| runs::purge(tx, options, now));
            while part().await? {}
            Ok(())
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
        let options = self.options;
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            spawn("concentric-backup", move || {
                let _ = reply.send(schema::copy_file(&options, &path, &to));
            })?;
            Ok(answer.await.map_err(|_| Fault::Closed)??)
        })
    }

    /// Runs `work` on the writer's thread, in an exclusive write transaction.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, &Options) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        job(&self.writer, move |db| {
            let Db { options, .. } = *db;
            let immediate = TransactionBehavior::Immediate;
            transact(&mut db.connection, immediate, |tx| work(tx, &options))
        })
    }

    /// Runs `work` on the reader's thread, in a transaction that sees one snapshot.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, &Options) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        job(&self.reader, move |db| {
            let Db { options, .. } = *db;
            let deferred = TransactionBehavior::Deferred;
            transact(&mut db.connection, deferred, |tx| work(tx, &options))
        })
    }
}

/// Runs `work` on a thread. Work that was queued runs to its end even if the future is dropped.
fn job<T: Send + 'static>(
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

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| Fault::Database(Box::new(error)))
}

impl RunStore for SqliteStore {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<u64> {
        self.write(move |tx, options| {
            runs::begin(tx, options, &key, &client_id, &state, lease_until)
        })
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        self.read(move |tx, _| runs::is_live(tx, &tenant, &thread, &client_id))
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        self.read(move |tx, options| runs::get(tx, options, &key))
    }

    fn claim(
        &self,
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        lease_until: SystemTime,
    ) -> StoreFuture<RunRecord> {
        self.write(move |tx, options| {
            runs::claim(tx, options, &key, version, replies, now, lease_until)
        })
    }

    fn amend(
        &self,
        key: RunKey,
        version: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<u64> {
        self.write(move |tx, options| runs::amend(tx, options, &key, version, &state, now))
    }

    fn save(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        lease_until: SystemTime,
    ) -> StoreFuture<()> {
        self.write(move |tx, options| {
            runs::write(tx, options, &key, fence, &state, Next::Runs(lease_until))
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease_until: SystemTime) -> StoreFuture<()> {
        let Some(renewer) = self.renewer.clone() else {
            return self.write(move |tx, _| runs::renew(tx, &key, fence, lease_until));
        };
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let renewal = Renewal {
                key,
                fence,
                until: lease_until,
                reply,
            };
            renewer.send(renewal).await.map_err(|_| Fault::Closed)?;
            answer.await.map_err(|_| Fault::Panicked)?
        })
    }

    fn suspend(
        &self,
        key: RunKey,
        fence: u64,
        state: MachineState,
        now: SystemTime,
    ) -> StoreFuture<()> {
        self.write(move |tx, options| {
            runs::write(tx, options, &key, fence, &state, Next::Waits(now))
        })
    }

    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()> {
        self.write(move |tx, options| runs::end(tx, options, &key, fence, now))
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize> {
        self.write(move |tx, options| runs::withdraw(tx, options, &tenant, &thread, now))
    }

    fn asking(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        self.read(move |tx, options| runs::asking(tx, options, tenant, thread, &questions))
    }

    fn of_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        self.read(move |tx, _| runs::of_thread(tx, &tenant, &thread, message.as_ref(), limit))
    }

    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>> {
        self.read(move |tx, options| runs::abandoned(tx, options, now, limit))
    }
}

impl Ledger for SqliteStore {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<Effect> {
        self.write(move |tx, _| ledger::begin(tx, &key, &intent))
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        self.write(move |tx, _| ledger::finish(tx, &key, &outcome))
    }

    fn known(&self, key: EffectKey) -> StoreFuture<Effect> {
        self.read(move |tx, _| ledger::known(tx, &key))
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        self.write(move |tx, _| ledger::retract(tx, &key))
    }
}

impl Once for SqliteStore {
    fn once(&self, tenant: Tenant, key: Str, until: SystemTime) -> StoreFuture<bool> {
        self.write(move |tx, _| ledger::once(tx, &tenant, &key, until))
    }
}

impl Decisions for SqliteStore {
    fn remember(&self, decision: Remembered) -> StoreFuture<()> {
        self.write(move |tx, _| decisions::remember(tx, &decision))
    }

    fn recall(
        &self,
        tenant: Tenant,
        tool: Str,
        run: RunId,
        thread: Option<ThreadId>,
    ) -> StoreFuture<Vec<Remembered>> {
        self.read(move |tx, _| decisions::recall(tx, &tenant, &tool, &run, thread.as_ref()))
    }

    fn list(&self, tenant: Tenant) -> StoreFuture<Vec<Remembered>> {
        self.read(move |tx, _| decisions::list(tx, &tenant))
    }

    fn revoke(&self, tenant: Tenant, id: Str) -> StoreFuture<bool> {
        self.write(move |tx, _| decisions::revoke(tx, &tenant, &id))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

fn failed(error: rusqlite::Error) -> StoreError {
    Fault::from(error).into()
}

/// Increments the store's counter and returns it, as a version or a fence.
fn count(tx: &Transaction<'_>) -> Result<u64, StoreError> {
    let next = "UPDATE counter SET n = n + 1 RETURNING n";
    let n: i64 = tx
        .prepare_cached(next)
        .and_then(|mut next| next.query_row([], |row| row.get(0)))
        .map_err(failed)?;
    Ok(number(n))
}

fn number(n: i64) -> u64 {
    u64::try_from(n).unwrap_or_default()
}

fn integer(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Converts a time to nanoseconds since 1970, clamped to the range of `i64`.
fn nanos(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

fn time(nanos: i64) -> SystemTime {
    let since = Duration::from_nanos(nanos.unsigned_abs());
    let time = match nanos < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(since),
        false => SystemTime::UNIX_EPOCH.checked_add(since),
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let used = |name| store.once(Tenant::default(), name, SystemTime::UNIX_EPOCH);
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
