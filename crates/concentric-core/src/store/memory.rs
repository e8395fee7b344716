use super::{StoreFuture, Tenant, shared};
use concentric_proto::Str;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

shared! {
    /// Stores memories: texts that later runs of the same owner find.
    ///
    /// An owner is a name within a tenant, such as a user or a conversation. Tenants and owners do not
    /// share memories.
    pub trait Memories: Send + Sync + 'static {
        /// Stores a memory; replaces that of the owner with the same id. A store may remove the oldest
        /// memories of the owner beyond a limit.
        ///
        /// # Errors
        ///
        /// [`StoreError::Unwritable`](super::StoreError::Unwritable) if the text is too large.
        fn put(&self, tenant: Tenant, owner: Str, memory: Memory) -> StoreFuture<()>;

        /// Returns at most `limit` memories of an owner that have words of `query`, the best match
        /// first.
        fn search(
            &self,
            tenant: Tenant,
            owner: Str,
            query: Str,
            limit: usize,
        ) -> StoreFuture<Vec<Memory>>;

        /// Deletes a memory of an owner, or all of them, and returns their number.
        fn forget(&self, tenant: Tenant, owner: Str, id: Option<Str>) -> StoreFuture<u64>;
    }
}

/// A text that a run has left for later ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Memory {
    /// The id, unique for its owner.
    pub id: Str,
    /// The text.
    pub text: Str,
    /// The time at which it was stored.
    pub at: SystemTime,
}

impl Memory {
    /// Creates a memory.
    pub fn new(id: impl Into<Str>, text: impl Into<Str>, at: SystemTime) -> Self {
        Self {
            id: id.into(),
            text: text.into(),
            at,
        }
    }
}
