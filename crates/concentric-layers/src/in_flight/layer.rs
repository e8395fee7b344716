use super::{InFlightLimit, limit::Limit};
use std::sync::Arc;
use tower_layer::Layer;

/// [`Layer`] that limits concurrent responses until their bodies end ([`InFlightLimit`]).
///
/// Services created by a layer and its clones share one limit. See the [module docs](super) for an
/// example.
#[derive(Clone, Debug)]
pub struct InFlightLimitLayer {
    limit: Arc<Limit>,
    queue: usize,
}

impl InFlightLimitLayer {
    /// Creates a layer that allows at most `max` concurrent responses.
    ///
    /// `max` is clamped to the range from 1 to
    /// [`Semaphore::MAX_PERMITS`](tokio::sync::Semaphore::MAX_PERMITS).
    pub fn new(max: usize) -> Self {
        Self {
            limit: Arc::new(Limit::new(max)),
            queue: usize::MAX,
        }
    }

    /// Sets the maximum number of waiting calls; the default is no limit.
    ///
    /// A call above the limit fails with
    /// [`ErrorKind::Overloaded`](concentric_core::ErrorKind::Overloaded), with the code `busy` if
    /// `calls` is 0, otherwise `queue_full`.
    ///
    /// All clones of the layer share the queue, but each clone applies its own maximum to it.
    #[must_use]
    pub const fn queue(mut self, calls: usize) -> Self {
        self.queue = calls;
        self
    }

    /// Returns the number of calls that can start without waiting.
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
