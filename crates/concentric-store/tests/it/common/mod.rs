//! States and names for the tests.

pub(crate) use concentric_test::store::values::*;

use concentric_test::ManualClock;

#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod crash;
#[cfg(feature = "sqlite")]
pub(crate) mod file;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) mod reads;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// A clock that shows `at(0)`.
pub(crate) fn clock() -> ManualClock {
    ManualClock::at(at(0))
}

/// Sets the clock to `at(seconds)`.
pub(crate) fn set(clock: &ManualClock, seconds: u64) {
    clock.set(at(seconds));
}
