//! The common parts of caches.

mod store;

pub(crate) use self::store::SharedStore;

use concentric_core::{
    Context, Error, RunId, ThreadId,
    digest::Digest,
    panic::catch,
    store::{CacheKey, Tenant},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// How long a call waits for the store by default.
const STORE_WAIT: Duration = Duration::from_millis(250);

/// The options of a cache of calls `T`.
#[derive(Clone)]
pub(crate) struct CacheOptions<T> {
    pub(crate) scope: CacheScope,
    pub(crate) ttl: Duration,
    pub(crate) max_bytes: usize,
    pub(crate) key: Option<Arc<KeyFn<T>>>,
    pub(crate) store: Option<Arc<SharedStore>>,
    pub(crate) store_wait: Duration,
    pub(crate) needs_store: bool,
}

type KeyFn<T> = dyn Fn(&T) -> Option<Value> + Send + Sync;

impl<T> CacheOptions<T> {
    pub(crate) const fn new(scope: CacheScope, ttl: Duration, max_bytes: usize) -> Self {
        Self {
            scope,
            ttl,
            max_bytes,
            key: None,
            store: None,
            store_wait: STORE_WAIT,
            needs_store: false,
        }
    }

    /// Looks a result up in the store, and returns it with its age. A failure of the store is a miss, unless the
    /// store is required.
    pub(crate) async fn find<R>(
        &self,
        key: impl FnOnce(&SharedStore) -> CacheKey,
        context: &Context,
        read: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Result<Option<(R, Duration)>, Error> {
        let Some(store) = &self.store else {
            return Ok(None);
        };
        let found = store
            .get(key(store), self.store_wait, context.environment(), read)
            .await;
        match found {
            Ok(found) => Ok(found.filter(|(_, age)| *age < self.ttl)),
            Err(error) if self.needs_store => Err(error),
            Err(error) => {
                let code = error.code();
                tracing::warn!(target: "concentric::cache", code, "the store failed, and counts as empty");
                Ok(None)
            }
        }
    }

    /// Writes a result to the store, if there is one.
    pub(crate) fn store(
        &self,
        key: impl FnOnce(&SharedStore) -> CacheKey,
        context: &Context,
        value: impl FnOnce() -> Option<Vec<u8>> + Send + 'static,
    ) {
        if let Some(store) = &self.store {
            store.put(key(store), self.ttl, context.environment(), value);
        }
    }

    /// The digest by which a call is compared: that of the host's key, or else its `own`. `None` if the call is not
    /// cached.
    pub(crate) fn key(&self, call: &T, own: impl FnOnce() -> Option<Digest>) -> Option<Digest> {
        let Some(key) = &self.key else {
            return own();
        };
        let key = catch(|| key(call)).unwrap_or_else(|panic| {
            let panic = panic.text();
            tracing::warn!(target: "concentric::cache", panic, "the key of a call panicked");
            None
        });
        key.map(|key| Digest::of_value(&key))
    }
}

/// The calls that share results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheScope {
    /// Calls of one run.
    Run,
    /// Calls of one conversation of a tenant. Runs without a thread id are not cached.
    Thread,
    /// Calls of one [`Tenant`](concentric_core::store::Tenant). Runs without a tenant are not cached, so that a
    /// missing authentication does not share results among all users.
    Tenant,
    /// All calls. Only for results that do not depend on the caller.
    Shared,
}

/// The owner of results: those of others are not used.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    // The id of a run may come from a client, and repeat in another conversation.
    Run(Tenant, Option<ThreadId>, RunId),
    Thread(Tenant, ThreadId),
    Tenant(Tenant),
    Shared,
}

impl CacheScope {
    /// The owner of the results of a call; `None` if the call is outside the scope.
    pub(crate) fn owner(self, context: &Context) -> Option<Owner> {
        Some(match self {
            Self::Run => {
                let thread = context.thread_id().cloned();
                Owner::Run(Tenant::of(context), thread, context.run_id().clone())
            }
            Self::Thread => Owner::Thread(Tenant::of(context), context.thread_id()?.clone()),
            Self::Tenant => {
                let tenant = Tenant::of(context);
                (tenant != Tenant::default()).then_some(Owner::Tenant(tenant))?
            }
            Self::Shared => Owner::Shared,
        })
    }
}
