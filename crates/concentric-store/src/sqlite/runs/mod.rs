mod find;
mod migrate;
mod purge;
mod row;
mod write;

pub(super) use self::{
    migrate::{fill_messages, split_states},
    purge::{BATCH, delete_runs, is_deleted},
    row::standing_of,
    write::{renew, set_end},
};

use self::write::{NewHead, NewState, Next};
use super::{SqliteStore, log::NewTurns, worker::Renewal};
use crate::{Fault, rules::write_outcome};
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, ThreadId,
    store::{
        Renewed, RunChange, RunKey, RunRecord, RunStore, RunSummary, StoreError, StoreFuture,
        Tenant,
    },
};
use std::{sync::Arc, time::Duration};
use tokio::sync::oneshot;

impl SqliteStore {
    /// Makes what a change of a run writes.
    async fn new_state(&self, key: &RunKey, change: RunChange) -> Result<NewState, StoreError> {
        let (keep, of) = (change.keep, key.clone());
        let turns = self.new_turns(&change.turns, keep, move |tx| {
            row::turns_of(tx, &of)?.chain_of(tx, keep)
        });
        let (turns, head) = (turns.await?, NewHead::new(key, &change.head)?);
        Ok(NewState { keep, turns, head })
    }
}

impl RunStore for SqliteStore {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            let max = store.options.max_state_bytes;
            let mut turns = NewTurns::new(&change.turns, max).await?;
            turns.begin().await;
            let (keep, head) = (change.keep, NewHead::new(&key, &change.head)?);
            let new = NewState { keep, turns, head };
            let begun = store
                .write(move |tx, options| write::begin(tx, options, &key, &client_id, &new, lease));
            begun.await
        })
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        self.read(move |tx, _| find::is_live(tx, &tenant, &thread, &client_id))
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        self.read(move |tx, options| find::get(tx, options, &key))
    }

    fn claim(
        &self,
        record: RunRecord,
        replies: Vec<Reply>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        self.write(move |tx, options| write::claim(tx, options, record, replies, lease))
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let store = self.clone();
        Box::pin(async move {
            let abandoned = store.read(move |tx, options| find::abandoned(tx, options, limit));
            let abandoned = abandoned.await?;
            if abandoned.is_empty() {
                return Ok(Vec::new());
            }
            let claims = store
                .write(move |tx, options| write::claim_abandoned(tx, options, abandoned, lease))
                .await?;
            let mut claimed = Vec::new();
            // The states are read without the lock of a writer, and one by one, since one of them may be unreadable.
            for (at, (key, fence)) in claims.iter().enumerate() {
                let (key, fence) = (key.clone(), *fence);
                let read = store.read(move |tx, options| find::claimed(tx, options, &key, fence));
                match read.await {
                    Ok(record) => claimed.extend(record),
                    Err(error) => {
                        let unread = claims.get(at..).unwrap_or_default().to_vec();
                        let back =
                            store.write(move |tx, options| write::give_back(tx, options, &unread));
                        if let Err(error) = back.await {
                            tracing::warn!(%error, "abandoned runs stay claimed until their leases end");
                        }
                        return match claimed.is_empty() {
                            true => Err(error),
                            false => Ok(claimed),
                        };
                    }
                }
            }
            Ok(claimed)
        })
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            let new = store.new_state(&key, change).await?;
            let amended =
                store.write(move |tx, options| write::amend(tx, options, &key, version, &new));
            amended.await
        })
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            let new = store.new_state(&key, change).await?;
            let saved = store.write(move |tx, options| {
                write::write(tx, options, &key, fence, &new, Next::Runs(lease))
            });
            saved.await
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        let Some(renewer) = self.renewer.clone() else {
            return self.write(move |tx, options| write::renew(tx, options, &key, fence, lease));
        };
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let renewal = Renewal {
                key,
                fence,
                lease,
                reply,
            };
            renewer.send(renewal).await.map_err(|_| Fault::Closed)?;
            answer.await.map_err(|_| Fault::Panicked)?
        })
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        self.write(move |tx, _| write::cancel(tx, &key))
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            let new = Arc::new(store.new_state(&key, change).await?);
            let suspend = || {
                let (key, new) = (key.clone(), Arc::clone(&new));
                store.write(move |tx, options| {
                    write::write(tx, options, &key, fence, &new, Next::Waits)
                })
            };
            match suspend().await {
                Err(StoreError::TooManyWaiting { .. }) => {}
                done => return done,
            }
            // Some may be overdue. They stay removed if the run may not wait even then.
            let purged = store.write(|tx, options| purge::purge(tx, options, options.now()));
            purged.await?;
            suspend().await
        })
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        self.write(move |tx, options| {
            write::end(tx, options, &key, fence, &write_outcome(&outcome)?)
        })
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        self.write(move |tx, options| write::withdraw(tx, options, &tenant, &thread))
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        self.write(move |tx, options| write::release(tx, options, &key))
    }

    fn purge(&self) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            // Each transaction removes at most a hundred entries of each kind, so that other writers can
            // run in between.
            let part = || store.write(|tx, options| purge::purge(tx, options, options.now()));
            while part().await? {}
            Ok(())
        })
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        self.read(move |tx, options| {
            find::find_by_interrupt(tx, options, tenant, thread, &questions)
        })
    }

    fn find_by_client_id(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        client_id: RunId,
    ) -> StoreFuture<RunSummary> {
        self.read(move |tx, options| {
            find::find_by_client_id(tx, &tenant, &thread, &client_id, options.now())
        })
    }

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        self.read(move |tx, options| {
            let now = options.now();
            find::list_by_thread(tx, &tenant, &thread, message.as_ref(), limit, now)
        })
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        self.read(move |tx, options| find::list_waiting(tx, &tenant, limit, options.now()))
    }
}
