use std::{fmt, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// The runs that go on without their consumers, of all that one
/// [`DetachLayer`](super::DetachLayer) and its clones wrap.
///
/// Clones are of the same runs.
#[derive(Clone)]
pub struct DetachedRuns {
    limit: u32,
    permits: Arc<Semaphore>,
}

impl DetachedRuns {
    pub(super) fn new(limit: u32) -> Self {
        // A semaphore has no more where a `usize` is of 32 bits.
        let limit = u32::try_from(Semaphore::MAX_PERMITS).map_or(limit, |most| limit.min(most));
        Self {
            limit,
            permits: Arc::new(Semaphore::new(limit as usize)),
        }
    }

    /// How many more may go on without their consumers now.
    pub fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Refuses further runs, and waits until all are over.
    ///
    /// A run whose consumer leaves from now on is stopped, as without the layer. How long this takes
    /// at most is what a detached run [may](super::DetachLayer::within) take: cancel the runs, or
    /// give this up, if that is too long.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it resolves, further runs are accepted again. Those that go on do so.
    pub async fn shutdown(&self) {
        // While this waits in line for all of them, nobody else is given one.
        if let Ok(_all) = self.permits.acquire_many(self.limit).await {
            self.permits.close();
        }
    }

    /// Takes a run in.
    pub(super) fn take(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let taken = Arc::clone(&self.permits).try_acquire_owned();
        taken.map_err(|error| match error {
            TryAcquireError::Closed => Refused::ShutDown,
            TryAcquireError::NoPermits => Refused::Limit(self.limit),
        })
    }
}

/// Why a run does not continue without its consumer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// As many do as may, or all of them are waited for.
    Limit(u32),
    /// No more may.
    ShutDown,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => write!(f, "the limit of {limit} is reached"),
            Self::ShutDown => f.write_str("detached runs are shut down"),
        }
    }
}

impl fmt::Debug for DetachedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedRuns")
            .field("limit", &self.limit)
            .field("available", &self.available())
            .finish()
    }
}
