use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

/// The state that the services of one layer share.
#[derive(Debug)]
pub(super) struct Limit {
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Limit {
    pub(super) fn new(max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS))),
            waiting: AtomicUsize::new(0),
        }
    }

    pub(super) fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Takes a permit if one is free and no call is queued for it.
    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    pub(super) fn acquire(&self) -> PollSemaphore {
        PollSemaphore::new(Arc::clone(&self.permits))
    }
}

/// A place in the queue of waiting calls; released on drop.
#[derive(Debug)]
pub(super) struct Place(Arc<Limit>);

impl Place {
    /// Takes a place if fewer than `queue` calls are waiting.
    pub(super) fn take(limit: &Arc<Limit>, queue: usize) -> Option<Self> {
        let place = Self(Arc::clone(limit));
        // Dropping `place` undoes the increment if the queue is full.
        (limit.waiting.fetch_add(1, Ordering::AcqRel) < queue).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
