//! The names of runs, and of their owners.

use concentric_proto::{RunId, Str, ThreadId};
use serde::{Deserialize, Serialize};

/// Whose runs and decisions these are, as an extension of a [`Context`](crate::Context); the empty one by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenant(pub Str);

/// Names a run in a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunKey {
    /// The run's owner.
    pub tenant: Tenant,
    /// The conversation.
    pub thread: ThreadId,
    /// The id of the stored run, made by the process that began it. It stays the same while other
    /// requests continue the run. It is not the id that a client chose for its request
    /// ([`RunRecord::client_id`](crate::store::RunRecord::client_id)), which may repeat.
    pub run: RunId,
}

impl RunKey {
    /// Creates a name.
    pub fn new(tenant: Tenant, thread: ThreadId, run: RunId) -> Self {
        Self {
            tenant,
            thread,
            run,
        }
    }
}

/// The claim under which a run goes on.
///
/// A tool may hand it to a service that refuses writers with an older [fence](Self::fence).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunClaim {
    /// The run.
    pub key: RunKey,
    /// Grows with its claims.
    pub fence: u64,
}

impl RunClaim {
    /// Creates a claim.
    pub fn new(key: RunKey, fence: u64) -> Self {
        Self { key, fence }
    }
}
