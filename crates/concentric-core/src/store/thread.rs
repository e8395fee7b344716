use super::{StoreFuture, Tenant, shared};
use crate::state::StoredSlot;
use concentric_proto::{ThreadId, Transcript, run_state::RunState};

shared! {
    /// Stores conversations.
    pub trait ThreadStore: Send + Sync + 'static {
        /// Returns a conversation; `None` if it does not exist.
        fn load(&self, tenant: Tenant, thread: ThreadId) -> StoreFuture<Option<StoredThread>>;

        /// Replaces a conversation, and returns its new version.
        ///
        /// Fails with [`StoreError::Moved`](super::StoreError::Moved) unless the stored version is
        /// `thread.version`, or 0 and the conversation does not exist.
        fn save(&self, tenant: Tenant, id: ThreadId, thread: StoredThread) -> StoreFuture<u64>;
    }
}

/// A stored conversation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoredThread {
    /// The version; 0 before the conversation is stored.
    pub version: u64,
    /// The finished turns.
    pub history: Transcript,
    /// The values of the conversation's slots.
    pub slots: Vec<StoredSlot>,
    /// The suspended turn ([`RunState::to_json`]), and the conversation's slots as it left them.
    pub suspended: Option<(Box<RunState>, Vec<StoredSlot>)>,
}

impl StoredThread {
    /// Creates a conversation of this version, without a suspended turn.
    pub const fn new(version: u64, history: Transcript, slots: Vec<StoredSlot>) -> Self {
        Self {
            version,
            history,
            slots,
            suspended: None,
        }
    }
}
