mod find;
mod migrate;
mod purge;
mod row;
mod write;

pub(super) use self::{
    migrate::{fill_messages, split_states},
    purge::purge,
    row::standing_of,
    write::renew,
};

use self::write::Next;
use super::{SqliteStore, worker::Renewal};
use crate::Fault;
use concentric_core::{
    InterruptId, MessageId, Reply, RunId, ThreadId,
    store::{RunChange, RunKey, RunRecord, RunStore, RunSummary, StoreFuture, Tenant},
};
use std::time::SystemTime;
use tokio::sync::oneshot;

impl RunStore for SqliteStore {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease_until: SystemTime,
    ) -> StoreFuture<u64> {
        self.write(move |tx, options| {
            write::begin(tx, options, &key, &client_id, &change, lease_until)
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
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        lease_until: SystemTime,
    ) -> StoreFuture<RunRecord> {
        self.write(move |tx, options| {
            write::claim(tx, options, &key, version, replies, now, lease_until)
        })
    }

    fn amend(
        &self,
        key: RunKey,
        version: u64,
        change: RunChange,
        now: SystemTime,
    ) -> StoreFuture<u64> {
        self.write(move |tx, options| write::amend(tx, options, &key, version, &change, now))
    }

    fn save(
        &self,
        key: RunKey,
        fence: u64,
        change: RunChange,
        lease_until: SystemTime,
    ) -> StoreFuture<()> {
        self.write(move |tx, options| {
            write::write(tx, options, &key, fence, &change, Next::Runs(lease_until))
        })
    }

    fn renew(&self, key: RunKey, fence: u64, lease_until: SystemTime) -> StoreFuture<()> {
        let Some(renewer) = self.renewer.clone() else {
            return self.write(move |tx, _| write::renew(tx, &key, fence, lease_until));
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
        change: RunChange,
        now: SystemTime,
    ) -> StoreFuture<()> {
        self.write(move |tx, options| {
            write::write(tx, options, &key, fence, &change, Next::Waits(now))
        })
    }

    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()> {
        self.write(move |tx, options| write::end(tx, options, &key, fence, now))
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize> {
        self.write(move |tx, options| write::withdraw(tx, options, &tenant, &thread, now))
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

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        self.read(move |tx, _| find::list_by_thread(tx, &tenant, &thread, message.as_ref(), limit))
    }

    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>> {
        self.read(move |tx, options| find::abandoned(tx, options, now, limit))
    }
}
