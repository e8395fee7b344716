use super::{ToolCache, key::Key};
use crate::caching::{CacheOptions, CacheScope, SharedStore};
use concentric_core::{Str, ToolCall, ToolOutcome, store::CacheStore};
use moka::{future::Cache, policy::EvictionPolicy};
use serde_json::Value;
use std::{fmt, sync::Arc, time::Duration};
use tower_layer::Layer;

/// [`Layer`] that answers repeated tool calls from earlier results ([`ToolCache`]).
///
/// See the [module docs](super) for an example.
#[derive(Clone)]
pub struct ToolCacheLayer {
    options: Options,
    results: Arc<Cache<Key, Stored>>,
}

#[derive(Clone)]
pub(super) struct Options {
    pub(super) cache: CacheOptions<ToolCall>,
    pub(super) tools: Arc<[Str]>,
}

#[derive(Clone)]
pub(super) struct Stored {
    pub(super) outcome: Arc<ToolOutcome>,
    // When the process received the result, and its age then.
    pub(super) at: Duration,
    pub(super) aged: Duration,
}

impl Stored {
    /// The time since the result was stored.
    pub(super) fn age(&self, now: Duration) -> Duration {
        self.aged.saturating_add(now.saturating_sub(self.at))
    }
}

const ENTRIES: u64 = 1_000;
const TTL: Duration = Duration::from_secs(5 * 60);
const MAX_BYTES: usize = 256 << 10;

impl ToolCacheLayer {
    /// Creates a layer with a cache of its own.
    pub fn new(scope: CacheScope) -> Self {
        Self {
            options: Options {
                cache: CacheOptions::new(scope, TTL, MAX_BYTES),
                tools: Arc::default(),
            },
            results: results(ENTRIES),
        }
    }

    /// Caches the calls of the tools with these names only, also of tools that are not read-only. Names, not
    /// patterns: a tool that is added later is not cached by accident.
    #[must_use]
    pub fn tools<T: Into<Str>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.options.tools = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the maximum number of results. With 0, none is stored, and concurrent calls still share one
    /// execution. The results stored so far are kept by earlier clones only.
    #[must_use]
    pub fn entries(mut self, entries: u64) -> Self {
        self.results = results(entries);
        self
    }

    /// Sets the time for which a result is used. With 0, no result is used by a later call.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.options.cache.ttl = ttl;
        self
    }

    /// Sets the maximum size of a result, its content and its data as JSON; larger ones are not stored.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.options.cache.max_bytes = bytes;
        self
    }

    /// Compares calls of a tool by the result of `key` instead of their arguments. A call for which it
    /// returns `None` is not cached. The scope, the tool and its schema still apply.
    #[must_use]
    pub fn key(mut self, key: impl Fn(&ToolCall) -> Option<Value> + Send + Sync + 'static) -> Self {
        self.options.cache.key = Some(Arc::new(key));
        self
    }

    /// Shares results with other processes: looks in `store` before a call is executed, and writes each
    /// result to it, for the layer's [`ttl`](Self::ttl). The cache of the process is asked first.
    ///
    /// The results of a store outlive the program. `space` names their origin, such as the service that the
    /// tools read: layers with the same space share them. See [its section](super#a-store-for-several-processes).
    #[must_use]
    pub fn store(mut self, store: impl CacheStore, space: impl Into<Str>) -> Self {
        self.options.cache.store = Some(SharedStore::new(store, space.into()));
        self
    }

    /// Sets how long a call waits for the store; 250 milliseconds by default. Then it counts as empty. With zero,
    /// it must respond at once.
    #[must_use]
    pub const fn store_wait(mut self, wait: Duration) -> Self {
        self.options.cache.store_wait = wait;
        self
    }

    /// Sets whether a call fails if the store fails or does not respond in time, with the code `store_failed`. The
    /// default is `false`: the call is made without it.
    #[must_use]
    pub const fn store_required(mut self, is_required: bool) -> Self {
        self.options.cache.needs_store = is_required;
        self
    }

    /// Removes all results from the process; those of a [store](Self::store) remain.
    pub fn clear(&self) {
        self.results.invalidate_all();
    }
}

fn results(entries: u64) -> Arc<Cache<Key, Stored>> {
    let cache = Cache::builder().max_capacity(entries);
    Arc::new(cache.eviction_policy(EvictionPolicy::lru()).build())
}

impl<S> Layer<S> for ToolCacheLayer {
    type Service = ToolCache<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ToolCache::new(inner, self.options.clone(), self.results.clone())
    }
}

impl fmt::Debug for ToolCacheLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCacheLayer")
            .field("scope", &self.options.cache.scope)
            .field("entries", &self.results.entry_count())
            .finish_non_exhaustive()
    }
}
