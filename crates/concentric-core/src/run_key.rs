//! The keys of runs and of their owners.

use concentric_proto::{RunId, Str, ThreadId};
use serde::{Deserialize, Serialize};

/// The owner of runs and decisions, an extension of a [`Context`](crate::Context); empty by
/// default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenant(pub Str);

/// The key of a run in a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunKey {
    /// The run's owner.
    pub tenant: Tenant,
    /// The conversation.
    pub thread: ThreadId,
    /// The id of the stored run, created by the process that started it. It stays the same while
    /// other requests continue the run. It is not the id that a client chose for its request
    /// ([`RunRecord::client_id`](crate::store::RunRecord::client_id)), which may repeat.
    pub run: RunId,
}

impl RunKey {
    /// Creates a key.
    pub fn new(tenant: Tenant, thread: ThreadId, run: RunId) -> Self {
        Self {
            tenant,
            thread,
            run,
        }
    }
}

/// The claim under which a process drives a run.
///
/// A tool may pass it to a service that rejects writers with an older [fence](Self::fence).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunClaim {
    /// The key of the run.
    pub key: RunKey,
    /// The fencing token, which increases with each claim of the run.
    pub fence: u64,
}

impl RunClaim {
    /// Creates a claim.
    pub fn new(key: RunKey, fence: u64) -> Self {
        Self { key, fence }
    }
}
