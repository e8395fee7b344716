//! The store, with points before and after whatever it makes durable.

use super::{
    points::Points,
    world::{Entry, World, call_of},
};
use concentric_core::{
    ErrorKind, InterruptId, MessageId, Outcome, Reply, RunId, Str, ThreadId, ToolOutcome,
    store::{
        EffectKey, Intent, Ledger, LedgerEntry, Once, Renewed, RunChange, RunKey, RunRecord,
        RunStore, RunSummary, StoreFuture, Tenant,
    },
};
use concentric_store::SqliteStore;
use std::time::Duration;

#[derive(Clone)]
pub struct Pointed {
    pub inner: SqliteStore,
    pub points: Points,
    pub world: World,
}

impl Pointed {
    fn at<T: Send + 'static>(&self, name: String, work: StoreFuture<T>) -> StoreFuture<T> {
        let points = self.points.clone();
        Box::pin(async move {
            points.hit(&format!("{name}:before"));
            let done = work.await;
            points.hit(&format!("{name}:after"));
            done
        })
    }

    fn noting<T: Send + 'static>(
        &self,
        work: StoreFuture<T>,
        entry: impl FnOnce(&T) -> Option<Entry> + Send + 'static,
    ) -> StoreFuture<T> {
        let world = self.world.clone();
        Box::pin(async move {
            let done = work.await?;
            if let Some(entry) = entry(&done) {
                world.log(&entry);
            }
            Ok(done)
        })
    }
}

/// The replies that a claimed run has.
fn accepted(record: &RunRecord) -> Option<Entry> {
    let ids = record.replies.iter().map(|r| r.interrupt_id.to_string());
    let ids: Vec<_> = ids.collect();
    (!ids.is_empty()).then_some(Entry::Accepted(ids))
}

impl RunStore for Pointed {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        lease: Duration,
    ) -> StoreFuture<u64> {
        let work = RunStore::begin(&self.inner, key, client_id, change, lease);
        self.noting(self.at("begin".into(), work), |_| Some(Entry::Checkpointed))
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
        self.noting(self.at("claim".into(), work), accepted)
    }

    fn claim_abandoned(&self, limit: usize, lease: Duration) -> StoreFuture<Vec<RunRecord>> {
        let (work, points) = (
            self.inner.claim_abandoned(limit, lease),
            self.points.clone(),
        );
        // A process that claims nothing comes to no point.
        let claimed = Box::pin(async move {
            let records = work.await;
            if let Ok([_, ..]) = records.as_deref() {
                points.hit("claim:after");
            }
            records
        });
        self.noting(claimed, |records| records.iter().find_map(accepted))
    }

    fn amend(&self, key: RunKey, version: u64, change: RunChange) -> StoreFuture<u64> {
        self.at("amend".into(), self.inner.amend(key, version, change))
    }

    fn save(&self, key: RunKey, fence: u64, change: RunChange, lease: Duration) -> StoreFuture<()> {
        let work = self.inner.save(key, fence, change, lease);
        self.noting(self.at("save".into(), work), |()| Some(Entry::Checkpointed))
    }

    fn renew(&self, key: RunKey, fence: u64, lease: Duration) -> StoreFuture<Renewed> {
        self.at("renew".into(), self.inner.renew(key, fence, lease))
    }

    fn cancel(&self, key: RunKey) -> StoreFuture<bool> {
        self.at("cancel".into(), self.inner.cancel(key))
    }

    fn suspend(&self, key: RunKey, fence: u64, change: RunChange) -> StoreFuture<()> {
        let work = self.inner.suspend(key, fence, change);
        self.at("suspend".into(), work)
    }

    fn end(&self, key: RunKey, fence: u64, outcome: Result<Outcome, ErrorKind>) -> StoreFuture<()> {
        self.at("end".into(), self.inner.end(key, fence, outcome))
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<usize> {
        self.at("withdraw".into(), self.inner.withdraw(tenant, thread))
    }

    fn release(&self, key: RunKey) -> StoreFuture<bool> {
        self.at("release".into(), self.inner.release(key))
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

impl Ledger for Pointed {
    fn begin(&self, key: EffectKey, intent: Intent) -> StoreFuture<LedgerEntry> {
        let name = format!("ledger.begin.{}", call_of(&key.key));
        let work = Ledger::begin(&self.inner, key, intent);
        self.at(name, work)
    }

    fn finish(&self, key: EffectKey, outcome: ToolOutcome) -> StoreFuture<()> {
        let name = format!("ledger.finish.{}", call_of(&key.key));
        self.at(name, self.inner.finish(key, outcome))
    }

    fn known(&self, key: EffectKey) -> StoreFuture<LedgerEntry> {
        let name = format!("ledger.known.{}", call_of(&key.key));
        self.at(name, self.inner.known(key))
    }

    fn retract(&self, key: EffectKey) -> StoreFuture<()> {
        let name = format!("ledger.retract.{}", call_of(&key.key));
        self.at(name, self.inner.retract(key))
    }
}

impl Once for Pointed {
    fn once(&self, tenant: Tenant, key: Str, keep: Duration) -> StoreFuture<bool> {
        let name = match key.as_str().starts_with("token:") {
            true => "once.token".to_owned(),
            false => format!("once.{}", call_of(&key)),
        };
        self.at(name, self.inner.once(tenant, key, keep))
    }
}
