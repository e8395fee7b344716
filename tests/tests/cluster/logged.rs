//! The store of a worker, which records the runs that it begins, claims, suspends and ends.

use super::history::{Recorder, What};
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, ThreadId,
    store::{
        Renewed, RunChange, RunKey, RunRecord, RunStore, RunSummary, StoreError, StoreFuture,
        Tenant,
    },
};
use concentric_store::PostgresStore;
use std::time::Duration;

#[derive(Clone)]
pub struct Logged {
    pub inner: PostgresStore,
    pub recorder: Recorder,
}

impl Logged {
    fn noting<T: Send + 'static>(
        &self,
        work: StoreFuture<T>,
        what: impl FnOnce(&T) -> Vec<What> + Send + 'static,
    ) -> StoreFuture<T> {
        let recorder = self.recorder.clone();
        Box::pin(async move {
            let done: Result<T, StoreError> = work.await;
            for what in done.as_ref().map(what).unwrap_or_default() {
                recorder.note(what);
            }
            done
        })
    }
}

fn claimed(record: &RunRecord, is_abandoned: bool) -> What {
    // Accepted since the last write of the state, or before.
    let replies = record.replies.iter().chain(record.state.replies());
    let replies = replies.map(|reply| {
        let answer = serde_json::to_string(reply).unwrap();
        (reply.interrupt_id.to_string(), answer)
    });
    What::Claimed {
        run: record.key.run.to_string(),
        client: record.client_id.to_string(),
        fence: record.fence,
        is_abandoned,
        replies: replies.collect(),
    }
}

impl RunStore for Logged {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let (run, client) = (key.run.to_string(), client_id.to_string());
        let work = RunStore::begin(&self.inner, key, client_id, change, lease);
        self.noting(work, |fence| {
            let fence = *fence;
            vec![What::Begun { run, client, fence }]
        })
    }

    fn is_live(&self, tenant: Tenant, thread: ThreadId, client_id: RunId) -> StoreFuture<bool> {
        self.inner.is_live(tenant, thread, client_id)
    }

    fn get(&self, key: RunKey) -> StoreFuture<RunRecord> {
        self.inner.get(key)
    }

    fn claim(
        &self,
        record: RunRecord,
        replies: Vec<Reply>,
        lease: Duration,
    ) -> StoreFuture<RunRecord> {
        let work = self.inner.claim(record, replies, lease);
        self.noting(work, |record| vec![claimed(record, false)])
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let work = self.inner.claim_abandoned(limit, lease);
        self.noting(work, |records| {
            records.iter().map(|record| claimed(record, true)).collect()
        })
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        self.inner.amend(key, version, change)
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        self.inner.save(key, fence, change, lease)
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        self.inner.renew(key, fence, lease)
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        self.inner.cancel(key)
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        let run = key.run.to_string();
        let work = self.inner.suspend(key, fence, change);
        self.noting(work, move |()| vec![What::Suspended { run, fence }])
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        let run = key.run.to_string();
        let work = self.inner.end(key, fence, outcome);
        self.noting(work, move |()| vec![What::Ended { run, fence }])
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        self.inner.withdraw(tenant, thread)
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        self.inner.release(key)
    }

    fn purge(&self) -> StoreFuture<()> {
        self.inner.purge()
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        self.inner.find_by_interrupt(tenant, thread, questions)
    }

    fn find_by_client_id(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        client_id: RunId,
    ) -> StoreFuture<RunSummary> {
        self.inner.find_by_client_id(tenant, thread, client_id)
    }

    fn list_by_thread(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        message: Option<MessageId>,
        limit: usize,
    ) -> StoreFuture<Vec<RunSummary>> {
        self.inner.list_by_thread(tenant, thread, message, limit)
    }

    fn list_waiting(&self, tenant: Tenant, limit: usize) -> StoreFuture<Vec<RunSummary>> {
        self.inner.list_waiting(tenant, limit)
    }
}
