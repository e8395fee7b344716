//! Time, ids and random numbers under the control of a test.
//!
//! ```
//! use concentric_test::TestEnvironment;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let test = TestEnvironment::new();
//! let context = test.context();
//! assert_eq!(context.run_id().as_str(), "run_1");
//!
//! // Time does not pass by itself.
//! let mut nap = tokio_test::task::spawn(context.sleep(Duration::from_secs(3600)));
//! tokio_test::assert_pending!(nap.poll());
//! test.advance(Duration::from_secs(3600));
//! assert!(nap.is_woken());
//! assert!(nap.await.is_ok());
//! # }
//! ```

use concentric_core::{
    ChatRequest, Context, Environment, Str,
    context::{Clock, ContextBuilder, Ids, Random, Sleep},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, Waker},
    time::{Duration, SystemTime},
};

/// An [`Environment`] of a [`ManualClock`], [`SequentialIds`] and [`SeededRandom`].
///
/// Clones share all three. See the [module docs](self) for an example.
#[derive(Clone, Debug)]
pub struct TestEnvironment {
    clock: ManualClock,
    environment: Environment,
}

impl TestEnvironment {
    /// Creates an environment whose clock shows 2001-09-09 01:46:40 UTC, with the seed 0.
    pub fn new() -> Self {
        Self::with_seed(0)
    }

    /// Creates an environment like [`new`](Self::new), with another seed for its random numbers.
    pub fn with_seed(seed: u64) -> Self {
        let clock = ManualClock::new();
        Self {
            environment: Environment::new(
                clock.clone(),
                SequentialIds::default(),
                SeededRandom::new(seed),
            ),
            clock,
        }
    }

    /// Returns the environment, for a [`Context`].
    pub fn environment(&self) -> Environment {
        self.environment.clone()
    }

    /// Returns the clock.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Creates a builder of a context in this environment.
    pub fn context_builder(&self) -> ContextBuilder {
        Context::builder().environment(self.environment())
    }

    /// Creates the context of a new run in this environment.
    pub fn context(&self) -> Context {
        self.context_builder().build()
    }

    /// Creates a request with one user message, as a new run in this environment.
    pub fn request(&self, text: impl Into<Str>) -> ChatRequest {
        ChatRequest::user(text).with_context(self.context())
    }

    /// Advances the clock, and wakes the sleeps that have ended.
    pub fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }
}

impl Default for TestEnvironment {
    fn default() -> Self {
        Self::new()
    }
}

/// A clock that moves only when a test advances it.
///
/// Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<Time>>);

#[derive(Debug)]
struct Time {
    now: SystemTime,
    // By end time, with a number to distinguish sleeps that end at the same time.
    sleeps: BTreeMap<(SystemTime, u64), Waker>,
    // Sleeps whose end `SystemTime` cannot represent.
    endless: BTreeSet<u64>,
    next: u64,
}

impl ManualClock {
    /// Creates a clock that shows 2001-09-09 01:46:40 UTC.
    pub fn new() -> Self {
        Self::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))
    }

    /// Creates a clock that shows `now`.
    pub fn at(now: SystemTime) -> Self {
        Self(Arc::new(Mutex::new(Time {
            now,
            sleeps: BTreeMap::new(),
            endless: BTreeSet::new(),
            next: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Time> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances the time, and wakes the sleeps that have ended, in the order of their ends.
    ///
    /// # Panics
    ///
    /// Panics if [`SystemTime`] cannot represent the new time.
    pub fn advance(&self, duration: Duration) {
        self.change(|now| now + duration);
    }

    /// Sets the time, also to an earlier one, and wakes the sleeps that have ended, in the order of
    /// their ends.
    pub fn set(&self, now: SystemTime) {
        self.change(|_| now);
    }

    fn change(&self, change: impl FnOnce(SystemTime) -> SystemTime) {
        let mut time = self.lock();
        let now = change(time.now);
        time.now = now;
        let later = time.sleeps.split_off(&(now, u64::MAX));
        let over = std::mem::replace(&mut time.sleeps, later);
        drop(time);
        over.into_values().for_each(Waker::wake);
    }

    /// Returns the number of sleeps that have been polled and have not ended.
    pub fn sleepers(&self) -> usize {
        let time = self.lock();
        time.sleeps.len() + time.endless.len()
    }

    /// Returns the time until the next sleep ends; `None` if no pending sleep ever ends.
    pub fn next_wake(&self) -> Option<Duration> {
        let time = self.lock();
        let ((end, _), _) = time.sleeps.first_key_value()?;
        end.duration_since(time.now).ok()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        self.lock().now
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let mut time = self.lock();
        let end = time.now.checked_add(duration);
        let id = time.next;
        time.next += 1;
        drop(time);
        Box::pin(Nap {
            clock: self.clone(),
            end,
            id,
        })
    }
}

/// A sleep on a [`ManualClock`].
struct Nap {
    clock: ManualClock,
    // `None` if `SystemTime` cannot represent it: the sleep never ends.
    end: Option<SystemTime>,
    id: u64,
}

impl Future for Nap {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<()> {
        let mut time = self.clock.lock();
        match self.end {
            Some(end) if end <= time.now => return Poll::Ready(()),
            Some(end) => drop(time.sleeps.insert((end, self.id), cx.waker().clone())),
            None => drop(time.endless.insert(self.id)),
        }
        Poll::Pending
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        let mut time = self.clock.lock();
        match self.end {
            Some(end) => drop(time.sleeps.remove(&(end, self.id))),
            None => drop(time.endless.remove(&self.id)),
        }
    }
}

/// Ids that are numbered from 1 for each prefix: `run_1`, `msg_1`, `msg_2`.
#[derive(Debug, Default)]
pub struct SequentialIds(Mutex<HashMap<String, u64>>);

impl Ids for SequentialIds {
    fn next(&self, prefix: &str) -> Str {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(prefix.to_owned()).or_default();
        *count += 1;
        format!("{prefix}{count}").into()
    }
}

/// A random number generator that yields the same sequence for the same seed (SplitMix64).
#[derive(Debug)]
pub struct SeededRandom(AtomicU64);

impl SeededRandom {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Creates a generator.
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Random for SeededRandom {
    fn next_u64(&self) -> u64 {
        let state = self.0.fetch_add(Self::STEP, Ordering::Relaxed);
        let mut z = state.wrapping_add(Self::STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
