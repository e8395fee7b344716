use super::{RunKey, StoreError, StoreFuture, Tenant, shared};
use concentric_proto::{
    ErrorKind, Interrupt, InterruptId, MessageId, Outcome, Reply, RunId, ThreadId,
    run_state::{RunChange, RunState},
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// The duration of a claim that is not renewed.
pub const LEASE: Duration = Duration::from_secs(30);

/// The number of [takeovers](RunRecord::takeovers) after which an abandoned run is
/// [quarantined](RunStatus::Quarantined).
pub const MAX_TAKEOVERS: u32 = 5;

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
    /// The end of the owner's lease, by the clock of the store.
    pub lease_until: SystemTime,
    /// The number of times that a process claimed the run after the lease of another one had expired,
    /// since its state was last written or its claim was given up.
    pub takeovers: u32,
    /// The state of the run.
    pub state: RunState,
    /// The replies that the run was claimed with, until the next state is saved.
    pub replies: Vec<Reply>,
    /// The time at which the replies were accepted, by the clock of the store.
    pub replied_at: Option<SystemTime>,
    /// All interrupts the run has raised so far, with or without replies.
    pub asked: Vec<InterruptId>,
    /// How the run [ended](RunStore::end). `None` if it has not ended, or was ended by a release that did not
    /// record it.
    pub outcome: Option<Result<Outcome, ErrorKind>>,
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
            takeovers: 0,
            state,
            replies: Vec::new(),
            replied_at: None,
            asked: Vec::new(),
            outcome: None,
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
    /// The end of the run's lease, by the clock of the store.
    pub lease_until: SystemTime,
    /// How the run [ended](RunStore::end). `None` if it has not ended, or was ended by a release that did not
    /// record it.
    pub outcome: Option<Result<Outcome, ErrorKind>>,
}

impl RunSummary {
    /// Creates a summary of a run without an outcome.
    pub fn new(key: RunKey, client_id: RunId, status: RunStatus, lease_until: SystemTime) -> Self {
        Self {
            key,
            client_id,
            status,
            lease_until,
            outcome: None,
        }
    }
}

/// The status of a stored run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A process drives the run.
    Running,
    /// The run's lease has expired: its process has died, or can't reach the store.
    Abandoned,
    /// The run was abandoned [`MAX_TAKEOVERS`] times without a write of its state in between, as if it
    /// ended each process that drives it. It can be claimed again once it is
    /// [released](RunStore::release).
    Quarantined,
    /// The run waits for replies.
    Suspended,
    /// The run has ended. The record is kept for a while, to reject late replies and to tell its outcome.
    Ended,
}

shared! {
    /// Stores runs so that another process can resume them, and ensures that only one process does.
    ///
    /// The process that drives a run specifies the fence of its claim with each write. It fails with [`StoreError::Stale`] if there is a newer claim, or if the run was suspended.
    /// Acknowledged writes are durable. A write that can never succeed, because the store can't
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
    ///
    /// All times are those of the store's clock, since the clocks of processes differ. A lease begins
    /// when the store handles the request; its owner measures it from before the request, and so never
    /// assumes that it lasts longer. A lease of more than 100 years lasts for 100 years.
    pub trait RunStore: Send + Sync + 'static {
        /// Stores a new run with all turns of `change`, which a request with the run id `client_id` has
        /// started, and claims it for the time `lease`. Returns the fence.
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
            lease: Duration,
        ) -> StoreFuture<u64>;

        /// Returns whether a run that was started by a request with the run id `client_id` in this
        /// conversation is live. A run is live unless it waits for replies or has ended: it may be
        /// driven, abandoned, or quarantined.
        fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool>;

        /// Returns a run.
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`].
        fn get(&self, key: RunKey) -> StoreFuture<RunRecord>;

        /// Claims the run of `record`, which waits for replies or is abandoned, if it was not written
        /// since the record was read. Stores `replies` with it. Returns the record with its new fence.
        ///
        /// The turns are not read again, so the cost does not depend on the length of the conversation.
        /// After [`amend`](Self::amend), the caller sets the state and the version of the record.
        ///
        /// Replies that are stored from an earlier claim, whose owner crashed, were accepted and are
        /// not replaced; of `replies`, only those to other interrupts are added. The returned record
        /// contains all stored replies.
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`]; [`StoreError::Taken`] if the run was claimed or written in the
        /// meantime, [`StoreError::Ended`] if it has ended, [`StoreError::Quarantined`].
        fn claim(
            &self,
            record: RunRecord,
            replies: Vec<Reply>,
            lease: Duration,
        ) -> StoreFuture<RunRecord>;

        /// Claims at most `limit` abandoned runs, of all tenants, those first whose leases expired
        /// first, and returns them with their new fences. Concurrent calls return different runs.
        ///
        /// A run that has been taken over [`MAX_TAKEOVERS`] times is quarantined instead. A run that
        /// can't be read is logged, and keeps the claim, so that it is not read again at once.
        fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>>;

        /// Changes the state of a run that could be [claimed](Self::claim), if it was not written since
        /// `version`. Returns the new version. All other fields are unchanged.
        ///
        /// # Errors
        ///
        /// Those of [`claim`](Self::claim).
        fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64>;

        /// Changes the state of a run, deletes its stored replies, which the state contains, and extends
        /// its lease.
        fn save(
            &self,
            key: RunKey,
            fence: u64,
            change: RunChange,
            lease: Duration,
        ) -> StoreFuture<()>;

        /// Extends the lease of a run to the time `lease` from now on; with zero, gives up the claim, so
        /// that the run is abandoned.
        /// Returns whether its [cancellation](Self::cancel) was requested.
        fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed>;

        /// Asks the process that drives a run to cancel it, which it does after its next
        /// [renewal](Self::renew). Returns whether the run is driven or abandoned: the request is kept
        /// for a process that takes the run over.
        fn cancel(&self, key: RunKey) -> StoreFuture<bool>;

        /// Changes the state of a run that waits for replies from now on, and gives up the claim.
        ///
        /// # Errors
        ///
        /// [`StoreError::TooManyWaiting`] if the run has not waited before, and the conversation or the
        /// tenant has reached its limit of runs that wait, or have waited and not ended. Then nothing
        /// is stored.
        fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()>;

        /// Records that the run has ended, and how: with an outcome, or with an error of this kind.
        ///
        /// Repeated calls succeed, and the run keeps its first outcome. The outcome is kept as long as the run. A
        /// run that the store ends, because it was not resumed in time, is
        /// [aborted](Outcome::Aborted) with the reason `expired`.
        ///
        /// ```
        /// use concentric_core::{ErrorKind, Outcome, store::{RunClaim, RunStore, StoreError}};
        ///
        /// async fn fail(store: &impl RunStore, run: RunClaim) -> Result<(), StoreError> {
        ///     store.end(run.key.clone(), run.fence, Err(ErrorKind::Timeout)).await?;
        ///     let ended = store.get(run.key).await?;
        ///     assert_eq!(ended.outcome, Some(Err(ErrorKind::Timeout)));
        ///     Ok(())
        /// }
        /// ```
        fn end(
            &self,
            key: RunKey,
            fence: u64,
            outcome: Result<Outcome, ErrorKind>,
        ) -> StoreFuture<()>;

        /// Ends all runs of a conversation that wait for replies, atomically, as aborted by the
        /// [user](concentric_proto::CancelReason::User). Returns the number of ended runs. A claimed run is not
        /// ended; a concurrent claim comes before or after.
        fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize>;

        /// Makes a quarantined run abandoned, so that it can be claimed again. Returns whether it was
        /// quarantined.
        fn release(&self, key: RunKey) -> StoreFuture<bool>;

        /// Removes expired entries, as far as the store does not remove them by itself. If the future is
        /// dropped, only some of them are removed.
        fn purge(&self) -> StoreFuture<()>;

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

        /// Returns the run that a request with the run id `client_id` has started in this conversation. Of
        /// several, the [live](Self::is_live) one, or else the newest, ended or not. The state is not loaded.
        ///
        /// # Errors
        ///
        /// [`StoreError::NotFound`].
        fn find_by_client_id(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            client_id: RunId,
        ) -> StoreFuture<RunSummary>;

        /// Returns at most `limit` runs of a conversation that have not ended: first those that wait
        /// for replies, oldest first, then the others, by the end of their leases. With a `message`,
        /// returns only runs whose open round belongs to this message. States are not loaded.
        fn list_by_thread(
            &self,
            tenant: Tenant,
            thread: ThreadId,
            message: Option<MessageId>,
            limit: usize,
        ) -> StoreFuture<Vec<RunSummary>>;

        /// Returns at most `limit` runs of a tenant that wait for replies, of all conversations, those first
        /// that have waited longest. States are not loaded.
        fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>>;
    }
}

/// The result of a [renewal](RunStore::renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Renewed {
    /// The lease was extended.
    Held,
    /// The lease was extended, and the [cancellation](RunStore::cancel) of the run was requested.
    CancelRequested,
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
