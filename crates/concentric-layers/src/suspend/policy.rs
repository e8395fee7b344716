//! The times of leases and sweeps, as functions of the settings, to plan the size of a deployment with.

use std::time::Duration;

/// The longest time after which a failed run is resumed.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Returns the time after which a granted lease is renewed: a third of it.
#[must_use]
pub fn renews_after(lease: Duration) -> Duration {
    lease / 3
}

/// Returns the time after which a lease that was not renewed counts as lost: four fifths of it, because the clocks of
/// this process and of the store may run at different speeds.
#[must_use]
pub fn is_lost_after(lease: Duration) -> Duration {
    lease / 5 * 4
}

/// Returns the time between two looks of a [`Sweeper`](super::Sweeper) with this
/// [interval](super::Sweeper::every): from a half to one and a half of it, by a random number.
#[must_use]
pub fn sweeps_after(every: Duration, random: u64) -> Duration {
    let share = u32::try_from(random % 1001).unwrap_or_default();
    every.saturating_mul(500 + share) / 1000
}

/// Returns the time after which a [`Sweeper`](super::Sweeper) resumes a run that has failed so often before: its
/// interval, doubled with each failure, and at least the time that the provider asked for; an hour at most.
#[must_use]
pub fn resumes_after(every: Duration, failures: u32, asked_for: Duration) -> Duration {
    let pause = every.saturating_mul(1 << failures.min(16));
    pause.max(asked_for).min(LONGEST)
}
