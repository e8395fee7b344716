use super::{ToolCache, key::Key};
use crate::caching::{CacheOptions, CacheScope};
use concentric_core::{Str, ToolCall, ToolOutcome};
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
    pub(super) at: Duration,
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

    /// Removes all results.
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
