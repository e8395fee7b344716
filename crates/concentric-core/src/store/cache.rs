use super::{StoreFuture, Tenant, shared};
use concentric_proto::{Str, ThreadId};
use std::time::Duration;

shared! {
    /// Stores results that can be made again, so that processes share them.
    ///
    /// An entry may be missing at any time: it has expired, or the store has removed it to make room.
    pub trait CacheStore: Send + Sync + 'static {
        /// Returns the entry with this key, unless its time has passed.
        fn get_entry(&self, key: CacheKey) -> StoreFuture<Option<CacheEntry>>;

        /// Stores a value for the time `keep`, by the clock of the store; replaces the entry with this
        /// key. A store may remove other entries beyond a limit.
        ///
        /// # Errors
        ///
        /// [`StoreError::Unwritable`](super::StoreError::Unwritable) if the value is too large.
        fn put_entry(&self, key: CacheKey, value: Vec<u8>, keep: Duration) -> StoreFuture<()>;

        /// Removes the entries of a tenant, or those of one of its conversations, of one `space`, or of
        /// both, and returns their number. Expired entries may count. After an error, or if the future is
        /// dropped, some may remain.
        fn remove_entries(
            &self,
            tenant: Tenant,
            thread: Option<ThreadId>,
            space: Option<Str>,
        ) -> StoreFuture<u64>;
    }
}

/// The key of an entry in a [`CacheStore`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CacheKey {
    /// The owner of the entry; the default tenant also for entries that all tenants share.
    pub tenant: Tenant,
    /// The conversation to which the entry belongs, and with which it is deleted. A store may treat an
    /// empty id as `None`.
    pub thread: Option<ThreadId>,
    /// The name of the cache, such as that of a model: equal digests in another space are another entry.
    pub space: Str,
    /// The digest of what the value was made from.
    pub digest: [u8; 32],
}

impl CacheKey {
    /// Creates a key.
    pub fn new(
        tenant: Tenant,
        thread: Option<ThreadId>,
        space: impl Into<Str>,
        digest: [u8; 32],
    ) -> Self {
        Self {
            tenant,
            thread,
            space: space.into(),
            digest,
        }
    }
}

/// An entry of a [`CacheStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// The value.
    pub value: Vec<u8>,
    /// The time since it was stored, by the clock of the store.
    pub age: Duration,
}

impl CacheEntry {
    /// Creates an entry.
    pub const fn new(value: Vec<u8>, age: Duration) -> Self {
        Self { value, age }
    }
}
