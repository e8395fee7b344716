//! A store of conversations for tests.

use concentric_core::{
    ThreadId,
    store::{
        StoreError, StoreFuture, StoredThread, Tenant, ThreadChange, ThreadStore, ThreadSummary,
    },
};
use concentric_test::MemoryStore;
use futures_util::FutureExt;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

/// A store that may be slow, and fails on demand.
#[derive(Clone, Default)]
pub(crate) struct Threads {
    kept: MemoryStore,
    slow: bool,
    fails: Arc<Mutex<u32>>,
    hangs: Arc<AtomicBool>,
}

impl Threads {
    pub(crate) fn new(slow: bool) -> Self {
        Self {
            slow,
            ..Self::default()
        }
    }

    pub(crate) fn fail_next(&self) {
        *self.fails.lock().unwrap() += 1;
    }

    /// Makes later operations take effect without an answer.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::Relaxed);
    }

    pub(crate) fn heal(&self) {
        self.hangs.store(false, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, thread: &str) -> Option<StoredThread> {
        let load = self.kept.load(Tenant::default(), ThreadId::new(thread));
        load.now_or_never().unwrap().unwrap()
    }

    fn at_pace<T: Send + 'static>(&self, work: StoreFuture<T>) -> StoreFuture<T> {
        let (slow, fails, hangs) = (self.slow, Arc::clone(&self.fails), Arc::clone(&self.hangs));
        Box::pin(async move {
            if slow {
                tokio::task::yield_now().await;
            }
            let failures = std::mem::take(&mut *fails.lock().unwrap());
            match failures {
                0 if hangs.load(Ordering::Relaxed) => {
                    drop(work.await);
                    std::future::pending().await
                }
                0 => work.await,
                _ => Err(StoreError::failed("the disk is full")),
            }
        })
    }
}

impl ThreadStore for Threads {
    fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>> {
        self.at_pace(self.kept.load(tenant, thread))
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        self.at_pace(self.kept.append(tenant, thread, version, change))
    }

    fn fork(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        to: ThreadId,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        self.at_pace(self.kept.fork(tenant, thread, version, to, change))
    }

    fn list_threads(
        &self,
        tenant: Tenant,
        after: Option<ThreadId>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        self.at_pace(self.kept.list_threads(tenant, after, limit))
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        self.at_pace(self.kept.delete(tenant, thread))
    }
}
