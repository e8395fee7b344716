use super::shared::Link;
use crate::shared::Shared;
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
    // Without it, the permits are those of this process.
    link: Option<Link>,
}

impl Limit {
    pub(super) fn new(max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS))),
            waiting: AtomicUsize::new(0),
            link: None,
        }
    }

    /// A limit whose permits other processes share.
    pub(super) fn shared(max: usize, shared: Shared) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(0)),
            waiting: AtomicUsize::new(0),
            link: Some(Link::new(max, shared)),
        }
    }

    pub(super) const fn permits(&self) -> &Arc<Semaphore> {
        &self.permits
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether calls fail because the store of the permits does not answer.
    pub(super) fn refuses(&self) -> bool {
        self.link.as_ref().is_some_and(Link::refuses)
    }

    pub(super) fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Takes a permit if one is free and no call is queued for it.
    pub(super) fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(Permit::new(permit, self))
    }

    pub(super) const fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    pub(super) fn acquire(&self) -> PollSemaphore {
        PollSemaphore::new(Arc::clone(&self.permits))
    }
}

/// A permit of a call; released on drop, or given up if other processes may have it.
#[derive(Debug)]
pub(super) struct Permit {
    own: Option<OwnedSemaphorePermit>,
    // If it is shared.
    limit: Option<Arc<Limit>>,
}

impl Permit {
    pub(super) fn new(permit: OwnedSemaphorePermit, limit: &Arc<Limit>) -> Self {
        Self {
            own: Some(permit),
            limit: limit.link.is_some().then(|| Arc::clone(limit)),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let link = self.limit.as_ref().and_then(|limit| limit.link());
        if let (Some(link), Some(permit)) = (link, self.own.take())
            && link.gives_up()
        {
            permit.forget();
        }
    }
}

/// A place in the queue of waiting calls; released on drop.
#[derive(Debug)]
pub(super) struct Place(Arc<Limit>);

impl Place {
    /// Takes a place if fewer than `queue` calls are waiting.
    pub(super) fn take(limit: &Arc<Limit>, queue: usize) -> Option<Self> {
        let place = Self(Arc::clone(limit));
        // The store is asked for a permit while a call waits for it.
        let queue = limit.link.as_ref().map_or(queue, |it| queue.max(it.max()));
        // Dropping `place` undoes the increment if the queue is full.
        let has_place = limit.waiting.fetch_add(1, Ordering::AcqRel) < queue;
        if has_place && let Some(link) = &limit.link {
            link.start(limit);
        }
        has_place.then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
