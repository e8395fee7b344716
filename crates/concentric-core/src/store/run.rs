use super::{RunKey, StoreError, StoreFuture, Tenant, shared};
use concentric_proto::{
    Interrupt, InterruptId, MessageId, Reply, RunId, ThreadId,
    run_state::{RunChange, RunState},
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// The duration of a claim that is not renewed.
pub const LEASE: Duration = Duration::from_secs(30);

/// A stored run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunRecord {
    /// The key of the run.
    pub key: RunKey,
    /// The run id of the request that started the run ([`Context::run_id`](crate::Context::run_id)). It is chosen by the
    /// client and may repeat in a conversation.
    pub client_id: RunId,
    /// The status of the run.
    pub status: RunStatus,
    /// Increases with each write; a claim specifies the version it is based on.
    pub version: u64,
    /// Increases with each claim. Only the owner of the newest fence may write.
    pub fence: u64,
    /// The end of the owner's lease.
    pub lease_until: SystemTime,
    /// The state of the run.
    pub state: RunState,
    /// The replies that the run was claimed with, until the next state is saved.
    pub replies: Vec<Reply>,
    /// The time at which the replies were accepted.
    pub replied_at: Option<SystemTime>,
    /// All interrupts the run has raised so far, with or without replies.
    pub asked: Vec<InterruptId>,
}

impl RunRecord {
    /// Creates a record of a run that was started by a request with the run id `client_id`.
    pub fn new(key: RunKey, client_id: RunId, state: RunState) -> Self {
        Self {
            key,
            client_id,
            status: RunStatus::Running,
            version: 0,
            fence: 0,
            lease_until: SystemTime::UNIX_EPOCH,
            state,
            replies: Vec::new(),
            replied_at: None,
            asked: Vec::new(),
        }
    }
}

/// A stored run without its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunSummary {
    /// The key of the run.
    pub key: RunKey,
    /// The run id of the request that started the run.
    pub client_id: RunId,
    /// The status of the run.
    pub status: RunStatus,
    /// The end of the run's lease, if it is running.
    pub lease_until: SystemTime,
}

impl RunSummary {
    /// Creates a summary.
    pub fn new(key: RunKey, client_id: RunId, status: RunStatus, lease_until: SystemTime) -> Self {
        Self {
            key,
            client_id,
            status,
            lease_until,
        }
    }

    /// Returns whether the run is running and its lease has not expired at `now`.
    pub fn is_driven(&self, now: SystemTime) -> bool {
        self.status == RunStatus::Running && self.lease_until > now
    }
}

/// The status of a stored run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A process drives the run, or did until it crashed.
    Running,
    /// The run waits for replies.
    Suspended,
    /// The run has ended. The record is kept for a while, to reject late replies.
    Ended,
}

shared! {
    /// Stores runs so that another process can resume them, and ensures that only one process does.
    ///
    /// Every write except [`begin`](Self::begin) and [`claim`](Self::claim) specifies the fence of its
    /// claim. It fails with [`StoreError::Stale`] if there is a newer claim, or if the claim was given
    /// up. Acknowledged writes are durable. A write that can never succeed, because the store can't
    /// represent the state or the replies, fails with [`StoreError::Unwritable`].
    ///
    /// Operations on a run that can't be read fail. Operations that return several runs log such a run
    /// and omit it, so that it does not hide the others.
    ///
    /// Versions and fences are unique in a store, even if the key of a deleted run is used again.
    ///
    /// States are written as [changes](RunChange): a turn is stored once, when the run has it for the
    /// first time, and the rest of the state is replaced. A write that keeps more turns than the run
    /// has fails with [`StoreError::Unwritable`].
    pub trait RunStore: Send + Sync + 'static {
        /// Stores a new run with all turns of `change`, which a request with the run id `client_id` has
        /// started, and claims it until `lease_until`. Returns the fence.
        ///
        /// # Errors
        ///
        /// [`StoreError::Exists`] if the store has a run with this key, [`StoreError::Live`] if a run
        /// with the same `client_id` in the same conversation [is live](Self::is_live).
        fn begin(
            &self,
            key: RunKey,
            client_id: RunId,
            change: RunChange,
            lease_until: SystemTime,
        ) -> StoreFuture<u64>;

        /// Returns whether a run that was started by a request with the run id `client_id` in this
        /// conversation is live. A run is live while its status is [`Running`](RunStatus::Running),
        /// even if its lease has expired.
        fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool>;

        /// Returns a run.
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`].
        fn get(&self, key: RunKey) -> StoreFuture<RunRecord>;

        /// Claims a run that waits for replies, or whose lease had expired at `now`, if it was not
        /// written since `version`. Stores `replies` with it, as accepted at `now`. Returns the run
        /// with its new fence.
        ///
        /// Replies that are stored from an earlier claim, whose owner crashed, were accepted and are
        /// not replaced; of `replies`, only those to other interrupts are added. The returned record
        /// contains all stored replies.
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`]; [`StoreError::Taken`] if the run was claimed or written in the
        /// meantime, [`StoreError::Ended`] if it has ended.
        fn claim(
            &self,
            key: RunKey,
            version: u64,
            replies: Vec<Reply>,
            now: SystemTime,
            lease_until: SystemTime,
        ) -> StoreFuture<RunRecord>;

        /// Changes the state of a run that could be [claimed](Self::claim) at `now`, if it was not
        /// written since `version`. Returns the new version. All other fields are unchanged.
        ///
        /// # Errors
        ///
        /// Those of [`claim`](Self::claim).
        fn amend(
            &self,
            key: RunKey,
            version: u64,
            change: RunChange,
            now: SystemTime,
        ) -> StoreFuture<u64>;

        /// Changes the state of a run, and deletes its stored replies, which the state contains.
        fn save(
            &self,
            key: RunKey,
            fence: u64,
            change: RunChange,
            lease_until: SystemTime,
        ) -> StoreFuture<()>;

        /// Extends the lease of a run.
        fn renew(&self, key: RunKey, fence: u64, lease_until: SystemTime) -> StoreFuture<()>;

        /// Changes the state of a run that waits for replies since `now`, and gives up the claim.
        ///
        /// # Errors
        ///
        /// [`StoreError::TooManyWaiting`] if the run has not waited before, and the conversation or the
        /// tenant has reached its limit of runs that wait, or have waited and not ended. Then nothing
        /// is stored.
        fn suspend(
            &self,
            key: RunKey,
            fence: u64,
            change: RunChange,
            now: SystemTime,
        ) -> StoreFuture<()>;

        /// Records that the run ended at `now`. Repeated calls succeed.
        fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()>;

        /// Ends all runs of a conversation that wait for replies, as of `now`, atomically. Returns the
        /// number of ended runs. A claimed run is not ended; a concurrent claim comes before or after.
        fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize>;

        /// Returns the newest run, ended or not, that raised any of `questions`, answered or not.
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`].
        fn find_by_interrupt(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            questions: Vec<InterruptId>,
        ) -> StoreFuture<RunRecord>;

        /// Returns at most `limit` runs of a conversation that have not ended: first those that wait
        /// for replies, oldest first, then running ones, by the end of their leases. With a `message`,
        /// returns only runs whose open round belongs to this message. States are not loaded.
        fn list_by_thread(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            message: Option<MessageId>,
            limit: usize,
        ) -> StoreFuture<Vec<RunSummary>>;

        /// Returns at most `limit` runs, of all tenants, whose lease had expired at `now`.
        fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>>;
    }
}

/// Returns the open interrupts of a conversation's runs, oldest run first. States are loaded one
/// after the other. A run that can't be read is logged and omitted if another one can be read.
///
/// # Errors
///
/// The store failed, or none of the runs can be read.
pub async fn waiting<St>(
    store: &St,
    tenant: Tenant,
    thread: ThreadId,
) -> Result<Vec<Interrupt>, StoreError>
where
    St: RunStore + ?Sized,
{
    let runs = store
        .list_by_thread(tenant, thread, None, usize::MAX)
        .await?;
    let waiting = runs
        .into_iter()
        .filter(|run| run.status == RunStatus::Suspended);
    let mut interrupts = Vec::new();
    let mut failed = None;
    for run in waiting {
        match store.get(run.key.clone()).await {
            Ok(record) if record.status == RunStatus::Suspended => {
                interrupts.extend(record.state.interrupts().into_iter().cloned());
            }
            // The run was resumed or deleted in the meantime.
            Ok(_) | Err(StoreError::NotFound) => {}
            Err(error) => {
                let run = &run.key.run;
                tracing::error!(%run, %error, "omitted a waiting run that can't be read");
                failed = Some(error);
            }
        }
    }
    match failed {
        // The store may have failed, rather than this run.
        Some(error) if interrupts.is_empty() => Err(error),
        _ => Ok(interrupts),
    }
}
