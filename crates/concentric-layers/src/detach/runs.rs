use std::{fmt, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// The runs of a [`DetachLayer`](super::DetachLayer) and its clones that continue without their
/// consumers.
#[derive(Clone)]
pub(super) struct DetachedRuns {
    limit: u32,
    permits: Arc<Semaphore>,
}

impl DetachedRuns {
    pub(super) fn new(limit: u32) -> Self {
        // `MAX_PERMITS` is lower than `u32::MAX` where `usize` has 32 bits.
        let limit = u32::try_from(Semaphore::MAX_PERMITS).map_or(limit, |most| limit.min(most));
        Self {
            limit,
            permits: Arc::new(Semaphore::new(limit as usize)),
        }
    }

    pub(super) fn available(&self) -> usize {
        self.permits.available_permits()
    }

    pub(super) async fn shutdown(&self) {
        // While this waits for all permits, no other caller is given one.
        if let Ok(_all) = self.permits.acquire_many(self.limit).await {
            self.permits.close();
        }
    }

    /// Acquires the permit of a detached run.
    pub(super) fn take(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let taken = Arc::clone(&self.permits).try_acquire_owned();
        taken.map_err(|error| match error {
            TryAcquireError::Closed => Refused::ShutDown,
            TryAcquireError::NoPermits => Refused::Limit(self.limit),
        })
    }
}

/// The reason why a run does not continue without its consumer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// The limit is reached, or a shutdown is waiting for all runs.
    Limit(u32),
    /// The shutdown is complete.
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
