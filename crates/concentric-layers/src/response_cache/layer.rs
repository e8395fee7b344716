use super::{ResponseCache, answer::Stored, call::Answers, key::Key};
use crate::caching::{CacheOptions, CacheScope, SharedStore};
use concentric_core::{ChatRequest, Str, store::CacheStore};
use moka::{policy::EvictionPolicy, sync::Cache};
use serde_json::Value;
use std::{fmt, sync::Arc, time::Duration};
use tower_layer::Layer;

/// [`Layer`] that answers repeated requests from earlier answers, and shares concurrent calls
/// ([`ResponseCache`]).
///
/// Services created by a layer and its clones share their answers, so they must have the same model. See the
/// [module docs](super) for an example.
#[derive(Clone)]
pub struct ResponseCacheLayer {
    options: Options,
    answers: Arc<Answers>,
}

#[derive(Clone)]
pub(super) struct Options {
    pub(super) cache: CacheOptions<ChatRequest>,
    pub(super) tool_calls: bool,
}

const TOTAL_BYTES: u64 = 64 << 20;
const TTL: Duration = Duration::from_secs(60 * 60);
const MAX_BYTES: usize = 1 << 20;

impl ResponseCacheLayer {
    /// Creates a layer with a cache of its own.
    pub fn new(scope: CacheScope) -> Self {
        Self {
            options: Options {
                cache: CacheOptions::new(scope, TTL, MAX_BYTES),
                tool_calls: false,
            },
            answers: answers(TOTAL_BYTES),
        }
    }

    /// Sets the maximum size of all answers in bytes. With 0, none is stored, and concurrent requests still
    /// share one call. The answers stored so far are kept by earlier clones only.
    #[must_use]
    pub fn total_bytes(mut self, bytes: u64) -> Self {
        self.answers = answers(bytes);
        self
    }

    /// Sets the time for which an answer is used. With 0, no answer is used by a later request.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.options.cache.ttl = ttl;
        self
    }

    /// Sets the maximum size of an answer in bytes; larger ones are not stored. It is also the limit on how far
    /// a reader may be [behind](super#concurrent-requests), if it is more than 64 KiB.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.options.cache.max_bytes = bytes;
        self
    }

    /// Sets whether answers with tool calls are stored. The default is `false`: an agent that repeats them
    /// acts on data that may have changed. The calls of a stored answer have new ids in each run, and its
    /// gates decide about them as about others.
    #[must_use]
    pub const fn tool_calls(mut self, are_stored: bool) -> Self {
        self.options.tool_calls = are_stored;
        self
    }

    /// Compares requests by the result of `key` instead of their
    /// [digest](concentric_core::digest::Digest::of_request). A request for which it returns `None` is not
    /// cached. The scope still applies.
    ///
    /// ```
    /// use concentric_core::digest::Digest;
    /// use concentric_layers::response_cache::{CacheScope, ResponseCacheLayer};
    /// use serde_json::json;
    ///
    /// # #[derive(Clone)]
    /// # struct User(String);
    /// // An answer for each user, of requests without randomness.
    /// let cache = ResponseCacheLayer::new(CacheScope::Tenant).key(|request| {
    ///     let user = request.context.extensions().get::<User>()?;
    ///     let is_fixed = request.options.temperature == Some(0.0);
    ///     is_fixed.then(|| json!([user.0, Digest::of_request(request).ok()]))
    /// });
    /// # let _ = cache;
    /// ```
    #[must_use]
    pub fn key(
        mut self,
        key: impl Fn(&ChatRequest) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        self.options.cache.key = Some(Arc::new(key));
        self
    }

    /// Shares answers with other processes: looks in `store` before a call is made, and writes each answer to
    /// it, for the layer's [`ttl`](Self::ttl). The cache of the process is asked first.
    ///
    /// The answers of a store outlive the program. `space` names their origin, such as the model and the
    /// version of the prompts: layers with the same space share them. See [its section](super#a-store-for-several-processes).
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

    /// Removes all answers from the process; those of a [store](Self::store) remain.
    pub fn clear(&self) {
        self.answers.stored.invalidate_all();
    }
}

fn answers(bytes: u64) -> Arc<Answers> {
    // Beside the content: the key, and the parts of an answer.
    const EACH: usize = 512;
    let stored = Cache::builder()
        .max_capacity(bytes)
        .weigher(|_: &Key, stored: &Arc<Stored>| {
            u32::try_from(stored.bytes.saturating_add(EACH)).unwrap_or(u32::MAX)
        })
        .eviction_policy(EvictionPolicy::lru());
    Arc::new(Answers::new(stored.build()))
}

impl<S> Layer<S> for ResponseCacheLayer {
    type Service = ResponseCache<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ResponseCache::new(inner, self.options.clone(), Arc::clone(&self.answers))
    }
}

impl fmt::Debug for ResponseCacheLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCacheLayer")
            .field("scope", &self.options.cache.scope)
            .field("entries", &self.answers.stored.entry_count())
            .finish_non_exhaustive()
    }
}
