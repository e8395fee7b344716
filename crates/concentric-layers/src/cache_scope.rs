//! The scopes of caches.

use concentric_core::{Context, RunId, ThreadId, store::Tenant};

/// The calls that share results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheScope {
    /// Calls of one run.
    Run,
    /// Calls of one conversation of a tenant. Runs without a thread id are not cached.
    Thread,
    /// Calls of one [`Tenant`](concentric_core::store::Tenant). Runs without a tenant are one tenant.
    Tenant,
    /// All calls. Only for results that do not depend on the caller.
    Shared,
}

/// The owner of results: those of others are not used.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Run(RunId),
    Thread(Tenant, ThreadId),
    Tenant(Tenant),
    Shared,
}

impl CacheScope {
    /// The owner of the results of a call; `None` if the call is outside the scope.
    pub(crate) fn owner(self, context: &Context) -> Option<Owner> {
        Some(match self {
            Self::Run => Owner::Run(context.run_id().clone()),
            Self::Thread => Owner::Thread(Tenant::of(context), context.thread_id()?.clone()),
            Self::Tenant => Owner::Tenant(Tenant::of(context)),
            Self::Shared => Owner::Shared,
        })
    }
}
