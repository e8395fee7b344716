use super::{InFlightLimit, limit::Limit};
use crate::shared::Shared;
use std::sync::Arc;
use tower_layer::Layer;

/// [`Layer`] that limits concurrent responses until their bodies end ([`InFlightLimit`]).
///
/// Services created by a layer and its clones share one limit. See the [module docs](super) for an
/// example.
#[derive(Clone, Debug)]
pub struct InFlightLimitLayer {
    limit: Arc<Limit>,
    max: usize,
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
            max: max.clamp(1, tokio::sync::Semaphore::MAX_PERMITS),
            queue: usize::MAX,
        }
    }

    /// Shares the limit with other processes. See [the module docs](super#several-processes).
    #[must_use]
    pub fn shared(mut self, shared: Shared) -> Self {
        self.limit = Arc::new(Limit::shared(self.max, shared));
        self
    }

    /// Sets the maximum number of waiting calls; the default is no limit.
    ///
    /// A call above the limit fails with
    /// [`ErrorKind::Overloaded`](concentric_core::ErrorKind::Overloaded), with the code `busy` if
    /// `calls` is 0, otherwise `queue_full`.
    ///
    /// All clones of the layer share the queue, but each clone applies its own maximum to it. Of a
    /// [shared](Self::shared) limit, at least as many calls may wait as it has permits, since the store is asked first.
    #[must_use]
    pub const fn queue(mut self, calls: usize) -> Self {
        self.queue = calls;
        self
    }

    /// Returns the number of calls that can start without waiting; of a shared limit, without asking the store.
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
