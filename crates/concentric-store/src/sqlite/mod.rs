mod decisions;
mod ledger;
mod runs;
mod schema;

use crate::{Fault, Options};
use concentric_core::{
    InterruptId, Reply, RunId, Str, ThreadId, ToolOutcome,
    machine::MachineState,
    store::{
        Decisions, Effect, EffectKey, Intent, Ledger, Once, Remembered, RunKey, RunRecord,
        RunStore, StoreError, StoreFuture, Tenant,
    },
};
use runs::Next;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::{
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::sync::{mpsc, oneshot};

/// A store in one SQLite file, which any number of processes of one machine share.
///
/// See the [crate's docs](crate) for what is durable when, and for backups. A thread of its own does
/// the work, in the order it comes; clones share it. It ends with the last of them, after what was
/// asked for until then.
#[derive(Clone)]
pub struct SqliteStore {
    jobs: mpsc::Sender<Job>,
    options: Options,
    // `None`: it is in memory.
    path: Option<Arc<Path>>,
}

type Job = Box<dyn FnOnce(&mut Db) + Send>;

/// How many jobs may wait for the thread before whoever wants another one waits.
const QUEUE: usize = 64;

struct Db {
    connection: Connection,
    options: Options,
}

impl SqliteStore {
    /// Opens a file, or creates it, with the default [`Options`].
    ///
    /// The file is only for its owner to read, if this creates it. It is to be on a local disk: the
    /// locks of network file systems do not hold. This waits for the disk, so it belongs where a
    /// program starts.
    ///
    /// # Errors
    ///
    /// [`Fault::Newer`], [`Fault::Foreign`], [`Fault::Database`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Fault> {
        Options::new().open(path)
    }

    /// Creates a database in memory, for tests: it is gone with the last handle.
    ///
    /// # Errors
    ///
    /// [`Fault::Database`].
    pub fn open_in_memory() -> Result<Self, Fault> {
        Options::new().open_in_memory()
    }

    pub(crate) fn with(options: Options, path: Option<&Path>) -> Result<Self, Fault> {
        // Also if the program goes to another directory.
        let path = path
            .map(|path| std::path::absolute(path).map(Arc::from))
            .transpose()
            .map_err(|error| Fault::Database(Box::new(error)))?;
        let connection = schema::open(&options, path.as_deref())?;
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        let mut db = Db {
            connection,
            options,
        };
        spawn("concentric-store", move || {
            while let Some(job) = queue.blocking_recv() {
                job(&mut db);
            }
        })?;
        Ok(Self {
            jobs,
            options,
            path,
        })
    }

    /// Forgets what need not be kept any longer, as the end of each run does.
    pub fn purge(&self, now: SystemTime) -> StoreFuture<()> {
        self.write(move |tx, options| runs::purge(tx, options, now))
    }

    /// Writes a copy of the database, as it is between two writes, into a new file.
    ///
    /// Others go on to read and write meanwhile, this store too: a thread of its own does it, over a
    /// connection of its own. The log beside the file (`-wal`) grows until it is done.
    ///
    /// # Errors
    ///
    /// There is such a file, or it cannot be written.
    pub fn back_up(&self, to: impl AsRef<Path>) -> StoreFuture<()> {
        let to = to.as_ref().to_path_buf();
        let Some(path) = self.path.clone() else {
            return self.job(move |db| Ok(schema::copy(&db.connection, &to)?));
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

    /// Has the thread do `work`, as a whole: also if the future is dropped once it is under way.
    fn job<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Db) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        let jobs = self.jobs.clone();
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let job: Job = Box::new(move |db| {
                let _ = reply.send(work(db));
            });
            jobs.send(job).await.map_err(|_| Fault::Closed)?;
            answer.await.map_err(|_| Fault::Closed)?
        })
    }

    /// Has the thread do `work` as one transaction, which no other writer is in the middle of.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, &Options) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        self.job(move |db| {
            let tx = db
                .connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(failed)?;
            // On error, the transaction is dropped, and nothing is written.
            let value = work(&tx, &db.options)?;
            tx.commit().map_err(failed)?;
            Ok(value)
        })
    }

    /// Has the thread read, all of it as it is at one time.
    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, &Options) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        self.job(move |db| {
            let tx = db
                .connection
                .transaction_with_behavior(TransactionBehavior::Deferred)
                .map_err(failed)?;
            work(&tx, &db.options)
        })
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| Fault::Database(Box::new(error)))
}

impl RunStore for SqliteStore {
    fn begin(&self, key: RunKey, state: MachineState, lease_until: SystemTime) -> StoreFuture<u64> {
        self.write(move |tx, options| runs::begin(tx, options, &key, &state, lease_until))
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
        self.write(move |tx, _| runs::renew(tx, &key, fence, lease_until))
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

    fn asking(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        self.read(move |tx, options| runs::asking(tx, options, tenant, thread, &questions))
    }

    fn of_thread(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Vec<RunRecord>> {
        self.read(move |tx, options| runs::of_thread(tx, options, &tenant, &thread))
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

/// The next number of the store's counter: a version, or a fence.
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

/// A time as nanoseconds since 1970; one that has no such number, as the nearest that has.
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
