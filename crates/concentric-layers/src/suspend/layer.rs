use super::{Suspend, live::LiveRuns};
use concentric_core::{
    capability::{Declares, Encloses, InLoop, Outside, PreparedRun, StoredRun},
    store::{LEASE, RunStore},
};
use std::{fmt, sync::Arc, time::Duration};
use tower_layer::Layer;

/// [`Layer`] that stores runs that wait, and resumes them ([`Suspend`]).
///
/// See the [module docs](super) for an example. Services created by a layer and its clones share
/// the set of runs that they drive.
pub struct SuspendLayer<St: ?Sized> {
    pub(super) store: Arc<St>,
    pub(super) lease: Duration,
    buffer: usize,
    live: LiveRuns,
}

/// The shortest lease; a third of it is the resolution of timers.
const SHORTEST: Duration = Duration::from_millis(3);

impl<St> SuspendLayer<St>
where
    St: RunStore + ?Sized,
{
    /// Creates a layer that stores runs in `store`.
    pub fn new(store: Arc<St>) -> Self {
        Self {
            store,
            lease: LEASE,
            buffer: 64,
            live: LiveRuns::default(),
        }
    }

    /// Sets the time after the last renewal after which a process is considered dead and other
    /// processes may resume its runs; the default is [30 seconds](LEASE).
    ///
    /// The lease is renewed every third of this time. The minimum is 3 milliseconds. The store measures
    /// it on its own clock, and this process on a monotonic one, so their wall clocks may differ. A run
    /// whose lease was not renewed for four fifths of this time fails, and its tools are dropped, so that
    /// they do not run in two processes. A blocking tool that has begun is not stopped.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(SHORTEST);
        self
    }

    /// Sets the number of events by which a stored run may be ahead of its consumer (at least 1);
    /// the default is
    /// 64. At the limit, the run waits for the consumer.
    #[must_use]
    pub fn buffer(mut self, events: usize) -> Self {
        self.buffer = events;
        self
    }
}

impl<S, St> Layer<S> for SuspendLayer<St>
where
    St: RunStore + ?Sized,
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
    type Capabilities = (
        Encloses<StoredRun>,
        Outside<StoredRun>,
        Outside<PreparedRun>,
        Outside<InLoop>,
    );
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
