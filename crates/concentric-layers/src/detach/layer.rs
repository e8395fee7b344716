use super::{Detach, DetachedRuns};
use concentric_core::{
    ModelService,
    capability::{Around, Declares, Encloses, InLoop, Outside, Region, SessionTurn, StoredRun},
};
use std::time::Duration;
use tower_layer::Layer;

/// [`Layer`] that applies [`Detach`].
///
/// All that one layer and its clones wrap share one limit. See the [module docs](super) for an
/// example.
#[derive(Clone, Debug)]
pub struct DetachLayer {
    runs: DetachedRuns,
    within: Duration,
}

impl DetachLayer {
    /// Creates a layer that lets up to 64 runs go on without their consumers, each for up to 10
    /// minutes.
    pub fn new() -> Self {
        Self {
            runs: DetachedRuns::new(64),
            within: Duration::from_secs(600),
        }
    }

    /// Sets how many runs may go on without their consumers at once; 64 by default. With 0, none
    /// does. More than a semaphore has permits on this platform ([`Semaphore::MAX_PERMITS`]) is as
    /// many as that.
    ///
    /// [`Semaphore::MAX_PERMITS`]: tokio::sync::Semaphore::MAX_PERMITS
    ///
    /// It is to be set before [`runs`](Self::runs) is asked for.
    #[must_use]
    pub fn limit(mut self, runs: u32) -> Self {
        self.runs = DetachedRuns::new(runs);
        self
    }

    /// Sets how long a run may go on once its consumer has left, by the clock of its context; 10
    /// minutes by default. With zero it is stopped after one poll; with
    /// [`Duration::MAX`] only its own deadline limits it.
    #[must_use]
    pub const fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// The runs that go on, to be waited for when the process is to end.
    pub fn runs(&self) -> DetachedRuns {
        self.runs.clone()
    }
}

/// The region inside of a [`DetachLayer`], where a run continues without its consumer already.
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

// The inner service is erased here, since its futures and bodies are to be in boxes that can be
// moved; its type is named for `describe` only.
impl<S> Layer<S> for DetachLayer
where
    S: ModelService<Body: Send + 'static, Future: Send + 'static> + Clone + Send + Sync + 'static,
{
    type Service = Detach<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Detach::new(inner, self.runs.clone(), self.within)
    }
}
