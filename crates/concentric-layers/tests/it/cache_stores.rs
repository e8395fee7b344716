//! A store for tests of caches, whose behaviour can be changed.

use concentric_core::{
    Str, ThreadId,
    digest::Digest,
    store::{CacheEntry, CacheKey, CacheStore, StoreError, StoreFuture, Tenant},
};
use concentric_store::{MemoryStore, Options};
use concentric_test::TestEnvironment;
use futures_util::future::pending;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

type Change = dyn Fn(&CacheKey, Vec<u8>) -> Vec<u8> + Send + Sync;

/// The behaviour of a store from now on.
#[derive(Clone)]
pub(crate) enum Behaviour {
    Works,
    Fails,
    Hangs,
    PanicsWhenCalled,
    PanicsWhenPolled,
    /// Returns other values.
    Changes(Arc<Change>),
}

pub(crate) fn changes(
    change: impl Fn(&CacheKey, Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
) -> Behaviour {
    Behaviour::Changes(Arc::new(change))
}

#[derive(Clone)]
pub(crate) struct TestStore {
    inner: Arc<dyn CacheStore>,
    behaviour: Arc<Mutex<Behaviour>>,
    counts: Arc<[AtomicUsize; 3]>,
}

impl TestStore {
    pub(crate) fn new(env: &TestEnvironment) -> Self {
        let options = Options::new().clock(env.clock().clone());
        Self::over(MemoryStore::with_options(options))
    }

    pub(crate) fn over(store: impl CacheStore) -> Self {
        Self {
            inner: Arc::new(store),
            behaviour: Arc::new(Mutex::new(Behaviour::Works)),
            counts: Arc::default(),
        }
    }

    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn count(&self, of: usize) -> usize {
        self.counts[of].load(Ordering::Relaxed)
    }

    /// The number of lookups.
    pub(crate) fn gets(&self) -> usize {
        self.count(0)
    }

    /// The number of writes that have begun.
    pub(crate) fn puts(&self) -> usize {
        self.count(1)
    }

    /// Waits for `writes` in all to be done.
    pub(crate) async fn written(&self, writes: usize) {
        while self.count(2) < writes {
            tokio::task::yield_now().await;
        }
    }

    fn begin<T: Send + 'static>(&self, of: usize) -> Result<Behaviour, StoreFuture<T>> {
        self.counts[of].fetch_add(1, Ordering::Relaxed);
        let behaviour = self.behaviour.lock().unwrap().clone();
        match behaviour {
            Behaviour::Fails => Err(Box::pin(async { Err(StoreError::failed("broken")) })),
            Behaviour::Hangs => Err(Box::pin(pending())),
            Behaviour::PanicsWhenCalled => panic!("by the store"),
            Behaviour::PanicsWhenPolled => Err(Box::pin(async { panic!("by the store") })),
            other => Ok(other),
        }
    }
}

impl CacheStore for TestStore {
    fn get_entry(&self, key: CacheKey) -> StoreFuture<Option<CacheEntry>> {
        let behaviour = match self.begin(0) {
            Ok(behaviour) => behaviour,
            Err(future) => return future,
        };
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let found = inner.get_entry(key.clone()).await?;
            Ok(found.map(|entry| match behaviour {
                Behaviour::Changes(change) => CacheEntry::new(change(&key, entry.value), entry.age),
                _ => entry,
            }))
        })
    }

    fn put_entry(&self, key: CacheKey, value: Vec<u8>, keep: Duration) -> StoreFuture<()> {
        if let Err(future) = self.begin(1) {
            return future;
        }
        let (inner, counts) = (Arc::clone(&self.inner), Arc::clone(&self.counts));
        Box::pin(async move {
            inner.put_entry(key, value, keep).await?;
            counts[2].fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    fn remove_entries(
        &self,
        tenant: Tenant,
        thread: Option<ThreadId>,
        space: Option<Str>,
    ) -> StoreFuture<u64> {
        self.inner.remove_entries(tenant, thread, space)
    }
}

/// The stored form of a value, with its checksum.
pub(crate) fn sealed(key: &CacheKey, value: &[u8]) -> Vec<u8> {
    let thread = key.thread.as_ref().map_or("", ThreadId::as_str);
    let parts = [
        key.tenant.0.as_bytes(),
        thread.as_bytes(),
        key.space.as_bytes(),
        &key.digest,
        value,
    ];
    let sum = Digest::of_fields("concentric/cached/1", &parts);
    [&[1], sum.as_bytes().as_slice(), value].concat()
}

/// Changes of a stored value that its check finds.
pub(crate) fn damages() -> Vec<Behaviour> {
    fn at(at: usize) -> Behaviour {
        changes(move |_, mut value| {
            let at = at.min(value.len() - 1);
            value[at] ^= 1;
            value
        })
    }
    let mut all = vec![
        changes(|_, _| Vec::new()),
        changes(|_, _| vec![0; 4 << 20]),
        changes(|_, _| b"garbage".to_vec()),
        changes(|_, value| value[1..].to_vec()),
        changes(|_, value| [value.clone(), value].concat()),
        changes(|_, value| [&value[..], b" "].concat()),
        // Of another key.
        changes(|key, value| {
            let mut other = key.clone();
            other.digest[0] ^= 1;
            sealed(&other, &value[33..])
        }),
    ];
    // An older version, the checksum, the value and its end.
    all.extend([0, 1, 32, 33, usize::MAX].map(at));
    all.extend([0, 1, 2, 33, 34].map(|len| changes(move |_, value| value[..len].to_vec())));
    all.push(changes(|_, value| value[..value.len() - 1].to_vec()));
    all
}
