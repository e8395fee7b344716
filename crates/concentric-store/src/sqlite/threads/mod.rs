mod row;
mod write;

pub(super) use self::row::conversation_turns;

use self::write::NewChange;
use super::SqliteStore;
use concentric_core::{
    ThreadId, Turn,
    store::{
        StoreError, StoreFuture, StoredThread, Tenant, ThreadChange, ThreadStore, ThreadSummary,
    },
};

impl SqliteStore {
    /// Makes what a change of this conversation, or of a fork of it, writes.
    async fn new_change(
        &self,
        tenant: &Tenant,
        thread: &ThreadId,
        change: ThreadChange,
    ) -> Result<NewChange, StoreError> {
        let (keep, of) = (change.keep, (tenant.clone(), thread.clone()));
        let turns = self.new_turns(&change.turns, keep, move |tx| {
            let turns = row::conversation_turns(tx, &of.0, &of.1)?;
            turns.ok_or(StoreError::NotFound)?.chain_of(tx, keep)
        });
        let turns = turns.await?;
        NewChange::new(change, turns, self.options.max_state_bytes)
    }
}

impl ThreadStore for SqliteStore {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        self.read(move |tx, options| row::load(tx, options, &tenant, &thread))
    }

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        self.read(move |tx, _| row::turns(tx, &tenant, thread, start, limit))
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            let change = store.new_change(&tenant, &thread, change).await?;
            let appended = store.write(move |tx, options| {
                write::append(tx, options, &tenant, &thread, version, &change)
            });
            appended.await
        })
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            let change = store.new_change(&tenant, &thread, change).await?;
            let forked = store.write(move |tx, options| {
                write::fork(tx, options, &tenant, &thread, version, &to, &change)
            });
            forked.await
        })
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        self.read(move |tx, _| row::list(tx, &tenant, before, limit))
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        let store = self.clone();
        Box::pin(async move {
            let mut existed = false;
            loop {
                let (tenant, thread) = (tenant.clone(), thread.clone());
                let deleted =
                    store.write(move |tx, options| write::delete(tx, options, &tenant, &thread));
                let (did_exist, has_more) = deleted.await?;
                existed |= did_exist;
                if !has_more {
                    return Ok(existed);
                }
            }
        })
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        let store = self.clone();
        Box::pin(async move {
            let mut all = 0;
            loop {
                let tenant = tenant.clone();
                let deleted =
                    store.write(move |tx, options| write::delete_some(tx, options, &tenant));
                let (deleted, may_have_more) = deleted.await?;
                all += deleted;
                if !may_have_more {
                    return Ok(all);
                }
            }
        })
    }
}
