//! States and names for the tests.

pub(crate) use concentric_test::store::values::*;

use concentric_test::ManualClock;

#[cfg(feature = "sqlite")]
pub(crate) mod file;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
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

/// The last step of each run whose write was acknowledged.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) type Acknowledged = std::collections::BTreeMap<String, u64>;

/// Waits until a step of each of the 20 runs is acknowledged that is greater than `least`, and returns these.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) async fn acknowledged_beyond(
    acknowledged: &std::sync::Mutex<Acknowledged>,
    least: impl Fn(&str) -> u64,
) -> Acknowledged {
    let all = async {
        loop {
            let now = acknowledged.lock().unwrap().clone();
            if now.len() == 20 && now.iter().all(|(run, step)| *step > least(run)) {
                return now;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let limit = std::time::Duration::from_secs(60);
    tokio::time::timeout(limit, all).await.unwrap()
}
