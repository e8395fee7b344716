//! Rates and permits that processes share, and their arithmetic.

use super::{StoreFuture, shared};
use concentric_proto::Str;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

shared! {
    /// Stores the use of quotas, so that processes share them.
    ///
    /// The callers of a bucket must use the same [`Quota`]. Times are those of the clock of the store. The
    /// arithmetic is that of [`QuotaState`] and [`PermitState`](super::PermitState).
    pub trait QuotaStore: Send + Sync + 'static {
        /// Takes the amounts of as many calls as may begin now, and `ahead` in addition if all of them may, and
        /// no other process waits.
        ///
        /// The calls that may not begin wait: until `caller` asks again, which should be after
        /// [`QuotaTaken::wait`], calls of others that are served later leave them what they need. `caller` is a
        /// random id of the process.
        ///
        /// A call whose result was lost is not repeated, so what it has taken is unused.
        fn take(
            &self,
            bucket: Str,
            quota: Quota,
            caller: Str,
            wants: Vec<QuotaWant>,
            ahead: [u64; 3],
        ) -> StoreFuture<QuotaTaken>;

        /// Records what became of calls.
        fn record(&self, bucket: Str, quota: Quota, changes: Vec<QuotaChange>) -> StoreFuture<()>;

        /// Sets how many of `max` permits `caller` uses and wants in all, and returns how many it may use for the
        /// time `lease`. Permits of a caller that has not asked again within its lease are free. `caller` is a random
        /// id of the process, and a number that grows with each request: one that arrives after a later one of the
        /// process changes nothing, and returns 0.
        ///
        /// No caller has more than an equal share while others want more. If there are more of them than permits, they may
        /// have one in turn, for a second each, in an order that looks random. What is returned may be less than
        /// `used`, in which case the caller gives up permits as they are released.
        fn hold(
            &self,
            bucket: Str,
            max: u64,
            caller: (Str, u64),
            used: u64,
            wanted: u64,
            lease: Duration,
        ) -> StoreFuture<u64>;
    }
}

/// How much may be used in a period. An amount that is not set is not limited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    limits: [f64; 3],
    per: Duration,
}

impl Quota {
    /// A quota for each `period` (at least a nanosecond), without limits.
    pub fn per(period: Duration) -> Self {
        Self {
            limits: [f64::INFINITY; 3],
            per: period.max(Duration::from_nanos(1)),
        }
    }

    /// Sets the number of calls; with 0, every call fails.
    #[must_use]
    pub const fn requests(mut self, limit: u64) -> Self {
        self.limits[0] = amount(limit);
        self
    }

    /// Sets the number of input tokens, including those that the provider reads from its cache.
    #[must_use]
    pub const fn input_tokens(mut self, limit: u64) -> Self {
        self.limits[1] = amount(limit);
        self
    }

    /// Sets the number of output tokens.
    #[must_use]
    pub const fn output_tokens(mut self, limit: u64) -> Self {
        self.limits[2] = amount(limit);
        self
    }

    /// Returns the limits of requests, input tokens and output tokens, infinite if they are not set.
    pub const fn limits(&self) -> [f64; 3] {
        self.limits
    }

    /// Returns the period.
    pub const fn period(&self) -> Duration {
        self.per
    }

    /// Returns a share of the quota, for example 0.25.
    #[must_use]
    pub fn share(mut self, share: f64) -> Self {
        self.limits = self.limits.map(|limit| limit * share.max(0.0));
        self
    }
}

/// The calls of an owner that wait in a process, the first one first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaWant {
    /// The owner, such as a tenant. Owners that wait are served in turns.
    pub owner: Str,
    /// The requests, input tokens and output tokens of each call.
    pub calls: Vec<[u64; 3]>,
}

impl QuotaWant {
    /// Creates a want.
    pub fn new(owner: impl Into<Str>, calls: Vec<[u64; 3]>) -> Self {
        Self {
            owner: owner.into(),
            calls,
        }
    }
}

/// The result of [`QuotaStore::take`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaTaken {
    /// How many calls of each want may begin.
    pub granted: Vec<usize>,
    /// Whether the amounts ahead were taken.
    pub ahead: bool,
    /// The time after which the first of the other calls may begin, at most a second; zero if there is none.
    pub wait: Duration,
}

impl QuotaTaken {
    /// Creates the result with these numbers of calls.
    pub const fn new(granted: Vec<usize>, ahead: bool, wait: Duration) -> Self {
        Self {
            granted,
            ahead,
            wait,
        }
    }
}

/// What became of calls, in an update of a [`QuotaStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaChange {
    /// Amounts that were taken and not used; negative ones were used and not taken.
    Unused {
        /// Requests, input tokens and output tokens.
        amounts: [i64; 3],
        /// The time since they were taken.
        age: Duration,
    },
    /// The provider has rejected a call.
    Rejected {
        /// The time for which no call may begin.
        retry_after: Duration,
        /// The time since the call began: the quota is halved once for calls that were under way together.
        age: Duration,
    },
    /// The provider has reported the rest of its own limits: of requests, tokens, input tokens and output tokens.
    /// A call that needs more waits until the time of the reset.
    Remaining([Option<(i64, Duration)>; 4]),
}

/// The parts of a period whose calls are counted together.
const PARTS: u64 = 64;

/// The least share of a quota that is left after rejected calls.
const LEAST: f64 = 1.0 / 64.0;

/// The share of a quota by which it recovers in a period.
const RECOVERY: f64 = 0.1;

/// The share of the quota that calls can take at once while several processes or owners wait: after that, they begin at
/// an even rate.
const BURST: f64 = 1.0 / 8.0;

/// The parts of a token, of a share and of a turn that are counted: whole numbers are the same in all stores.
const UNITS: f64 = 1e6;

/// The longest time after which a process asks again, in microseconds.
const LONGEST_WAIT: u64 = 1_000_000;

/// The time after which a process asks again if nothing but the number of examined calls held its own back, in
/// microseconds.
const SHORT_WAIT: u64 = 10_000;

/// The time for which a process that does not ask again keeps its place, in microseconds.
const GRACE: u64 = 500_000;

/// The number of calls that a process and an owner can reserve while they wait.
const MAX_WAITING_CALLS: usize = 16;

/// The number of processes and owners that can wait, and of owners whose turns are known.
const MAX_WAITING: usize = 1_000;

/// The number of calls that are examined at once, not counting those that are granted.
const MAX_STEPS: u32 = 256;

impl QuotaChange {
    /// The longest time for which a bucket is closed, and until a provider's limits are reset.
    pub const LONGEST_RESET: Duration = Duration::from_secs(60 * 60);
}

/// The state of a bucket of a [`QuotaStore`], and its arithmetic without I/O.
///
/// The calls of any period have at most the quota, but for differences between estimates and use: the calls of the
/// last period are counted in 64 parts. A call that needs more than a reduced quota takes all of it. While several
/// processes or owners wait, at most an eighth of the quota is granted at once, and the rest at an even rate, so that
/// those with few calls at a time have their turns, and what is left for a process is soon taken.
///
/// Owners that wait are served in turns, by start-time fair queueing: each call of an owner costs the largest of the
/// shares of the quota that it takes, and the owner with the smallest sum is served first. What its calls in other
/// processes need is left for them, until they ask, or have not asked again in time.
///
/// Times are since any fixed point, such as 1970. A time before that of an earlier call counts as that one.
///
/// ```
/// use concentric_core::store::{Quota, QuotaState, QuotaWant};
/// use std::time::Duration;
///
/// let mut state = QuotaState::default();
/// let quota = Quota::per(Duration::from_secs(1)).requests(3);
/// let wants = [QuotaWant::new("acme", vec![[1, 0, 0]; 5])];
/// let taken = state.take(&quota, "process 1", &wants, [0; 3], Duration::ZERO);
/// assert_eq!(taken.granted, [3]);
/// assert_eq!(taken.wait, Duration::from_secs(1));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaState {
    // The time of the last call, in microseconds.
    at: u64,
    parts: Vec<Part>,
    // What may be taken at once, in units, since a time.
    credit: [f64; 3],
    credited: Option<u64>,
    // The share of the quota after a rejection at a time, in units.
    reduced: Option<(f64, u64)>,
    closed: u64,
    // The rest of the provider's limits, until a time.
    rest: [(f64, u64); 4],
    // The virtual time in units of a quota, and the ends of the turns of owners that are later.
    turn: f64,
    turns: BTreeMap<Str, f64>,
    waiting: Vec<Waiting>,
}

/// The first and the last call of a part of a period, and the sums of their amounts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Part(u64, u64, [f64; 3]);

/// Calls of an owner that wait in another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    caller: Str,
    owner: Str,
    calls: usize,
    // Of each call, on average.
    amounts: [f64; 3],
    // The time of the last call that was served.
    since: u64,
    until: u64,
}

/// What calls need: of the quota in a period, of the provider's limits, and of what may be taken at once.
type Need = [f64; 10];

/// Calls that are served in turns.
struct Entry<'a> {
    caller: &'a str,
    owner: &'a str,
    since: u64,
    calls: Calls<'a>,
    done: usize,
}

enum Calls<'a> {
    Own(&'a QuotaWant),
    Other(usize, [f64; 3]),
}

impl Entry<'_> {
    fn next(&self) -> Option<[f64; 3]> {
        match self.calls {
            Calls::Own(want) => want.calls.get(self.done).map(|call| call.map(amount)),
            Calls::Other(calls, amounts) => (self.done < calls).then_some(amounts),
        }
    }
}

/// Microseconds, below 2^53, which all stores can represent.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).map_or(1 << 53, |micros| micros.min(1 << 53))
}

/// What a call needs, of a quota that is reduced to `caps`, of which `bursts` may be taken at once.
fn need(amounts: [f64; 3], caps: [f64; 3], bursts: [f64; 3]) -> Need {
    let [a, b, c] = amounts;
    let [x, y, z] = caps;
    let [u, v, w] = bursts;
    let at_once = [a.min(u), b.min(v), c.min(w)].map(|it| it * UNITS);
    let [u, v, w] = at_once;
    [a.min(x), b.min(y), c.min(z), a, b + c, b, c, u, v, w]
}

const NO_CAPS: [f64; 3] = [f64::INFINITY; 3];

impl QuotaState {
    /// Takes the amounts of calls at the time `now`. See [`QuotaStore::take`].
    pub fn take(
        &mut self,
        quota: &Quota,
        caller: &str,
        wants: &[QuotaWant],
        ahead: [u64; 3],
        now: Duration,
    ) -> QuotaTaken {
        let now = self.advance(quota, now);
        let caps = quota.limits.map(|limit| limit * self.share(quota, now));
        let own_since = |owner: &Str| {
            let own = self.waiting.iter();
            let mut own = own.filter(|it| it.caller == caller && it.owner == *owner);
            own.next().map_or(now, |it| it.since)
        };
        let since: Vec<_> = wants.iter().map(|want| own_since(&want.owner)).collect();
        // Several processes or owners wait.
        let is_busy = self.waiting.first().is_some_and(|first| {
            let mut waiting = self.waiting.iter();
            waiting.any(|it| it.caller != caller || it.owner != first.owner)
                || wants.iter().any(|want| want.owner != first.owner)
        });
        self.refill(quota, caps, is_busy, now);
        let bursts = if is_busy {
            caps.map(|cap| cap * BURST)
        } else {
            caps
        };
        self.waiting.retain(|it| it.caller != caller);
        let waiting = self.waiting.clone();
        let mut entries: Vec<_> = waiting
            .iter()
            .map(|it| Entry {
                caller: &it.caller,
                owner: &it.owner,
                since: it.since,
                calls: Calls::Other(it.calls, it.amounts),
                done: 0,
            })
            .collect();
        let others = entries.len();
        entries.extend(wants.iter().zip(&since).map(|(want, since)| Entry {
            caller,
            owner: &want.owner,
            since: *since,
            calls: Calls::Own(want),
            done: 0,
        }));
        // Where the next call of each owner begins, with those that are set aside.
        let mut starts: BTreeMap<&str, f64> = BTreeMap::new();
        for entry in &entries {
            starts.insert(entry.owner, self.start(entry.owner));
        }

        let mut left = self.left(caps, now);
        let is_closed = self.closed > now;
        let (mut steps, mut taken) = (0, [0.0; 3]);
        let mut is_over = is_closed;
        let mut wait = None;
        let mut granted = vec![0; wants.len()];
        while let Some(at) = next(&entries, &starts)
            && steps < MAX_STEPS
        {
            let Some(entry) = entries.get_mut(at) else {
                break;
            };
            let amounts = entry.next().unwrap_or_default();
            let needs = need(amounts, caps, bursts);
            is_over |= left.iter().zip(needs).any(|(left, need)| *left < need);
            // A limit of 0 lets no call begin, not even one that would leave as much.
            is_over |= amounts
                .iter()
                .zip(quota.limits)
                .any(|(amount, limit)| *amount > 0.0 && limit <= 0.0);
            let is_own = at >= others;
            if is_own && is_over {
                let short = needs.iter().zip(left).map(|(need, left)| need - left);
                wait = Some(self.wait(quota, caps, short, now));
                break;
            }
            // After the first call that does not fit, the calls before this one are counted.
            let whole = need(amounts, NO_CAPS, NO_CAPS);
            for ((left, need), whole) in left.iter_mut().zip(needs).zip(whole) {
                *left -= if is_over { need } else { whole };
            }
            let cost = cost(quota, amounts);
            let start = starts.entry(entry.owner).or_default();
            if is_own {
                if let Some(granted) = granted.get_mut(at - others) {
                    *granted += 1;
                }
                for (sum, amount) in taken.iter_mut().zip(amounts) {
                    *sum += amount;
                }
                let begun = self.start(entry.owner);
                if cost > 0.0 {
                    self.turns
                        .insert(entry.owner.to_owned().into(), begun + cost);
                }
            } else {
                steps += 1;
            }
            entry.done += 1;
            *start += cost;
        }
        let own = entries.get(others..).unwrap_or_default();
        let is_waiting = own.iter().any(|entry| entry.next().is_some());
        let wait = match is_waiting {
            false => 0,
            true => wait.unwrap_or(match is_over {
                true => LONGEST_WAIT,
                // More calls wait before than are examined, and they fit.
                false => SHORT_WAIT,
            }),
        };
        let extra = ahead.map(amount);
        let fits = left
            .iter()
            .zip(need(extra, NO_CAPS, NO_CAPS))
            .all(|(left, need)| *left >= need);
        let ahead = ahead != [0; 3] && others == 0 && !is_waiting && !is_closed && fits;
        if ahead {
            for (sum, amount) in taken.iter_mut().zip(extra) {
                *sum += amount;
            }
        }
        let until = now + wait + GRACE;
        let places = MAX_WAITING.saturating_sub(self.waiting.len());
        let waiting = own
            .iter()
            .zip(wants)
            .filter(|(entry, _)| entry.next().is_some());
        let waiting = waiting.map(|(entry, want)| Waiting {
            caller: caller.to_owned().into(),
            owner: want.owner.clone(),
            since: if entry.done > 0 { now } else { entry.since },
            until,
            ..waiting_calls(want.calls.get(entry.done..).unwrap_or_default())
        });
        self.waiting.extend(waiting.take(places));
        self.add(quota, taken, now);
        self.end_turns();
        QuotaTaken {
            granted,
            ahead,
            wait: Duration::from_micros(wait),
        }
    }

    /// Records a change at the time `now`. See [`QuotaStore::record`].
    pub fn record(&mut self, quota: &Quota, change: &QuotaChange, now: Duration) {
        let now = self.advance(quota, now);
        match *change {
            QuotaChange::Unused { amounts, age } => {
                let began = now.saturating_sub(micros(age));
                let part = self.parts.iter_mut().rev().find(|part| part.0 <= began);
                let unused = amounts.map(|it| amount(it.max(0).unsigned_abs()));
                if let Some(Part(_, _, sums)) = part {
                    for (sum, unused) in sums.iter_mut().zip(unused) {
                        *sum = (*sum - unused).max(0.0);
                    }
                    for (credit, unused) in self.credit.iter_mut().zip(unused) {
                        *credit += unused * UNITS;
                    }
                }
                let owed = amounts.map(|it| amount(it.min(0).unsigned_abs()));
                self.add(quota, owed, now);
            }
            QuotaChange::Rejected { retry_after, age } => {
                self.closed = self
                    .closed
                    .max(now + micros(retry_after.min(QuotaChange::LONGEST_RESET)));
                let began = now.saturating_sub(micros(age));
                if self.reduced.is_none_or(|(_, at)| began >= at) {
                    let share = (self.share(quota, now) / 2.0).max(LEAST);
                    self.reduced = Some(((share * UNITS).floor(), now));
                }
            }
            QuotaChange::Remaining(rest) => {
                for (own, reported) in self.rest.iter_mut().zip(rest) {
                    if let Some((left, reset)) = reported {
                        *own = (
                            signed(left),
                            now + micros(reset.min(QuotaChange::LONGEST_RESET)),
                        );
                    }
                }
            }
        }
    }

    /// Returns the time after which the state equals a new one, as a time since the same point.
    pub fn expiry(&self, quota: &Quota) -> Duration {
        let per = micros(quota.per);
        let parts = self.parts.iter().map(|part| part.1 + per);
        let rest = self.rest.iter().map(|(_, until)| *until);
        let credit = self
            .credit
            .iter()
            .zip(quota.limits)
            .filter(|(_, limit)| *limit > 0.0);
        let debt = credit
            .map(|(credit, limit)| 1.0 - credit / UNITS / limit)
            .fold(0.0, f64::max);
        let paid = self
            .credited
            .map(|at| at + whole(debt.min(1e6) * amount(per)));
        // A share recovers in ten periods.
        let reduced = self
            .reduced
            .iter()
            .map(|(_, at)| at + per.saturating_mul(10));
        let waiting = self.waiting.iter().map(|it| it.until);
        let all = parts.chain(rest).chain(reduced).chain(waiting).chain(paid);
        Duration::from_micros(all.fold(self.closed, u64::max))
    }

    /// Forgets what has passed; returns the time.
    fn advance(&mut self, quota: &Quota, now: Duration) -> u64 {
        self.at = self.at.max(micros(now));
        let (now, per) = (self.at, micros(quota.per).max(1));
        self.parts.retain(|part| part.1 + per > now);
        self.waiting.retain(|it| it.until > now);
        now
    }

    fn share(&self, quota: &Quota, now: u64) -> f64 {
        let Some((share, at)) = self.reduced else {
            return 1.0;
        };
        let periods = amount(now - at.min(now)) / amount(micros(quota.per).max(1));
        (share / UNITS + periods * RECOVERY).min(1.0)
    }

    /// Adds to what may be taken at once.
    fn refill(&mut self, quota: &Quota, caps: [f64; 3], is_busy: bool, now: u64) {
        let since = self.credited.replace(now);
        let per = amount(micros(quota.per).max(1));
        for (credit, cap) in self.credit.iter_mut().zip(caps) {
            if cap.is_finite() {
                let most = if is_busy { cap * BURST } else { cap } * UNITS;
                let added = since.map_or(most, |since| {
                    cap * UNITS / per * amount(now - since.min(now))
                });
                *credit = (*credit + added).min(most).floor();
            }
        }
    }

    fn left(&self, caps: [f64; 3], now: u64) -> Need {
        let mut left = [f64::INFINITY; 10];
        let (own, rest) = left.split_at_mut(3);
        let (provided, at_once) = rest.split_at_mut(4);
        for ((left, credit), cap) in at_once.iter_mut().zip(self.credit).zip(caps) {
            if cap.is_finite() {
                *left = credit;
            }
        }
        for (n, (left, cap)) in own.iter_mut().zip(caps).enumerate() {
            let sums = self.parts.iter().filter_map(|part| part.2.get(n));
            *left = cap - sums.sum::<f64>();
        }
        for (left, (rest, until)) in provided.iter_mut().zip(self.rest) {
            if until > now {
                *left = rest;
            }
        }
        left
    }

    fn start(&self, owner: &str) -> f64 {
        self.turns
            .get(owner)
            .map_or(self.turn, |end| end.max(self.turn))
    }

    /// Counts amounts that are taken.
    fn add(&mut self, quota: &Quota, amounts: [f64; 3], now: u64) {
        if amounts == [0.0; 3] {
            return;
        }
        for ((rest, until), taken) in self
            .rest
            .iter_mut()
            .zip(need(amounts, NO_CAPS, NO_CAPS).into_iter().skip(3))
        {
            if *until > now {
                *rest -= taken;
            }
        }
        for ((credit, limit), taken) in self.credit.iter_mut().zip(quota.limits).zip(amounts) {
            if limit.is_finite() {
                *credit -= taken * UNITS;
            }
        }
        let part = self.parts.last_mut();
        match part.filter(|part| now - part.0 < micros(quota.per) / PARTS) {
            Some(Part(_, last, sums)) => {
                *last = now;
                for (sum, amount) in sums.iter_mut().zip(amounts) {
                    *sum += amount;
                }
            }
            None => self.parts.push(Part(now, now, amounts)),
        }
    }

    /// The time until `short` is there, in microseconds.
    fn wait(
        &self,
        quota: &Quota,
        caps: [f64; 3],
        short: impl Iterator<Item = f64>,
        now: u64,
    ) -> u64 {
        let short: Vec<_> = short.collect();
        let (own, rest) = short.split_at(3);
        let (provided, at_once) = rest.split_at(4);
        let mut at = self.closed;
        let mut freed = [0.0; 3];
        let is_short = |freed: &[f64; 3]| freed.iter().zip(own).any(|(freed, short)| freed < short);
        for part in &self.parts {
            if !is_short(&freed) {
                break;
            }
            at = at.max(part.1 + micros(quota.per).max(1));
            for (freed, sum) in freed.iter_mut().zip(part.2) {
                *freed += sum;
            }
        }
        // The rest is what calls take now.
        if is_short(&freed) {
            at = at.max(now + micros(quota.per).min(LONGEST_WAIT));
        }
        for (short, (_, until)) in provided.iter().zip(self.rest) {
            if *short > 0.0 {
                at = at.max(until);
            }
        }
        for (short, cap) in at_once.iter().zip(caps) {
            if *short > 0.0 && cap.is_finite() {
                let periods = (short / UNITS / cap).min(1e6);
                at = at.max(now + whole((periods * amount(micros(quota.per))).ceil()));
            }
        }
        at.saturating_sub(now).clamp(1_000, LONGEST_WAIT)
    }

    /// Sets the virtual time to the first turn of those that wait, and forgets the owners that are not later.
    fn end_turns(&mut self) {
        let starts = self.waiting.iter().map(|it| self.start(&it.owner));
        let first = starts.fold(f64::INFINITY, f64::min);
        let first = match first.is_finite() {
            true => first,
            // Without calls that wait, all owners begin anew.
            false => self.turns.values().copied().fold(self.turn, f64::max),
        };
        self.turn = self.turn.max(first);
        let turn = self.turn;
        self.turns.retain(|_, end| *end > turn);
        while self.turns.len() > MAX_WAITING {
            self.turns.pop_first();
        }
    }
}

/// The calls of a process that wait, without their names.
fn waiting_calls(rest: &[[u64; 3]]) -> Waiting {
    let calls = rest.len().min(MAX_WAITING_CALLS);
    let mut amounts = [0.0; 3];
    for call in rest.iter().take(calls) {
        for (sum, part) in amounts.iter_mut().zip(call) {
            *sum += amount(*part);
        }
    }
    Waiting {
        caller: Str::default(),
        owner: Str::default(),
        calls,
        amounts: amounts.map(|sum| (sum / amount(calls as u64)).ceil()),
        since: 0,
        until: 0,
    }
}

/// The entry that is served next.
fn next(entries: &[Entry<'_>], starts: &BTreeMap<&str, f64>) -> Option<usize> {
    let mut first: Option<(usize, f64, (usize, u64, &str))> = None;
    for (n, entry) in entries.iter().enumerate() {
        if entry.next().is_none() {
            continue;
        }
        let start = starts.get(entry.owner).copied().unwrap_or_default();
        // Of one owner, the processes are served in turns, in the same order whichever of them asks.
        let turn = (entry.done, entry.since, entry.caller);
        let is_before = first.is_none_or(|(_, least, least_turn)| {
            start < least || start <= least && turn < least_turn
        });
        if is_before {
            first = Some((n, start, turn));
        }
    }
    first.map(|(n, _, _)| n)
}

/// The largest share of the quota that a call takes.
fn cost(quota: &Quota, amounts: [f64; 3]) -> f64 {
    let shares = quota.limits.iter().zip(amounts);
    let shares = shares.filter(|(limit, amount)| limit.is_finite() && *amount > 0.0);
    let most = shares
        .map(|(limit, amount)| amount / limit)
        .fold(0.0, f64::max);
    (most * UNITS).ceil()
}

/// Exact up to 2^53, which is beyond all quotas.
#[allow(clippy::cast_precision_loss, reason = "see above")]
pub(super) const fn amount(tokens: u64) -> f64 {
    tokens as f64
}

/// A number that is neither negative nor beyond 2^53.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "see above"
)]
fn whole(number: f64) -> u64 {
    number.clamp(0.0, 9e15) as u64
}

fn signed(tokens: i64) -> f64 {
    let size = amount(tokens.unsigned_abs());
    if tokens < 0 { -size } else { size }
}
