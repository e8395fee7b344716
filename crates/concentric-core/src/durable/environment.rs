use crate::{
    digest::Digest,
    environment::{Clock, Environment, Ids, Random, Sleep},
};
use concentric_proto::Str;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

/// The clock, ids and randomness of a run that an engine replays.
///
/// Between two records the clock stands at the time of the last one, and ids and random numbers are derived from a
/// seed and the number of records. Clones share the state.
///
/// ```
/// use concentric_core::durable::ReplayEnvironment;
/// use std::time::{Duration, SystemTime};
///
/// // The seed and the times come from the journal.
/// let begun = SystemTime::UNIX_EPOCH;
/// let (first, replay) = (ReplayEnvironment::new([7; 16], begun), ReplayEnvironment::new([7; 16], begun));
/// // A step draws an id, and is not executed again.
/// first.environment().ids().next("m_");
/// let recorded = begun + Duration::from_secs(5);
/// first.advance(recorded);
/// replay.advance(recorded);
/// assert_eq!(first.environment().ids().next("m_"), replay.environment().ids().next("m_"));
/// assert_eq!(replay.environment().clock().now(), recorded);
/// ```
#[derive(Clone)]
pub struct ReplayEnvironment(Arc<Mutex<State>>);

struct State {
    seed: [u8; 16],
    // The number of records, and of draws since the last one: what a step draws is not drawn again when it is
    // replayed, and must not change what follows.
    records: u64,
    draws: u64,
    now: SystemTime,
}

impl ReplayEnvironment {
    /// Creates the environment of a run that began at `now`. Ids can be guessed by those who know the seed.
    pub fn new(seed: [u8; 16], now: SystemTime) -> Self {
        Self(Arc::new(Mutex::new(State {
            seed,
            records: 0,
            draws: 0,
            now,
        })))
    }

    /// Advances to the next record, which was made at `at`. The clock does not go back.
    pub fn advance(&self, at: SystemTime) {
        let mut state = self.lock();
        state.records += 1;
        state.draws = 0;
        state.now = state.now.max(at);
    }

    /// Returns the environment, for a [`Context`](crate::Context).
    pub fn environment(&self) -> Environment {
        Environment::new(self.clone(), self.clone(), self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> Digest {
        let mut state = self.lock();
        state.draws += 1;
        let [records, draws] = [state.records, state.draws].map(u64::to_le_bytes);
        Digest::of_fields("concentric/durable/draw", &[&state.seed, &records, &draws])
    }
}

impl Clock for ReplayEnvironment {
    fn now(&self) -> SystemTime {
        self.lock().now
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Environment::system().clock().sleep(duration)
    }

    // Measures, as in a step, and does not decide.
    fn monotonic(&self) -> Duration {
        Environment::system().clock().monotonic()
    }
}

impl Ids for ReplayEnvironment {
    fn next(&self, prefix: &str) -> Str {
        // The text of a digest has letters, digits, `-` and `_`.
        let digest = self.draw().to_string();
        let id = digest.get(..18).unwrap_or(&digest);
        Str::concat([prefix, id])
    }
}

impl Random for ReplayEnvironment {
    fn next_u64(&self) -> u64 {
        // The first 10 characters of base64url have 60 bits.
        let digest = self.draw().to_string();
        let bytes = digest.bytes().take(16);
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    }
}

concentric_proto::opaque_debug!(ReplayEnvironment);

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(of: &ReplayEnvironment, count: usize) -> Vec<Str> {
        let environment = of.environment();
        (0..count).map(|_| environment.ids().next("m_")).collect()
    }

    #[test]
    fn what_follows_a_record_does_not_depend_on_what_a_step_drew() {
        let start = SystemTime::UNIX_EPOCH;
        let (first, again) = (
            ReplayEnvironment::new([7; 16], start),
            ReplayEnvironment::new([7; 16], start),
        );
        assert_eq!(ids(&first, 2), ids(&again, 2));
        // A step, which is not executed again.
        let drawn = ids(&first, 3);
        let later = start + Duration::from_secs(5);
        first.advance(later);
        again.advance(later);
        let next = ids(&first, 2);
        assert_eq!(next, ids(&again, 2));
        assert!(next.iter().all(|id| !drawn.contains(id)));
        assert_eq!(first.environment().clock().now(), later);
        assert_eq!(
            first.environment().random().next_u64(),
            again.environment().random().next_u64()
        );
        let other = ReplayEnvironment::new([8; 16], start);
        assert_ne!(
            ids(&other, 1),
            ids(&ReplayEnvironment::new([7; 16], start), 1)
        );
    }
}
