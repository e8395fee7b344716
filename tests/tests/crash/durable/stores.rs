//! The store, with points before and after whatever it makes durable.

use super::{
    points::Points,
    world::{Entry, World, call_of},
};
use concentric_core::{
    InterruptId, MessageId, Reply, RunId, Str, ThreadId, ToolOutcome,
    store::{
        EffectKey, Intent, Ledger, LedgerEntry, Once, RunChange, RunKey, RunRecord, RunStore,
        RunSummary, StoreFuture, Tenant,
    },
};
use concentric_store::SqliteStore;
use std::time::SystemTime;

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

impl RunStore for Pointed {
    fn begin(
        &self,
        key: RunKey,
        client_id: RunId,
        change: RunChange,
        until: SystemTime,
    ) -> StoreFuture<u64> {
        let work = RunStore::begin(&self.inner, key, client_id, change, until);
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
        key: RunKey,
        version: u64,
        replies: Vec<Reply>,
        now: SystemTime,
        until: SystemTime,
    ) -> StoreFuture<RunRecord> {
        let work = self.inner.claim(key, version, replies, now, until);
        self.noting(self.at("claim".into(), work), |record| {
            let ids = record.replies.iter().map(|r| r.interrupt_id.to_string());
            let ids: Vec<_> = ids.collect();
            (!ids.is_empty()).then_some(Entry::Accepted(ids))
        })
    }

    fn amend(
        &self,
        key: RunKey,
        version: u64,
        change: RunChange,
        now: SystemTime,
    ) -> StoreFuture<u64> {
        self.at("amend".into(), self.inner.amend(key, version, change, now))
    }

    fn save(
        &self,
        key: RunKey,
        fence: u64,
        change: RunChange,
        until: SystemTime,
    ) -> StoreFuture<()> {
        let work = self.inner.save(key, fence, change, until);
        self.noting(self.at("save".into(), work), |()| Some(Entry::Checkpointed))
    }

    fn renew(&self, key: RunKey, fence: u64, until: SystemTime) -> StoreFuture<()> {
        self.at("renew".into(), self.inner.renew(key, fence, until))
    }

    fn suspend(
        &self,
        key: RunKey,
        fence: u64,
        change: RunChange,
        now: SystemTime,
    ) -> StoreFuture<()> {
        let work = self.inner.suspend(key, fence, change, now);
        self.at("suspend".into(), work)
    }

    fn end(&self, key: RunKey, fence: u64, now: SystemTime) -> StoreFuture<()> {
        self.at("end".into(), self.inner.end(key, fence, now))
    }

    fn withdraw(&self, tenant: Tenant, thread: ThreadId, now: SystemTime) -> StoreFuture<usize> {
        self.at("withdraw".into(), self.inner.withdraw(tenant, thread, now))
    }

    fn find_by_interrupt(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        questions: Vec<InterruptId>,
    ) -> StoreFuture<RunRecord> {
        self.inner.find_by_interrupt(tenant, thread, questions)
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

    fn abandoned(&self, now: SystemTime, limit: usize) -> StoreFuture<Vec<RunRecord>> {
        self.inner.abandoned(now, limit)
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
    fn once(&self, tenant: Tenant, key: Str, until: SystemTime) -> StoreFuture<bool> {
        let name = match key.as_str().starts_with("token:") {
            true => "once.token".to_owned(),
            false => format!("once.{}", call_of(&key)),
        };
        self.at(name, self.inner.once(tenant, key, until))
    }
}
