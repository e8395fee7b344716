use super::{Detach, DetachedRuns};
use concentric_core::{
    ModelService,
    capability::{Around, Declares, Encloses, InLoop, Outside, Region, SessionTurn, StoredRun},
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
    /// Call this before [`runs`](Self::runs).
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

    /// Returns a handle to the detached runs, for example to wait for them before the process
    /// exits.
    pub fn runs(&self) -> DetachedRuns {
        self.runs.clone()
    }
}

/// The region inside a [`DetachLayer`], where runs already continue without their consumers.
#[derive(Debug)]
pub enum DetachableRun {}

impl Region for DetachableRun {}

impl Declares for DetachLayer {
    type Capabilities = (
        Encloses<DetachableRun>,
        Outside<DetachableRun>,
        Outside<SessionTurn>,
        Outside<StoredRun>,
        Around<InLoop>,
    );
}

impl Default for DetachLayer {
    fn default() -> Self {
        Self::new()
    }
}

// The inner service is erased here because its futures and bodies must be boxed to be moved. Its
// type is used only by `describe`.
impl<S> Layer<S> for DetachLayer
where
    S: ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    type Service = Detach<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Detach::new(inner, self.runs.clone(), self.within)
    }
}
