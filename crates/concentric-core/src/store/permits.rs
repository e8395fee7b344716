//! Permits that processes share, and the arithmetic of their shares.

use super::quota::micros;
use concentric_proto::Str;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// The permits of a bucket of a [`QuotaStore`](super::QuotaStore) by their callers, and the arithmetic of their shares.
///
/// ```
/// use concentric_core::store::PermitState;
/// use std::time::Duration;
///
/// let (mut state, lease, now) = (PermitState::default(), Duration::from_secs(30), Duration::ZERO);
/// assert_eq!(state.hold(10, ("a", 1), 0, 20, lease, now), 10);
/// // Another process waits until some of them are given up.
/// assert_eq!(state.hold(10, ("b", 1), 0, 20, lease, now), 0);
/// assert_eq!(state.hold(10, ("a", 2), 7, 20, lease, now), 5);
/// assert_eq!(state.hold(10, ("b", 2), 0, 20, lease, now), 3);
/// // A request that was sent before.
/// assert_eq!(state.hold(10, ("b", 1), 0, 20, lease, now), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PermitState {
    holders: BTreeMap<Str, Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    // What it may use, or still uses.
    held: u64,
    wanted: u64,
    until: u64,
    // The number of its last request.
    request: u64,
}

impl PermitState {
    /// Sets what a caller uses and wants at the time `now`, since any fixed point. See [`QuotaStore::hold`](super::QuotaStore::hold).
    pub fn hold(
        &mut self,
        max: u64,
        (caller, request): (&str, u64),
        used: u64,
        wanted: u64,
        lease: Duration,
        now: Duration,
    ) -> u64 {
        let now = micros(now);
        self.holders.retain(|_, it| it.until > now);
        if self
            .holders
            .get(caller)
            .is_some_and(|it| it.request > request)
        {
            // The process has given up permits since, or has got some.
            return 0;
        }
        self.holders.remove(caller);
        let (share, rest) = share(
            max,
            self.holders.values().map(|it| it.wanted).chain([wanted]),
        );
        // A rest that cannot be divided is for the first of those that want more.
        let before = self
            .holders
            .iter()
            .take_while(|(name, _)| name.as_str() < caller);
        let before = before.filter(|(_, it)| it.wanted > share).count() as u64;
        let share = share.saturating_add(u64::from(before < rest)).max(1);
        let held: u64 = self.holders.values().map(|it| it.held).sum();
        let allowed = wanted.min(share).min(max.saturating_sub(held));
        if used > 0 || wanted > 0 {
            let holder = Holder {
                held: allowed.max(used),
                wanted,
                until: now.saturating_add(micros(lease)),
                request,
            };
            self.holders.insert(caller.to_owned().into(), holder);
        }
        allowed
    }

    /// Returns the time after which all permits are free, as a time since the same point.
    pub fn expiry(&self) -> Duration {
        let ends = self.holders.values().map(|it| it.until);
        Duration::from_micros(ends.max().unwrap_or_default())
    }
}

/// The largest number of permits that all may have at most, and what is left.
fn share(max: u64, wants: impl Iterator<Item = u64>) -> (u64, u64) {
    let mut wants: Vec<_> = wants.collect();
    wants.sort_unstable();
    let (mut left, mut others) = (max, wants.len() as u64);
    for want in wants {
        let share = left / others;
        if want > share {
            return (share, left - share * others);
        }
        left -= want;
        others -= 1;
    }
    (max, 0)
}
