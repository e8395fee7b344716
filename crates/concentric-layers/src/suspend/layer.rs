use super::{Suspend, live::LiveRuns};
use concentric_core::{
    ModelService,
    capability::{Declares, Encloses, InLoop, Outside, StoredRun},
    store::{LEASE, RunStore},
};
use std::{fmt, sync::Arc, time::Duration};
use tower_layer::Layer;

/// [`Layer`] that applies [`Suspend`].
///
/// See the [module docs](super) for an example. The services of one layer and of its clones share
/// what they know of the runs that they drive.
pub struct SuspendLayer<St: ?Sized> {
    store: Arc<St>,
    lease: Duration,
    buffer: usize,
    live: LiveRuns,
}

/// The shortest lease: a third of it is what a timer can wait for.
const SHORTEST: Duration = Duration::from_millis(3);

impl<St> SuspendLayer<St>
where
    St: RunStore + ?Sized,
{
    /// Creates a layer that keeps runs in `store`.
    pub fn new(store: Arc<St>) -> Self {
        Self {
            store,
            lease: LEASE,
            buffer: 64,
            live: LiveRuns::default(),
        }
    }

    /// Sets how long after its last renewal a process is thought dead, and another may resume its
    /// runs; [30 seconds](LEASE) by default. It is renewed every third of this time. Shorter than 3
    /// milliseconds is as long as that; a lease that ends beyond what a
    /// [`SystemTime`](std::time::SystemTime) holds lasts for a year.
    ///
    /// The clocks of all processes must agree to less than this.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(SHORTEST);
        self
    }

    /// Sets how many events a stored run may be ahead of the consumer of its body; 64 by default, and
    /// 0 is as 1. The run waits for the consumer then.
    #[must_use]
    pub fn buffer(mut self, events: usize) -> Self {
        self.buffer = events;
        self
    }
}

// The inner service is erased here, since its futures and bodies move into a task of their own.
impl<S, St> Layer<S> for SuspendLayer<St>
where
    S: ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static,
    St: ?Sized,
{
    type Service = Suspend<S, St>;

    fn layer(&self, inner: S) -> Self::Service {
        let store = Arc::clone(&self.store);
        Suspend::new(inner, store, self.lease, self.buffer, self.live.clone())
    }
}

impl<St> Declares for SuspendLayer<St>
where
    St: ?Sized + 'static,
{
    type Capabilities = (Encloses<StoredRun>, Outside<StoredRun>, Outside<InLoop>);
}

impl<St: ?Sized> Clone for SuspendLayer<St> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            lease: self.lease,
            buffer: self.buffer,
            live: self.live.clone(),
        }
    }
}

impl<St: ?Sized> fmt::Debug for SuspendLayer<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendLayer")
            .field("lease", &self.lease)
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}
