use concentric_proto::Str;
use std::{
    fmt,
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

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// The wall time.
    fn now(&self) -> SystemTime;

    /// Waits for `duration`, which may be any: one past the end of what the clock can show, such as
    /// [`Duration::MAX`], never ends.
    fn sleep(&self, duration: Duration) -> Sleep;

    /// How long it is since some moment of the past: what lengths of time are measured by, where the
    /// wall time may be set in between. It passes as [`sleep`](Self::sleep) waits.
    ///
    /// That moment is 1970 unless a clock says otherwise, so that this is the wall time.
    fn monotonic(&self) -> Duration {
        let since = self.now().duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default()
    }
}

/// Makes ids.
pub trait Ids: Send + Sync + 'static {
    /// A new id that begins with `prefix`.
    fn next(&self, prefix: &str) -> Str;
}

/// Makes random numbers, as for jitter; not for secrets.
pub trait Random: Send + Sync + 'static {
    /// A new number.
    fn next_u64(&self) -> u64;
}

/// The clock, ids and randomness of a run: all it takes from the outside besides its model and
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

    /// The system's: the wall clock, tokio's timer, and random ids.
    pub fn system() -> Self {
        static SYSTEM: LazyLock<Environment> =
            LazyLock::new(|| Environment::new(SystemClock, RandomIds, SystemRandom));
        SYSTEM.clone()
    }

    /// The clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// The source of ids.
    pub fn ids(&self) -> &dyn Ids {
        &*self.0.ids
    }

    /// The source of random numbers.
    pub fn random(&self) -> &dyn Random {
        &*self.0.random
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }

    // tokio's, as is the timer: with a runtime's paused clock both stand still.
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
        // Crockford's base 32, without the letters that look like digits.
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        // Nobody can guess the first 60 bits; the last 30 tell this process's ids apart.
        let (random, count) = random();
        let mut id = [b'0'; 18];
        let (head, tail) = id.split_at_mut(12);
        for (digits, mut bits) in [(head, random), (tail, count)] {
            for digit in digits {
                if let Some(d) = DIGITS.get((bits & 31) as usize) {
                    *digit = *d;
                }
                bits >>= 5;
            }
        }
        // The digits are ASCII.
        Str::concat([prefix, std::str::from_utf8(&id).unwrap_or_default()])
    }
}

struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        random().0
    }
}

/// SipHash of a counter, the process id and the time, under keys that the standard library takes
/// from the system; and the counter.
fn random() -> (u64, u64) {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    (
        mix(&KEYS, count, std::process::id(), SystemTime::now()),
        count,
    )
}

/// A fork, and a virtual machine that is restored from a snapshot, have the keys and the counter of
/// their original: the process id and the time tell what they draw apart.
fn mix(keys: &RandomState, count: u64, process: u32, now: SystemTime) -> u64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let mut hasher = keys.build_hasher();
    hasher.write_u64(count);
    hasher.write_u32(process);
    hasher.write_u128(since.unwrap_or_default().as_nanos());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    // A fork or a snapshot cannot be made here, so this is of the function that all numbers are from.
    #[test]
    fn a_copy_of_the_process_draws_other_numbers() {
        let (keys, now) = (RandomState::new(), SystemTime::UNIX_EPOCH);
        let original = mix(&keys, 7, 100, now);
        assert_ne!(original, mix(&keys, 7, 101, now));
        assert_ne!(original, mix(&keys, 7, 100, now + Duration::from_nanos(1)));
        assert_eq!(original, mix(&keys, 7, 100, now));
    }
}
