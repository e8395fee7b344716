use super::{InFlightLimit, limit::Limit};
use std::sync::Arc;
use tower_layer::Layer;

/// [`Layer`] that applies [`InFlightLimit`].
///
/// All that one layer and its clones wrap share one limit. See the [module docs](super) for an
/// example.
#[derive(Clone, Debug)]
pub struct InFlightLimitLayer {
    limit: Arc<Limit>,
    queue: usize,
}

impl InFlightLimitLayer {
    /// Creates a layer that lets at most `max` answers arrive at once: at least 1, and at most
    /// [`Semaphore::MAX_PERMITS`](tokio::sync::Semaphore::MAX_PERMITS).
    pub fn new(max: usize) -> Self {
        Self {
            limit: Arc::new(Limit::new(max)),
            queue: usize::MAX,
        }
    }

    /// Sets how many calls may wait at once; the default is no limit. One more fails with
    /// [`ErrorKind::Overloaded`](concentric_core::ErrorKind::Overloaded): with the code `busy` if
    /// none may wait, else `queue_full`.
    ///
    /// All clones of the layer share the queue; each goes by its own limit on it.
    #[must_use]
    pub const fn queue(mut self, calls: usize) -> Self {
        self.queue = calls;
        self
    }

    /// Returns how many more calls may begin now.
    pub fn available(&self) -> usize {
        self.limit.available()
    }
}

impl<S> Layer<S> for InFlightLimitLayer {
    type Service = InFlightLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        InFlightLimit::new(inner, Arc::clone(&self.limit), self.queue)
    }
}
