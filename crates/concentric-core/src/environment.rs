use concentric_proto::Str;
use std::{
    future::Future,
    hash::{BuildHasher, Hasher, RandomState},
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// The future of [`Clock::sleep`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the wall-clock time.
    fn now(&self) -> SystemTime;

    /// Waits for `duration`. One beyond the clock's range, such as [`Duration::MAX`], never ends.
    fn sleep(&self, duration: Duration) -> Sleep;

    /// Returns the time since a fixed point in the past. Use it to measure durations, which
    /// adjustments of the wall clock must not affect. It advances together with
    /// [`sleep`](Self::sleep).
    ///
    /// By default the fixed point is 1970, and this is the wall-clock time.
    fn monotonic(&self) -> Duration {
        let since = self.now().duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default()
    }
}

/// A generator of ids.
pub trait Ids: Send + Sync + 'static {
    /// Returns a new id that begins with `prefix`.
    fn next(&self, prefix: &str) -> Str;
}

/// A source of random numbers, for example for jitter; not for secrets.
pub trait Random: Send + Sync + 'static {
    /// Returns a new random number.
    fn next_u64(&self) -> u64;
}

/// The clock, ids and randomness of a run: all of its external inputs other than its model and
/// tools, so that a run can be recorded and replayed.
///
/// Cloning is cheap.
#[derive(Clone)]
pub struct Environment(Arc<Parts>);

struct Parts {
    clock: Box<dyn Clock>,
    ids: Box<dyn Ids>,
    random: Box<dyn Random>,
}

impl Environment {
    /// Creates an environment.
    pub fn new(clock: impl Clock, ids: impl Ids, random: impl Random) -> Self {
        Self(Arc::new(Parts {
            clock: Box::new(clock),
            ids: Box::new(ids),
            random: Box::new(random),
        }))
    }

    /// Returns the system environment: the wall clock, tokio's timer, and random ids.
    pub fn system() -> Self {
        static SYSTEM: LazyLock<Environment> =
            LazyLock::new(|| Environment::new(SystemClock, RandomIds, SystemRandom));
        SYSTEM.clone()
    }

    /// Returns the clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// Returns the source of ids.
    pub fn ids(&self) -> &dyn Ids {
        &*self.0.ids
    }

    /// Returns the source of random numbers.
    pub fn random(&self) -> &dyn Random {
        &*self.0.random
    }
}

concentric_proto::opaque_debug!(Environment);

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }

    // Uses tokio's clock, like the timer, so that both stop when the runtime's clock is paused.
    fn monotonic(&self) -> Duration {
        // Well in the past, since a runtime whose clock was paused may be behind the others.
        const AHEAD: Duration = Duration::from_secs(24 * 60 * 60);
        static START: LazyLock<Instant> = LazyLock::new(|| {
            let now = Instant::now();
            now.checked_sub(AHEAD).unwrap_or(now)
        });
        tokio::time::Instant::now()
            .into_std()
            .saturating_duration_since(*START)
    }
}

struct RandomIds;

impl Ids for RandomIds {
    fn next(&self, prefix: &str) -> Str {
        // Crockford's base 32, without the letters that resemble digits.
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        // The first 60 bits can't be guessed; the last 30 distinguish the ids of this process.
        let (random, count) = random();
        let mut id = Aligned([b'0'; 18]);
        let (head, tail) = id.0.split_at_mut(12);
        for (digits, mut bits) in [(head, random), (tail, count)] {
            for digit in digits {
                if let Some(d) = DIGITS.get((bits & 31) as usize) {
                    *digit = *d;
                }
                bits >>= 5;
            }
        }
        // The digits are ASCII.
        Str::concat([prefix, std::str::from_utf8(&id.0).unwrap_or_default()])
    }
}

// `from_utf8` reads aligned ASCII by words.
#[repr(align(8))]
struct Aligned([u8; 18]);

struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        random().0
    }
}

/// Returns the SipHash of a counter, the process id and the time, with keys that the standard
/// library gets from the system; and the counter.
fn random() -> (u64, u64) {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    (
        mix(&KEYS, count, std::process::id(), SystemTime::now()),
        count,
    )
}

/// A fork, or a virtual machine restored from a snapshot, has the keys and the counter of its
/// original; the process id and the time make its numbers differ.
fn mix(keys: &RandomState, count: u64, process: u32, now: SystemTime) -> u64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let nanos = since.unwrap_or_default().as_nanos() as u64;
    let input = [count << 32 | u64::from(process), nanos].map(u64::to_le_bytes);
    let mut hasher = keys.build_hasher();
    // One write costs less than one for each number.
    hasher.write(input.as_flattened());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    // A test can't create a fork or a snapshot, so it checks the function that makes all numbers.
    #[test]
    fn a_copy_of_the_process_draws_other_numbers() {
        let (keys, now) = (RandomState::new(), SystemTime::UNIX_EPOCH);
        let original = mix(&keys, 7, 100, now);
        assert_ne!(original, mix(&keys, 7, 101, now));
        assert_ne!(original, mix(&keys, 7, 100, now + Duration::from_nanos(1)));
        assert_eq!(original, mix(&keys, 7, 100, now));
    }
}
