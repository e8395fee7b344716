use super::{Detach, runs::DetachedRuns};
use concentric_core::capability::{
    Around, Declares, Encloses, InLoop, Outside, PreparedRun, Region, SessionTurn, StoredRun,
};
use std::time::Duration;
use tower_layer::Layer;

/// [`Layer`] that completes a run after its consumer disconnects ([`Detach`]).
///
/// Services created by a layer and its clones share one limit. See the [module docs](super) for an
/// example.
#[derive(Clone, Debug)]
pub struct DetachLayer {
    runs: DetachedRuns,
    within: Duration,
}

impl DetachLayer {
    /// Creates a layer that continues up to 64 runs without their consumers, each for up to 10
    /// minutes.
    pub fn new() -> Self {
        Self {
            runs: DetachedRuns::new(64),
            within: Duration::from_secs(600),
        }
    }

    /// Sets the maximum number of runs that continue without their consumers; the default is 64.
    ///
    /// With 0, no run continues. The maximum is [`Semaphore::MAX_PERMITS`] on this platform.
    ///
    /// [`Semaphore::MAX_PERMITS`]: tokio::sync::Semaphore::MAX_PERMITS
    ///
    /// Call this before the layer is cloned or applied.
    #[must_use]
    pub fn limit(mut self, runs: u32) -> Self {
        self.runs = DetachedRuns::new(runs);
        self
    }

    /// Sets the time that a run may take after its consumer disconnected, by the clock of its
    /// context; the default is 10 minutes.
    ///
    /// With zero, the run is stopped after one poll. With [`Duration::MAX`], only its own deadline
    /// limits it.
    #[must_use]
    pub const fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Returns the number of further runs that may continue without their consumers.
    pub fn available(&self) -> usize {
        self.runs.available()
    }

    /// Refuses further runs, and waits until all detached runs have ended.
    ///
    /// From this call on, a run whose consumer disconnects is stopped. The wait is bounded by the
    /// [time limit](Self::within) of detached runs. To wait less, cancel the runs or drop this
    /// future.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it resolves, further runs are accepted again. Detached runs
    /// continue.
    pub async fn shutdown(&self) {
        self.runs.shutdown().await;
    }
}

/// The region inside the layer, where runs already continue without their consumers.
impl Region for DetachLayer {}

impl Declares for DetachLayer {
    type Capabilities = (
        Encloses<Self>,
        Outside<Self>,
        Outside<SessionTurn>,
        Outside<StoredRun>,
        Outside<PreparedRun>,
        Around<InLoop>,
    );
}

impl Default for DetachLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for DetachLayer {
    type Service = Detach<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Detach::new(inner, self.runs.clone(), self.within)
    }
}
