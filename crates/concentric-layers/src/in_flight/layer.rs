use super::InFlightLimit;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tower_layer::Layer;

/// [`Layer`] that applies [`InFlightLimit`].
///
/// All that one layer and its clones wrap share one limit. See the [module docs](super) for an
/// example.
#[derive(Clone, Debug)]
pub struct InFlightLimitLayer {
    permits: Arc<Semaphore>,
}

impl InFlightLimitLayer {
    /// Creates a layer that lets at most `max` answers arrive at once.
    ///
    /// # Panics
    ///
    /// If `max` is more than [`Semaphore::MAX_PERMITS`].
    pub fn new(max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(max)),
        }
    }

    /// How many more calls may begin now.
    pub fn available(&self) -> usize {
        self.permits.available_permits()
    }
}

impl<S> Layer<S> for InFlightLimitLayer {
    type Service = InFlightLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        InFlightLimit::new(inner, Arc::clone(&self.permits))
    }
}
