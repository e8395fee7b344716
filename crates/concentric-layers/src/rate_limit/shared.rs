//! The use of a quota that processes share: a task for each bucket asks the store for the calls that wait, and returns
//! what calls have not used.

use super::bucket::{Amounts, Bucket, Inner, Turn, whole};
use crate::{
    shared::{OnAbort, Shared},
    shared_store::{random_id, within},
};
use concentric_core::{
    Context, Str,
    context::Environment,
    store::{QuotaChange, QuotaTaken, QuotaWant, StoreError, StoreFuture},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
    task::Waker,
    time::Duration,
};
use tokio::{runtime::Handle, sync::Notify};

/// The calls for which the store is asked at once.
pub(super) const MOST_CALLS: usize = 64;

/// The changes that are sent at once.
const MOST_CHANGES: usize = 256;

/// The time between two attempts to reach a store that has failed.
const PROBE: Duration = Duration::from_secs(1);

/// The number of such attempts while no call waits.
const IDLE_PROBES: u32 = 60;

/// The shortest time between two requests for calls that wait.
const PAUSE: Duration = Duration::from_millis(2);

/// The connection of a bucket with the store.
pub(super) struct Link {
    pub(super) shared: Shared,
    bucket: Str,
    caller: Str,
    environment: Environment,
    runtime: RwLock<Option<Handle>>,
    changed: Notify,
}

/// What a call has not used; negative amounts were used and not taken.
pub(super) struct Settled {
    pub(super) rest: Amounts,
    pub(super) began: Duration,
}

/// The part of a bucket that concerns the store.
#[derive(Default)]
pub(super) struct State {
    // Whether the task runs, and whether it sends changes at once.
    runs: bool,
    is_urgent: bool,
    changes: Vec<Change>,
    // Amounts that were taken ahead.
    pool: Option<Pool>,
    // What calls have taken in this batch, and in the one before.
    uses: [Amounts; 2],
    batch_since: Duration,
    // The next attempt to reach it, while it does not answer.
    out_until: Option<Duration>,
    // The attempts to reach it while no call waited.
    idle_probes: u32,
    // The first call that the store has not granted, and when it may.
    not_before: Option<(Turn, Duration)>,
    // The priority and the owners for which it was asked in vain, and whether others wait that it may serve at once.
    asked: Option<(u8, HashSet<Str>)>,
    has_others: bool,
}

struct Change {
    change: QuotaChange,
    // Its time, from which its age is counted.
    at: Duration,
}

struct Pool {
    left: Amounts,
    taken: Duration,
    until: Duration,
}

impl State {
    /// Whether the store does not answer.
    pub(super) const fn is_out(&self) -> bool {
        self.out_until.is_some()
    }

    /// Whether there is something to send, or to return.
    pub(super) const fn is_in_use(&self) -> bool {
        self.runs || self.pool.is_some() || self.out_until.is_some()
    }

    /// When the store may grant a call at the earliest, if it is known.
    pub(super) fn not_before(&self, turn: Turn) -> Option<Duration> {
        let (first, at) = self.not_before?;
        (turn >= first).then_some(at)
    }

    /// Records that a call waits.
    pub(super) fn joined(&mut self, (rank, ..): Turn, owner: &Str) {
        self.has_others |= self.asked.as_ref().is_none_or(|(asked, owners)| {
            rank < *asked || rank == *asked && !owners.contains(owner)
        });
    }

    /// Records that a call waits no longer.
    pub(super) fn left(&mut self, turn: Turn, owner: &Str) {
        // The next call may need less.
        self.not_before.take_if(|(first, _)| *first == turn);
        if let Some((_, owners)) = &mut self.asked {
            owners.remove(owner);
        }
    }

    /// Takes amounts that were taken ahead.
    pub(super) fn spend(&mut self, amounts: &Amounts, now: Duration) -> bool {
        let Some(pool) = self.pool.as_mut().filter(|pool| pool.until > now) else {
            return false;
        };
        let fits = pool
            .left
            .iter()
            .zip(amounts)
            .all(|(left, amount)| left >= amount);
        if fits {
            for (left, amount) in pool.left.iter_mut().zip(amounts) {
                *left -= amount;
            }
            self.count(amounts);
        }
        fits
    }

    fn count(&mut self, amounts: &Amounts) {
        let [current, _] = &mut self.uses;
        for (sum, amount) in current.iter_mut().zip(amounts) {
            *sum += amount;
        }
    }

    /// The amounts to take ahead: those that were used in the last batch.
    fn ahead(&mut self, batch: Duration, now: Duration) -> [u64; 3] {
        let passed = now.saturating_sub(self.batch_since);
        if passed >= batch {
            let [current, _] = self.uses;
            let last = if passed >= batch * 2 {
                [0.0; 3]
            } else {
                current
            };
            self.uses = [[0.0; 3], last];
            self.batch_since = now;
        }
        let [_, last] = self.uses;
        let [requests, ..] = last;
        // One at a time are not worth it.
        if batch.is_zero() || requests < 2.0 || self.pool.is_some() {
            return [0; 3];
        }
        last.map(|amount| whole(amount).unsigned_abs())
    }

    /// Ends the pool if its time is over, or `at_once`.
    fn end_pool(&mut self, now: Duration, at_once: bool) {
        let Some(pool) = self.pool.take_if(|pool| at_once || pool.until <= now) else {
            return;
        };
        let amounts = pool.left.map(whole);
        if amounts != [0; 3] {
            let age = Duration::ZERO;
            let change = QuotaChange::Unused { amounts, age };
            let at = pool.taken;
            self.changes.push(Change { change, at });
        }
    }
}

impl Link {
    pub(super) fn new(shared: &Shared, key: Option<&Str>, context: &Context) -> Self {
        let environment = context.environment().clone();
        let bucket = match key {
            None => shared.name.clone(),
            // A key chooses no other name than one of its own.
            Some(key) => {
                let key = key.replace('%', "%25").replace('/', "%2F");
                format!("{}//{key}", shared.name).into()
            }
        };
        Self {
            shared: shared.clone(),
            bucket,
            caller: random_id(&shared.environment),
            environment,
            runtime: RwLock::new(Handle::try_current().ok()),
            changed: Notify::new(),
        }
    }

    fn now(&self) -> Duration {
        self.environment.clock().monotonic()
    }

    /// Asks the store for the calls that wait.
    pub(super) fn start(&self, bucket: &Arc<Bucket>) {
        let Some(runtime) = self.runtime() else {
            tracing::error!("a shared quota needs a tokio runtime: its store is not asked");
            return;
        };
        let runs = bucket.with(|inner, _| std::mem::replace(&mut inner.shared.runs, true));
        match runs {
            true => self.changed.notify_one(),
            false => {
                let aborted = Arc::clone(bucket);
                // The next call starts another one.
                let task = OnAbort::new(move || aborted.with(|inner, _| inner.shared.runs = false));
                drop(runtime.spawn(work(Arc::clone(bucket), task)));
            }
        }
    }

    /// The runtime of the calls, also where a body is dropped outside of it.
    fn runtime(&self) -> Option<Handle> {
        if let Ok(current) = Handle::try_current() {
            let mut own = self.runtime.write().unwrap_or_else(PoisonError::into_inner);
            *own = Some(current);
        }
        let own = self.runtime.read().unwrap_or_else(PoisonError::into_inner);
        own.clone()
    }

    /// Sends a change, at the latest after the time of a batch.
    pub(super) fn record(
        &self,
        bucket: &Arc<Bucket>,
        change: QuotaChange,
        now: Duration,
        is_urgent: bool,
    ) {
        bucket.with(|inner, _| {
            let shared = &mut inner.shared;
            if shared.is_out() && shared.changes.len() >= MOST_CHANGES {
                return;
            }
            if let QuotaChange::Remaining(_) = change {
                // The newest report replaces earlier ones.
                let is_report = |it: &Change| matches!(it.change, QuotaChange::Remaining(_));
                shared.changes.retain(|it| !is_report(it));
            }
            if let QuotaChange::Rejected { .. } = change {
                shared.end_pool(now, true);
            }
            shared.changes.push(Change { change, at: now });
            shared.is_urgent |= is_urgent || shared.changes.len() >= MOST_CHANGES;
        });
        self.start(bucket);
    }

    /// Returns what a call has not used.
    pub(super) fn settle(&self, bucket: &Arc<Bucket>, settled: &Settled, now: Duration) {
        let mut amounts = settled.rest.map(whole);
        for (amount, limit) in amounts.iter_mut().zip(bucket.quota().limits()) {
            if limit.is_infinite() {
                *amount = 0;
            }
        }
        if amounts != [0; 3] {
            let age = now.saturating_sub(settled.began);
            let change = QuotaChange::Unused { amounts, age };
            self.record(bucket, change, now, false);
        }
    }

    /// The result of a request; `None` after the patience with the store.
    async fn ask<T>(&self, request: StoreFuture<T>) -> Result<T, StoreError> {
        let late = self.environment.clock().sleep(self.shared.patience);
        match within(late, request).await {
            Some(answer) => answer,
            None => Err(StoreError::failed("the store did not answer in time")),
        }
    }
}

/// What the task does next.
enum Next {
    Record(Vec<QuotaChange>),
    Take(Vec<Vec<Turn>>, Vec<QuotaWant>, [u64; 3]),
    Wait(Duration),
    End,
}

/// Serves the calls of a bucket until there are none.
async fn work(bucket: Arc<Bucket>, task: OnAbort<impl FnOnce()>) {
    let Some(link) = bucket.link() else {
        return;
    };
    // When the store may grant the first call.
    let mut due = Duration::ZERO;
    loop {
        let now = link.now();
        let next = bucket.with(|inner, _| {
            if std::mem::take(&mut inner.shared.has_others) {
                due = now;
            }
            next(inner, link, now, due)
        });
        match next {
            Next::End => return task.end(),
            Next::Wait(time) => {
                within(
                    link.environment.clock().sleep(time),
                    link.changed.notified(),
                )
                .await;
            }
            Next::Record(changes) => {
                let name = link.bucket.clone();
                let request = link.shared.store.record(name, *bucket.quota(), changes);
                let recorded = link.ask(request).await;
                // The changes of an outage are lost: amounts that were not used count until their period is over.
                let wakers = bucket.with(|inner, _| answered(inner, link, &recorded));
                wakers.into_iter().for_each(Waker::wake);
            }
            Next::Take(turns, wants, ahead) => {
                let name = link.bucket.clone();
                let caller = link.caller.clone();
                let store = &link.shared.store;
                let asked = wants.clone();
                let taken = link
                    .ask(store.take(name, *bucket.quota(), caller, asked, ahead))
                    .await;
                let now = link.now();
                let wakers = bucket.with(|inner, _| {
                    let mut wakers = answered(inner, link, &taken);
                    if let Ok(taken) = &taken {
                        due = match taken.wait.is_zero() {
                            true => now,
                            false => now.saturating_add(taken.wait.max(PAUSE)),
                        };
                        let asked = turns.iter().zip(&wants);
                        wakers.extend(grant(inner, link, asked, taken, ahead, now));
                    }
                    wakers
                });
                wakers.into_iter().for_each(Waker::wake);
            }
        }
    }
}

fn next(inner: &mut Inner, link: &Link, now: Duration, due: Duration) -> Next {
    let shared = &mut inner.shared;
    shared.end_pool(now, false);
    let is_waiting = inner.queue.values().any(|it| !it.is_granted);
    if is_waiting || shared.out_until.is_none() {
        shared.idle_probes = 0;
    }
    if shared.idle_probes >= IDLE_PROBES {
        // The next call asks the store again.
        *shared = State::default();
        return Next::End;
    }
    if let Some(until) = shared.out_until
        && until > now
    {
        return Next::Wait((until - now).max(Duration::from_millis(1)));
    }
    let was_out = shared.is_out();
    shared.idle_probes += u32::from(was_out);
    let flushes = shared.is_urgent || shared.changes.len() >= MOST_CHANGES;
    let oldest = shared.changes.iter().map(|it| it.at).min();
    let flush_at = oldest.map(|at| at.saturating_add(link.shared.batch));
    if was_out || !shared.changes.is_empty() && (flushes || flush_at.is_some_and(|at| at <= now)) {
        shared.is_urgent = false;
        let few = shared.changes.len().min(MOST_CHANGES);
        let changes = shared.changes.drain(..few);
        return Next::Record(changes.map(|it| aged(&it, now)).collect());
    }
    if is_waiting && due <= now && !inner.is_closed(now) {
        let ahead = inner.shared.ahead(link.shared.batch, now);
        let (turns, wants) = wants(inner);
        return Next::Take(turns, wants, ahead);
    }
    let pool = inner.shared.pool.as_ref().map(|pool| pool.until);
    let take_at = is_waiting.then(|| due.max(inner.closed_until()));
    match [flush_at, pool, take_at].into_iter().flatten().min() {
        Some(at) => Next::Wait(at.saturating_sub(now).max(Duration::from_micros(500))),
        None => {
            inner.shared.runs = false;
            Next::End
        }
    }
}

fn aged(it: &Change, now: Duration) -> QuotaChange {
    let passed = now.saturating_sub(it.at);
    match it.change {
        QuotaChange::Unused { amounts, age } => QuotaChange::Unused {
            amounts,
            age: age.saturating_add(passed),
        },
        QuotaChange::Rejected { retry_after, age } => QuotaChange::Rejected {
            retry_after: retry_after.saturating_sub(passed),
            age: age.saturating_add(passed),
        },
        other => other,
    }
}

/// The first calls of the first priority that wait, by their owners: as many of each, since the store knows whose turn it
/// is.
fn wants(inner: &Inner) -> (Vec<Vec<Turn>>, Vec<QuotaWant>) {
    let waiting = || {
        let all = inner.queue.iter().filter(|(_, it)| !it.is_granted);
        let first = all.clone().next().map(|(turn, _)| turn.0);
        all.take_while(move |(turn, _)| Some(turn.0) == first)
    };
    let owners: HashSet<_> = waiting().map(|(_, it)| &it.owner).collect();
    let most = (MOST_CALLS / owners.len().max(1)).max(1);
    let mut places: HashMap<&Str, usize> = HashMap::new();
    let (mut turns, mut wants): (Vec<Vec<Turn>>, Vec<QuotaWant>) = Default::default();
    for (turn, waiter) in waiting() {
        let at = *places.entry(&waiter.owner).or_insert(wants.len());
        if at == wants.len() && at < MOST_CALLS {
            turns.push(Vec::new());
            wants.push(QuotaWant::new(waiter.owner.clone(), Vec::new()));
        }
        if let (Some(turns), Some(want)) = (turns.get_mut(at), wants.get_mut(at))
            && turns.len() < most
        {
            turns.push(*turn);
            let amounts = waiter.amounts.map(f64::ceil);
            want.calls.push(amounts.map(|it| whole(it).unsigned_abs()));
        }
    }
    (turns, wants)
}

/// Records whether the store has answered; returns the calls to wake if that has changed.
fn answered<T>(inner: &mut Inner, link: &Link, answer: &Result<T, StoreError>) -> Vec<Waker> {
    let was_out = inner.shared.out_until.is_some();
    let now = link.now();
    inner.shared.out_until = match answer {
        Ok(_) => None,
        Err(error) => {
            let error: &dyn std::error::Error = error;
            let cause = error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string);
            link.shared.failed(&cause, now);
            inner.shared.not_before = None;
            Some(now.saturating_add(PROBE))
        }
    };
    match was_out || inner.shared.out_until.is_some() {
        true => inner
            .queue
            .values()
            .filter_map(|it| it.waker.clone())
            .collect(),
        false => Vec::new(),
    }
}

/// Lets calls begin; returns those to wake.
fn grant<'a>(
    inner: &mut Inner,
    link: &Link,
    asked: impl Iterator<Item = (&'a Vec<Turn>, &'a QuotaWant)>,
    taken: &QuotaTaken,
    ahead: [u64; 3],
    now: Duration,
) -> Vec<Waker> {
    let mut wakers = Vec::new();
    let mut first: Option<Turn> = None;
    let mut in_vain: Option<(u8, HashSet<Str>)> = None;
    let mut served = HashSet::new();
    for ((turns, want), granted) in asked.zip(&taken.granted) {
        match turns.get(*granted) {
            Some((rank, ..)) => {
                let (_, owners) = in_vain.get_or_insert_with(|| (*rank, HashSet::new()));
                owners.insert(want.owner.clone());
            }
            None => drop(served.insert(&want.owner)),
        }
        for (n, (turn, call)) in turns.iter().zip(&want.calls).enumerate() {
            if n >= *granted {
                first = Some(first.map_or(*turn, |first| first.min(*turn)));
                break;
            }
            match inner.queue.get_mut(turn) {
                Some(waiter) => {
                    waiter.is_granted = true;
                    wakers.extend(waiter.waker.clone());
                    let amounts = waiter.amounts;
                    inner.shared.count(&amounts);
                }
                // It was dropped in the meantime.
                None => {
                    let amounts = call.map(|it| i64::try_from(it).unwrap_or(i64::MAX));
                    let age = Duration::ZERO;
                    let change = QuotaChange::Unused { amounts, age };
                    inner.shared.changes.push(Change { change, at: now });
                }
            }
        }
    }
    // Those that have more calls than the store was asked for.
    let mut waiting = inner.queue.values().filter(|it| !it.is_granted);
    inner.shared.has_others |= waiting.any(|it| served.contains(&it.owner));
    inner.shared.asked = in_vain;
    inner.shared.not_before = first.map(|first| (first, now.saturating_add(taken.wait)));
    if taken.ahead {
        inner.shared.pool = Some(Pool {
            left: ahead.map(super::bucket::amount),
            taken: now,
            until: now.saturating_add(link.shared.batch),
        });
    }
    // Those that may not wait as long fail.
    let fails = inner
        .queue
        .iter()
        .filter(|(turn, it)| !it.is_granted && inner.not_before(**turn) > it.until);
    wakers.extend(fails.filter_map(|(_, it)| it.waker.clone()));
    wakers
}
