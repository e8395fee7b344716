//! The time of a world, its events, and the clocks of its processes.

use super::history::{Digest, Note, What};
use crate::dice::Dice;
use concentric_core::{
    Environment, Str,
    context::{Clock, Ids, Random, Sleep},
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

/// Locks a value of a world, which is used by one thread only.
pub(crate) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place for processes, and the number of a process there.
pub(crate) type ProcessId = (usize, u32);

/// An event of a world.
pub(crate) enum Act {
    /// A sleep ends.
    Wake(Arc<Nap>),
    /// Something happens in a process, or in the world if there is none.
    Do(Box<dyn FnOnce() + Send>),
    /// Something happens to the processes.
    World(Box<dyn FnOnce(&mut super::world::Hosts) + Send>),
}

struct Event {
    at: u64,
    n: u64,
    process: Option<ProcessId>,
    act: Act,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.n == other.n
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.n).cmp(&(other.at, other.n))
    }
}

/// The time of a world in milliseconds, its events in their order, and its history.
#[derive(Clone)]
pub(crate) struct Time(Arc<Mutex<Inner>>);

struct Inner {
    now: u64,
    count: u64,
    events: BinaryHeap<Reverse<Event>>,
    dice: Dice,
    notes: Vec<Note>,
    digest: Digest,
}

impl Time {
    pub(crate) fn new(dice: Dice) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            now: 0,
            count: 0,
            events: BinaryHeap::new(),
            dice,
            notes: Vec::new(),
            digest: Digest::default(),
        })))
    }

    pub(crate) fn now(&self) -> u64 {
        lock(&self.0).now
    }

    /// Returns the result of a throw of the world's dice.
    pub(crate) fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut lock(&self.0).dice)
    }

    pub(crate) fn at(&self, at: u64, process: Option<ProcessId>, act: Act) {
        let mut inner = lock(&self.0);
        inner.count += 1;
        let event = Event {
            at: at.max(inner.now),
            n: inner.count,
            process,
            act,
        };
        inner.events.push(Reverse(event));
    }

    pub(crate) fn after(&self, millis: u64, process: Option<ProcessId>, act: Act) {
        let at = self.now().saturating_add(millis);
        self.at(at, process, act);
    }

    /// Lets `act` happen in the world after `millis`.
    pub(super) fn then(&self, millis: u64, act: impl FnOnce() + Send + 'static) {
        self.after(millis, None, Act::Do(Box::new(act)));
    }

    /// Advances the time to the next event, and returns it.
    pub(crate) fn next(&self) -> Option<(Option<ProcessId>, Act)> {
        let mut inner = lock(&self.0);
        let Reverse(event) = inner.events.pop()?;
        inner.now = event.at;
        let at = [event.at, event.n];
        inner.digest.add(at.map(u64::to_le_bytes).as_flattened());
        Some((event.process, event.act))
    }

    pub(super) fn note(&self, process: Option<ProcessId>, what: What) {
        let mut inner = lock(&self.0);
        let note = Note {
            at: inner.now,
            process,
            what,
        };
        inner.digest.add(format!("{note}").as_bytes());
        inner.notes.push(note);
    }

    /// Forgets the events that have not happened, some of which own this time: it would not be freed otherwise.
    pub(crate) fn end(&self) {
        let events = std::mem::take(&mut lock(&self.0).events);
        drop(events);
    }

    /// The notes, the digest of the notes and the events, and the number of events.
    pub(super) fn take(&self) -> (Vec<Note>, u64, u64) {
        let mut inner = lock(&self.0);
        let notes = std::mem::take(&mut inner.notes);
        (notes, inner.digest.value(), inner.count)
    }
}

// ---- clocks ----

/// A sleep that was polled.
#[derive(Default)]
pub(crate) struct Nap(Mutex<Option<Waker>>);

impl Nap {
    pub(crate) fn wake(&self) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Sleeping {
    time: Time,
    process: Option<ProcessId>,
    until: u64,
    nap: Option<Arc<Nap>>,
}

impl Future for Sleeping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.time.now() >= self.until {
            return Poll::Ready(());
        }
        let nap = match &self.nap {
            Some(nap) => Arc::clone(nap),
            None => {
                let nap = Arc::new(Nap::default());
                if self.until < u64::MAX {
                    let act = Act::Wake(Arc::clone(&nap));
                    self.time.at(self.until, self.process, act);
                }
                self.nap = Some(Arc::clone(&nap));
                nap
            }
        };
        *lock(&nap.0) = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        if let Some(nap) = &self.nap {
            lock(&nap.0).take();
        }
    }
}

/// The clock of a process: its wall clock may be wrong and may jump, and it may run at another speed than that of the
/// store. It does not stop while the process does.
#[derive(Clone)]
pub(crate) struct ProcessClock {
    time: Time,
    process: Option<ProcessId>,
    // By how many thousandths it is fast.
    fast: i64,
    // By how many milliseconds the wall clock is wrong.
    off: Arc<AtomicI64>,
}

/// The wall time at which a world begins.
const BEGIN: Duration = Duration::from_secs(1_000_000_000);

impl ProcessClock {
    pub(crate) fn new(
        time: Time,
        process: Option<ProcessId>,
        fast: i64,
        off: Arc<AtomicI64>,
    ) -> Self {
        Self {
            time,
            process,
            fast,
            off,
        }
    }

    const fn speed(&self) -> u64 {
        1000_u64.saturating_add_signed(self.fast)
    }

    /// The monotonic time in microseconds.
    fn micros(&self) -> u64 {
        self.time.now() * self.speed()
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> SystemTime {
        let local = BEGIN + Duration::from_micros(self.micros());
        let off = self.off.load(Relaxed);
        let by = Duration::from_millis(off.unsigned_abs());
        let wall = match off >= 0 {
            true => local + by,
            false => local.saturating_sub(by),
        };
        SystemTime::UNIX_EPOCH + wall
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let micros = u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        let until = match self.micros().checked_add(micros) {
            // Later than any world lasts.
            None => u64::MAX,
            Some(until) => until.div_ceil(self.speed()),
        };
        Box::pin(Sleeping {
            time: self.time.clone(),
            process: self.process,
            until,
            nap: None,
        })
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.micros())
    }
}

/// The ids of a process, which differ from those of all others.
struct ProcessIds {
    process: ProcessId,
    count: AtomicU64,
}

impl Ids for ProcessIds {
    fn next(&self, prefix: &str) -> Str {
        let (place, n) = self.process;
        let count = self.count.fetch_add(1, Relaxed);
        format!("{prefix}{place}_{n}_{count}").into()
    }
}

struct ProcessRandom(Mutex<Dice>);

impl Random for ProcessRandom {
    fn next_u64(&self) -> u64 {
        lock(&self.0).next()
    }
}

pub(crate) fn environment(clock: ProcessClock, process: ProcessId, dice: Dice) -> Environment {
    let count = AtomicU64::new(0);
    Environment::new(
        clock,
        ProcessIds { process, count },
        ProcessRandom(Mutex::new(dice)),
    )
}
