use super::Suspend;
use concentric_core::store::{LEASE, RunStore};
use std::{fmt, sync::Arc, time::Duration};
use tower_layer::Layer;

/// [`Layer`] that applies [`Suspend`].
///
/// See the [module docs](super) for an example.
pub struct SuspendLayer<St: ?Sized> {
    store: Arc<St>,
    lease: Duration,
}

impl<St> SuspendLayer<St>
where
    St: RunStore + ?Sized,
{
    /// Creates a layer that keeps runs in `store`.
    pub const fn new(store: Arc<St>) -> Self {
        Self {
            store,
            lease: LEASE,
        }
    }

    /// Sets how long after its last sign of life a process is thought dead, and another may take up
    /// its runs; [30 seconds](LEASE) by default. It is said at every third of it.
    ///
    /// All processes are to agree on the time, to less than this.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }
}

impl<S, St> Layer<S> for SuspendLayer<St>
where
    St: ?Sized,
{
    type Service = Suspend<S, St>;

    fn layer(&self, inner: S) -> Self::Service {
        Suspend::new(inner, Arc::clone(&self.store), self.lease)
    }
}

impl<St: ?Sized> Clone for SuspendLayer<St> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            lease: self.lease,
        }
    }
}

impl<St: ?Sized> fmt::Debug for SuspendLayer<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendLayer")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
