//! A store of conversations for tests.

use concentric_core::{
    ThreadId, Turn,
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
    // The operations before the process dies, and whether the next one takes effect.
    life: Arc<Mutex<Option<(usize, bool)>>>,
    // The numbers of turns of the changes.
    appended: Arc<Mutex<Vec<usize>>>,
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

    /// Ends the process after some operations. The next one may take effect; no later one does, and none is answered.
    pub(crate) fn die_after(&self, operations: usize, is_applied: bool) {
        *self.life.lock().unwrap() = Some((operations, is_applied));
    }

    /// The store in a process that begins now.
    pub(crate) fn restart(&self) -> Self {
        Self {
            kept: self.kept.clone(),
            ..Self::default()
        }
    }

    pub(crate) fn appended(&self) -> Vec<usize> {
        self.appended.lock().unwrap().clone()
    }

    pub(crate) fn get(&self, thread: &str) -> Option<StoredThread> {
        let load = self.kept.load(Tenant::default(), ThreadId::new(thread));
        load.now_or_never().unwrap().unwrap()
    }

    fn at_pace<T: Send + 'static>(&self, work: StoreFuture<T>) -> StoreFuture<T> {
        let (slow, fails, hangs) = (self.slow, Arc::clone(&self.fails), Arc::clone(&self.hangs));
        let life = Arc::clone(&self.life);
        Box::pin(async move {
            if slow {
                tokio::task::yield_now().await;
            }
            let last = match &mut *life.lock().unwrap() {
                Some((0, is_applied)) => Some(std::mem::take(is_applied)),
                Some((left, _)) => {
                    *left -= 1;
                    None
                }
                None => None,
            };
            if let Some(is_applied) = last {
                if is_applied {
                    drop(work.await);
                }
                return std::future::pending().await;
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

    fn turns(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        start: Option<usize>,
        limit: usize,
    ) -> StoreFuture<Option<(ThreadSummary, Vec<Turn>)>> {
        self.at_pace(self.kept.turns(tenant, thread, start, limit))
    }

    fn append(
        &self,
        tenant: Tenant,
        thread: ThreadId,
        version: u64,
        change: ThreadChange,
    ) -> StoreFuture<u64> {
        self.appended.lock().unwrap().push(change.turns.len());
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
        before: Option<u64>,
        limit: usize,
    ) -> StoreFuture<Vec<ThreadSummary>> {
        self.at_pace(self.kept.list_threads(tenant, before, limit))
    }

    fn delete(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<bool> {
        self.at_pace(self.kept.delete(tenant, thread))
    }

    fn delete_tenant(&self, tenant: Tenant) -> StoreFuture<u64> {
        self.at_pace(self.kept.delete_tenant(tenant))
    }
}
