//! Permits that processes share, and the arithmetic of their shares.

use super::quota::micros;
use concentric_proto::Str;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// The time in microseconds for which some of the callers may have permits, if there are more callers than permits.
const TURN: u64 = 1_000_000;

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
        let others = self.holders.iter().filter(|(_, it)| it.wanted > share);
        let before = others.clone().filter(|(name, _)| name.as_str() < caller);
        let (before, others) = (before.count() as u64, others.count() as u64);
        let share = match share {
            0 => u64::from(has_turn(max, before, others + 1, now)),
            // A rest that cannot be divided is for the first of those that want more.
            _ => share.saturating_add(u64::from(before < rest)),
        };
        let held: u64 = self.holders.values().map(|it| it.held).sum();
        let allowed = wanted.min(share).min(max.saturating_sub(held));
        // Also if it wants none: an earlier request may arrive later.
        let holder = Holder {
            held: allowed.max(used),
            wanted,
            until: now.saturating_add(micros(lease)),
            request,
        };
        self.holders.insert(caller.to_owned().into(), holder);
        allowed
    }

    /// Returns the time after which all permits are free, as a time since the same point.
    pub fn expiry(&self) -> Duration {
        let ends = self.holders.values().map(|it| it.until);
        Duration::from_micros(ends.max().unwrap_or_default())
    }
}

/// Whether the caller at `index` of `count`, which are more than the permits, may have one at the time `now`, in
/// microseconds. Multiples of the golden ratio choose the first of them, so that calls of any length find each caller
/// in turn when they end.
const fn has_turn(max: u64, index: u64, count: u64, now: u64) -> bool {
    let turn = now / TURN % 65_536 * 40_503 % 65_536;
    let first = turn * count / 65_536;
    (index + count - first) % count < max
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
