use concentric_proto::Event;
use serde_json::Value;
use std::{
    collections::VecDeque,
    error::Error as StdError,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
};
use tokio::sync::Notify;

/// The number of emitted events that wait for the consumer at which only states are added.
const CAPACITY: usize = 1024;

/// The maximum number of states that wait for the consumer, since each may be large.
const STATES: usize = 8;

/// Events emitted into a run's stream by layers and tools, queued for the run's driver.
///
/// The queue is allocated when the first event is emitted.
#[derive(Default)]
pub(crate) struct Outbox {
    // Set while the queue is not empty, and once the driver was called, so that the driver does not
    // need to lock for each event.
    filled: AtomicBool,
    queue: Mutex<Queue>,
    room: Notify,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    driver: Option<Waker>,
    // The run was cancelled.
    called: bool,
    closed: bool,
}

/// The reason why an event was not emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmitError {
    /// Events of this kind can't be emitted.
    NotAllowed,
    /// The queue is full because the consumer is too slow. Never returned for a state.
    Full,
    /// The run has ended.
    Ended,
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAllowed => "only state, custom events and parts can be emitted",
            Self::Full => "too many emitted events wait for the run's consumer",
            Self::Ended => "the run has ended",
        })
    }
}

impl StdError for EmitError {}

impl Queue {
    /// Removes the queued state that a new one replaces: the last event, or the last state if the
    /// maximum number of states is queued.
    fn take_superseded(&mut self) -> Option<Arc<Value>> {
        let is_state = |event: &Event| matches!(event, Event::State(_));
        let last = self.events.iter().rposition(is_state)?;
        let is_full = || self.events.iter().filter(|it| is_state(it)).count() >= STATES;
        if last + 1 != self.events.len() && !is_full() {
            return None;
        }
        match self.events.remove(last) {
            Some(Event::State(state)) => Some(state),
            _ => None,
        }
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: Event) -> Result<(), (EmitError, Event)> {
        let mut queue = self.lock();
        if queue.closed {
            return Err((EmitError::Ended, event));
        }
        let superseded = match &event {
            Event::State(_) => queue.take_superseded(),
            _ if queue.events.len() >= CAPACITY => return Err((EmitError::Full, event)),
            _ => None,
        };
        queue.events.push_back(event);
        self.filled.store(true, Ordering::Release);
        let driver = queue.driver.take();
        drop(queue);
        if let Some(driver) = driver {
            driver.wake();
        }
        // A large state takes a while to free.
        drop(superseded);
        Ok(())
    }

    /// Removes the state that the next one would replace.
    pub(crate) fn take_state(&self) -> Option<Arc<Value>> {
        let mut queue = self.lock();
        let state = queue.take_superseded();
        self.update_filled(&queue);
        state
    }

    pub(crate) async fn send(&self, mut event: Event) -> Result<(), EmitError> {
        loop {
            // Registers for a notification first, so that capacity freed in between is not missed.
            let room = self.room.notified();
            match self.push(event) {
                Ok(()) => return Ok(()),
                Err((EmitError::Full, back)) => event = back,
                Err((error, _)) => return Err(error),
            }
            room.await;
        }
    }

    #[inline]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Makes the driver check its run before it reads more of the model's answer, from now on.
    pub(crate) fn call_driver(&self) {
        let mut queue = self.lock();
        queue.called = true;
        self.filled.store(true, Ordering::Release);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().events.len()
    }

    pub(crate) fn pop(&self) -> Option<Event> {
        let event = self.pop_front(&mut self.lock())?;
        self.room.notify_one();
        Some(event)
    }

    fn pop_front(&self, queue: &mut Queue) -> Option<Event> {
        let event = queue.events.pop_front()?;
        self.update_filled(queue);
        Some(event)
    }

    fn update_filled(&self, queue: &Queue) {
        let filled = queue.called || !queue.events.is_empty();
        self.filled.store(filled, Ordering::Release);
    }

    /// Takes the next event, or registers `waker` for the next push.
    ///
    /// Only one driver waits at a time: the outermost loop of the run.
    pub(crate) fn poll_pop(&self, waker: &Waker) -> Poll<Event> {
        let mut queue = self.lock();
        if let Some(event) = self.pop_front(&mut queue) {
            drop(queue);
            self.room.notify_one();
            return Poll::Ready(event);
        }
        let waits = queue.driver.as_ref();
        let replaced = match waits.is_some_and(|driver| driver.will_wake(waker)) {
            true => None,
            false => queue.driver.replace(waker.clone()),
        };
        // A waker's drop may run foreign code, which must not run under the lock.
        drop(queue);
        drop(replaced);
        Poll::Pending
    }

    pub(crate) fn open(&self) {
        self.lock().closed = false;
    }

    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let events = std::mem::take(&mut queue.events);
        let driver = queue.driver.take();
        self.filled.store(false, Ordering::Release);
        drop(queue);
        drop((events, driver));
        self.room.notify_waiters();
    }
}
