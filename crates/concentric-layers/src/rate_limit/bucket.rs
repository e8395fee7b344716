use super::{
    OVER_QUOTA, Quota, RATE_LIMITED,
    recent::Recent,
    shared::{Link, MOST_CALLS, Settled},
};
use crate::{
    local::{LOCAL, NOT_CONNECTED},
    shared::{OnOutage, Shared},
    tokens::BYTES,
    wait::Stop,
};
use concentric_core::{
    Allowance, Context, Error, ErrorKind, RateLimits, Str, Usage,
    context::Sleep,
    store::{QuotaChange, Tenant},
};
use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

/// The limited amounts: requests, input tokens, output tokens.
pub(super) type Amounts = [f64; 3];

/// The number of keys that have a bucket of their own. Further keys share one.
const MAX_KEYS: usize = 10_000;

/// The time between two searches for buckets that can be removed.
const SWEEP: Duration = Duration::from_secs(1);

/// The least share of a quota that is left after rejected requests.
const LEAST: f64 = 1.0 / 64.0;

/// The share of a quota by which it recovers in a period.
const RECOVERY: f64 = 0.1;

/// The number of answers whose output is kept.
const ANSWERS: usize = 64;

/// The buckets of a layer.
#[derive(Default)]
pub(super) struct Buckets(Mutex<ByKey>);

#[derive(Default)]
struct ByKey {
    buckets: HashMap<Str, Arc<Bucket>>,
    // When buckets were removed last.
    swept: Option<Duration>,
}

/// The quota of a key, and the calls that wait for it.
pub(super) struct Bucket {
    quota: Quota,
    // The part of the quota that this process applies by itself: all of it, unless it is shared.
    local: Quota,
    link: Option<Link>,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    // The time of the last refill, by the clock of the run.
    at: Duration,
    // Negative if more was used than reserved.
    left: Amounts,
    recent: Recent,
    // The share of the quota in effect: less than 1 after the provider rejected requests.
    share: f64,
    // When the share was halved last.
    halved: Option<Duration>,
    // No call may begin before.
    closed_until: Duration,
    // The provider's remaining requests, tokens, input tokens and output tokens.
    provider: [Provided; 4],
    // The amounts of the calls that the provider has not answered, by their order.
    unanswered: BTreeMap<u64, Amounts>,
    calls: u64,
    // The calls that wait, in the order in which they are served.
    pub(super) queue: BTreeMap<Turn, Waiter>,
    turns: u64,
    // The last turn that was served, and the last one of each owner that waits.
    round: u64,
    rounds: HashMap<Str, u64>,
    pub(super) shared: super::shared::State,
    // The output tokens of the last answers, and the place of the next one.
    outputs: Vec<f64>,
    next_output: usize,
}

/// The rest of an amount that the provider grants until a time.
#[derive(Clone, Copy, Default)]
struct Provided {
    left: f64,
    until: Duration,
}

/// The place of a call in the queue: by priority, then in turns of the owners, and then by arrival.
pub(super) type Turn = (u8, u64, u64);

/// A call that waits.
pub(super) struct Waiter {
    pub(super) waker: Option<Waker>,
    pub(super) owner: Str,
    pub(super) amounts: Amounts,
    /// How long it may wait.
    pub(super) until: Duration,
    /// Whether the store has granted its amounts.
    pub(super) is_granted: bool,
}

impl Buckets {
    /// Returns the bucket of `key`, or that of all calls if the layer has no keys.
    pub(super) fn get(
        &self,
        key: Option<Str>,
        quota: impl Fn(&Str) -> Quota,
        shared: Option<&Shared>,
        context: &Context,
    ) -> Arc<Bucket> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_keys = key.is_some();
        let key = key.unwrap_or_default();
        if let Some(bucket) = lock().buckets.get(&key) {
            return Arc::clone(bucket);
        }
        // Not under the lock, since it is code of the application.
        let of_key = quota(&key);
        let mut by_key = lock();
        let ByKey { buckets, swept } = &mut *by_key;
        let now = now(context);
        let is_due = swept.is_none_or(|swept| now >= swept.saturating_add(SWEEP));
        if buckets.len() >= MAX_KEYS && is_due {
            *swept = Some(now);
            // A full bucket that no call uses is the same as a new one, but for what its answers had.
            buckets.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_full(now));
        }
        if buckets.len() >= MAX_KEYS && !key.is_empty() && !buckets.contains_key(&key) {
            drop(by_key);
            return self.get(Some(Str::default()), quota, shared, context);
        }
        let bucket = buckets.entry(key).or_insert_with_key(|key| {
            let link = shared.map(|it| Link::new(it, has_keys.then_some(key), context));
            Arc::new(Bucket::new(of_key, link, now))
        });
        Arc::clone(bucket)
    }
}

impl Bucket {
    fn new(quota: Quota, link: Option<Link>, now: Duration) -> Self {
        let share = link.as_ref().map(|link| link.shared.local_share());
        let local = share.map_or(quota, |share| quota.share(share));
        Self {
            inner: Mutex::new(Inner {
                at: now,
                left: local.limits(),
                recent: Recent::default(),
                share: 1.0,
                halved: None,
                closed_until: Duration::ZERO,
                provider: [Provided::default(); 4],
                unanswered: BTreeMap::new(),
                calls: 0,
                queue: BTreeMap::new(),
                turns: 0,
                round: 0,
                rounds: HashMap::new(),
                shared: super::shared::State::default(),
                outputs: Vec::new(),
                next_output: 0,
            }),
            quota,
            local,
            link,
        }
    }

    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Inner, &Quota) -> R) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut inner, &self.local)
    }

    pub(super) const fn quota(&self) -> &Quota {
        &self.quota
    }

    pub(super) const fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    fn is_full(&self, now: Duration) -> bool {
        self.with(|inner, quota| {
            inner.refill(quota, now);
            let is_open = inner.closed_until <= now && inner.queue.is_empty();
            let is_provided = inner.provider.iter().all(|it| it.until <= now);
            let is_unused = inner.left == quota.limits() && inner.recent.is_empty();
            let is_idle = !inner.shared.is_in_use();
            is_open && is_provided && is_unused && is_idle && inner.share >= 1.0
        })
    }

    /// The output tokens that at most one of 20 answers exceeds, within the quota of a period; `None` before
    /// the first answer.
    pub(super) fn usual_output(&self) -> Option<f64> {
        self.with(|inner, _| {
            let mut outputs = inner.outputs.clone();
            let rank = (outputs.len() * 95).div_ceil(100).checked_sub(1)?;
            let (_, usual, _) = outputs.select_nth_unstable_by(rank, f64::total_cmp);
            let [_, _, limit] = self.quota.limits();
            Some(usual.min(limit))
        })
    }

    fn add_output(&self, tokens: u64) {
        self.with(|inner, _| {
            let next = inner.next_output;
            match inner.outputs.get_mut(next) {
                Some(oldest) => *oldest = amount(tokens),
                None => inner.outputs.push(amount(tokens)),
            }
            inner.next_output = (next + 1) % ANSWERS;
        });
    }

    /// Returns `amounts` of a call that began at `began`; negative ones are taken.
    fn give_back(&self, amounts: Amounts, began: Duration, now: Duration) {
        let first = self.with(|inner, quota| {
            inner.refill(quota, now);
            inner.recent.give_back(&amounts, began);
            for (left, amount) in inner.left.iter_mut().zip(amounts) {
                *left += amount;
            }
            inner.cap(quota);
            inner.first()
        });
        wake(first);
    }

    /// Records the provider's remaining amounts, which came with the answer to `call`.
    fn follow(self: &Arc<Self>, limits: &RateLimits, call: u64, context: &Context) {
        let (now, wall) = (now(context), context.now());
        let amounts = [
            limits.requests,
            limits.tokens,
            limits.input_tokens,
            limits.output_tokens,
        ];
        let mut reported = [None; 4];
        let first = self.with(|inner, _| {
            // The provider may not have received the later ones when it answered.
            let mut later = [0.0; 4];
            for (_, amounts) in inner.unanswered.range(call + 1..) {
                for (later, amount) in later.iter_mut().zip(provided(amounts)) {
                    *later += amount;
                }
            }
            let provided = inner.provider.iter_mut().zip(later);
            let each = provided.zip(amounts).zip(&mut reported);
            for (((provided, later), allowance), reported) in each {
                if let Allowance {
                    remaining: Some(remaining),
                    reset: Some(reset),
                    ..
                } = allowance
                {
                    let after = reset.duration_since(wall).unwrap_or_default();
                    let after = after.min(QuotaChange::LONGEST_RESET);
                    let left = amount(remaining) - later;
                    *reported = Some((whole(left), after));
                    *provided = Provided {
                        left,
                        until: now.saturating_add(after),
                    };
                }
            }
            inner.first()
        });
        wake(first);
        if let Some(link) = &self.link
            && reported.iter().any(Option::is_some)
        {
            // A call of another process would fail otherwise.
            let is_urgent = reported.iter().flatten().any(|(left, _)| *left < 1);
            let change = QuotaChange::Remaining(reported);
            link.record(self, change, now, is_urgent);
        }
    }

    /// Records that the provider did not receive a call.
    fn not_sent(&self, amounts: &Amounts) {
        self.with(|inner, _| {
            for (provided, amount) in inner.provider.iter_mut().zip(provided(amounts)) {
                provided.left += amount;
            }
        });
    }

    /// Records that the provider rejected a call that began at `began`.
    fn rejected(self: &Arc<Self>, error: &Error, began: Duration, context: &Context) {
        let now = now(context);
        if let Some(link) = &self.link {
            let retry_after = error.retry_after().unwrap_or_default();
            let age = now.saturating_sub(began);
            let change = QuotaChange::Rejected { retry_after, age };
            link.record(self, change, now, true);
        }
        self.with(|inner, quota| {
            inner.refill(quota, now);
            if let Some(after) = error.retry_after() {
                let after = after.min(QuotaChange::LONGEST_RESET);
                inner.closed_until = inner.closed_until.max(now.saturating_add(after));
            }
            // Calls that were under way together are rejected together.
            if inner.halved.is_none_or(|halved| began >= halved) {
                inner.halved = Some(now);
                inner.share = (inner.share / 2.0).max(LEAST);
                inner.cap(quota);
            }
        });
    }

    /// The error for a call that may not wait for `amounts`.
    fn limited(&self, amounts: &Amounts, context: &Context, why: &str) -> Error {
        let now = now(context);
        let wait = self.with(|inner, quota| {
            inner.refill(quota, now);
            inner.wait(quota, amounts, now)
        });
        // That of the shared quota is not known.
        let wait = match &self.link {
            Some(_) => wait.max(Duration::from_secs(1)),
            None => wait,
        };
        let message = format!("the quota of model calls is used up: {why}");
        Error::new(ErrorKind::RateLimited, message)
            .with_code(RATE_LIMITED)
            .with_retry_after(wait)
    }
}

impl Inner {
    fn refill(&mut self, quota: &Quota, now: Duration) {
        let periods = now.saturating_sub(self.at).as_secs_f64() / quota.period().as_secs_f64();
        self.at = self.at.max(now);
        self.recent.expire(quota, now);
        // The share grows evenly up to 1; the area below it is added.
        let growing = (1.0 - self.share) / RECOVERY;
        let (growing, grown) = match periods < growing {
            true => (periods, self.share + periods * RECOVERY),
            false => (growing, 1.0),
        };
        let added = f64::midpoint(self.share, grown) * growing + (periods - growing);
        self.share = grown;
        for (left, limit) in self.left.iter_mut().zip(quota.limits()) {
            if limit.is_finite() {
                *left += added * limit;
            }
        }
        self.cap(quota);
    }

    fn cap(&mut self, quota: &Quota) {
        for (left, limit) in self.left.iter_mut().zip(quota.limits()) {
            *left = left.min(limit * self.share);
        }
    }

    /// The time after which `amounts` may be there.
    fn wait(&self, quota: &Quota, amounts: &Amounts, now: Duration) -> Duration {
        let mut wait = self.closed_until.saturating_sub(now);
        wait = wait.max(self.recent.wait(quota, amounts, now));
        for ((left, limit), amount) in self.left.iter().zip(quota.limits()).zip(amounts) {
            // A call that needs more than the bucket holds for now takes all of it, and the rest later.
            let missing = amount.min(limit * self.share) - left;
            if missing > 0.0 && limit.is_finite() {
                let seconds = missing / (limit * self.share) * quota.period().as_secs_f64();
                // Rounded up, so that the wait is not repeated for a rest.
                let seconds = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
                wait = wait.max(seconds.saturating_add(Duration::from_nanos(1)));
            }
        }
        for (provided, amount) in self.provider.iter().zip(provided(amounts)) {
            if provided.left < amount {
                wait = wait.max(provided.until.saturating_sub(now));
            }
        }
        wait
    }

    /// Takes `amounts` for a call and returns its number, or the time after which they may be there.
    fn take(&mut self, quota: &Quota, amounts: &Amounts, now: Duration) -> Result<u64, Duration> {
        self.refill(quota, now);
        let wait = self.wait(quota, amounts, now);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        for (left, amount) in self.left.iter_mut().zip(amounts) {
            *left -= amount;
        }
        for (provided, amount) in self.provider.iter_mut().zip(provided(amounts)) {
            provided.left -= amount;
        }
        self.recent.add(quota, amounts, now);
        Ok(self.begin(amounts))
    }

    /// Counts a call that begins, and returns its number.
    fn begin(&mut self, amounts: &Amounts) -> u64 {
        self.calls += 1;
        self.unanswered.insert(self.calls, *amounts);
        self.calls
    }

    /// The place of a new call of an owner.
    fn turn(&mut self, rank: u8, owner: &Str) -> Turn {
        if self.queue.is_empty() {
            self.rounds.clear();
        }
        if self.rounds.len() >= MAX_KEYS {
            let round = self.round;
            self.rounds.retain(|_, last| *last > round);
        }
        let last = self.rounds.get(owner).copied();
        let round = last.map_or(self.round, |last| (last + 1).max(self.round));
        self.rounds.insert(owner.clone(), round);
        self.turns += 1;
        (rank, round, self.turns)
    }

    /// When a shared quota may have what a call needs, at the earliest.
    pub(super) fn not_before(&self, turn: Turn) -> Duration {
        let granted = self.shared.not_before(turn).unwrap_or_default();
        self.closed_until.max(granted)
    }

    pub(super) const fn closed_until(&self) -> Duration {
        self.closed_until
    }

    pub(super) fn is_closed(&self, now: Duration) -> bool {
        self.closed_until > now
    }

    /// The waker of the call that is served next.
    pub(super) fn first(&self) -> Option<Waker> {
        self.queue.first_key_value()?.1.waker.clone()
    }
}

/// The amounts that a provider limits.
fn provided(&[requests, input, output]: &Amounts) -> [f64; 4] {
    [requests, input + output, input, output]
}

pub(super) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The amounts that a call has taken; settled on drop.
pub(super) struct Reservation {
    bucket: Arc<Bucket>,
    context: Context,
    call: u64,
    began: Duration,
    taken: Amounts,
    used: Amounts,
    follows: bool,
    ignores_cached: bool,
    counts_output: bool,
    source: Source,
}

/// Where amounts were taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Local,
    Shared,
    /// Nowhere, in an outage.
    None,
}

/// A call to be admitted.
#[derive(Clone)]
pub(super) struct Demand {
    pub(super) bucket: Arc<Bucket>,
    pub(super) context: Context,
    pub(super) amounts: Amounts,
    /// Calls with a smaller number are served first.
    pub(super) rank: u8,
    /// How long the call may wait, and behind how many others.
    pub(super) wait: Duration,
    pub(super) queue: usize,
    /// Whether the provider's rate limits are followed.
    pub(super) follows: bool,
    /// Whether input that the provider read from its cache is free.
    pub(super) ignores_cached: bool,
    /// The most output tokens that the answer can have.
    pub(super) most_output: f64,
}

impl Demand {
    /// Takes the amounts if no other call is served before.
    ///
    /// # Errors
    ///
    /// The amounts exceed the quota of a period.
    pub(super) fn try_take(&self) -> Result<Option<Reservation>, Error> {
        let now = now(&self.context);
        let limits = self.bucket.quota.limits().into_iter();
        if self
            .amounts
            .iter()
            .zip(limits)
            .any(|(amount, limit)| *amount > limit)
        {
            let message = "the call needs more than the quota of a whole period";
            return Err(Error::new(ErrorKind::TooLarge, message).with_code(OVER_QUOTA));
        }
        let call = self.bucket.with(|inner, quota| {
            let first = inner.queue.first_key_value();
            let is_first = first.is_none_or(|((rank, _, _), _)| *rank > self.rank);
            let call = is_first.then(|| self.take_in(inner, quota, now));
            call.and_then(|taken| taken?.ok())
        });
        Ok(call.map(|(call, source)| self.reservation(call, now, source)))
    }

    /// Takes the amounts for the first call of the queue, or returns the time after which they may be there; `None` if
    /// the shared quota must be asked.
    fn take_in(
        &self,
        inner: &mut Inner,
        quota: &Quota,
        now: Duration,
    ) -> Option<Result<(u64, Source), Duration>> {
        let Some(link) = self.bucket.link() else {
            let taken = inner.take(quota, &self.amounts, now);
            return Some(taken.map(|call| (call, Source::Local)));
        };
        if inner.shared.is_out() {
            return match link.shared.on_outage {
                OnOutage::LocalShare(_) => {
                    let taken = inner.take(quota, &self.amounts, now);
                    Some(taken.map(|call| (call, Source::Local)))
                }
                OnOutage::Allow => Some(Ok((inner.begin(&self.amounts), Source::None))),
                OnOutage::Refuse => Some(Err(Duration::MAX)),
            };
        }
        let is_there = !inner.is_closed(now) && inner.shared.spend(&self.amounts, now);
        is_there.then(|| Ok((inner.begin(&self.amounts), Source::Shared)))
    }

    fn reservation(&self, call: u64, began: Duration, source: Source) -> Reservation {
        Reservation {
            bucket: Arc::clone(&self.bucket),
            context: self.context.clone(),
            call,
            began,
            source,
            taken: self.amounts,
            used: self.amounts,
            follows: self.follows,
            ignores_cached: self.ignores_cached,
            counts_output: {
                let [_, _, limit] = self.bucket.quota.limits();
                let [_, _, estimate] = self.amounts;
                limit.is_finite() && estimate < self.most_output
            },
        }
    }

    /// Waits for the amounts.
    pub(super) async fn take(self) -> Result<Reservation, Error> {
        let (bucket, context, amounts) = (&*self.bucket, &self.context, &self.amounts);
        let limited = |why| Err(bucket.limited(amounts, context, why));
        let started = now(context);
        let mut left = context.remaining().unwrap_or(Duration::MAX);
        left = match bucket.link() {
            // It is asked at least once.
            Some(link) => left.min(self.wait.max(link.shared.patience)),
            None => left.min(self.wait),
        };
        let Some(mut place) = Place::join(&self, started) else {
            return limited("too many calls wait for it");
        };
        let clock = context.environment().clock();
        let mut refill: Option<Sleep> = None;
        let mut stop = Stop::new(context);
        let mut late = clock.sleep(left);
        let taken = poll_fn(|cx| {
            loop {
                match place.take(now(context), cx.waker()) {
                    None => refill = None,
                    Some(Ok(call)) => return Poll::Ready(Ok(Some(call))),
                    // In an outage.
                    Some(Err(Duration::MAX)) => return Poll::Ready(Ok(None)),
                    Some(Err(wait)) => {
                        let waited = now(context).saturating_sub(started);
                        if wait > left.saturating_sub(waited) {
                            return Poll::Ready(Ok(None));
                        }
                        let refill = refill.insert(clock.sleep(wait));
                        if refill.as_mut().poll(cx).is_ready() {
                            continue;
                        }
                    }
                }
                // Before the deadline of the run, which gives no time for another attempt.
                if late.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(None));
                }
                return stop.poll("a quota", cx).map(Err);
            }
        })
        .await?;
        match taken {
            Some((call, source)) => Ok(self.reservation(call, now(context), source)),
            None => limited("it is used up for longer than calls may wait"),
        }
    }
}

impl Reservation {
    /// Whether the received text must be [counted](Self::received): the answer may exceed the estimate.
    pub(super) fn counts_output(&self) -> bool {
        self.counts_output
    }

    /// Records the rate limits that came with an answer.
    pub(super) fn answered(&self, limits: Option<&RateLimits>) {
        self.bucket
            .with(|inner, _| inner.unanswered.remove(&self.call));
        if let Some(limits) = limits
            && self.follows
        {
            self.bucket.follow(limits, self.call, &self.context);
        }
    }

    /// Records the usage that the provider reported.
    pub(super) fn used(&mut self, usage: Usage) {
        let cached = match self.ignores_cached {
            true => usage.cached_input_tokens().unwrap_or(0),
            false => 0,
        };
        let input = usage.input_tokens().map(|it| it.saturating_sub(cached));
        let output = usage.output_tokens();
        if let Some(output) = output {
            self.bucket.add_output(output);
        }
        let tokens = [input, output];
        for (used, tokens) in self.used.iter_mut().skip(1).zip(tokens) {
            if let Some(tokens) = tokens {
                *used = amount(tokens);
            }
        }
    }

    /// Records the number of bytes of received text, for an answer without a reported usage.
    pub(super) fn received(&mut self, bytes: u64) {
        let [_, _, output] = &mut self.used;
        *output = output.max(amount(bytes / BYTES));
    }

    /// Records a failure before the answer.
    pub(super) fn failed(&mut self, error: &Error) {
        let was_sent = error.status().is_some();
        let was_not_sent = !was_sent && is_local(error);
        if was_sent || was_not_sent {
            self.used = [f64::from(u8::from(was_sent)), 0.0, 0.0];
        }
        if was_not_sent {
            self.bucket.not_sent(&self.taken);
        }
        self.answered(error.rate_limits());
        self.broke_off(error);
    }

    /// Records a failure.
    pub(super) fn broke_off(&self, error: &Error) {
        let is_local = error.code() == Some(RATE_LIMITED);
        if self.follows && error.kind() == ErrorKind::RateLimited && !is_local {
            self.bucket.rejected(error, self.began, &self.context);
        }
    }
}

/// Whether an error without a status is one of a call that no provider received: it found no connection, or
/// a layer or an adapter inside rejected it.
fn is_local(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Configuration => true,
        // A provider may report one within an answer.
        ErrorKind::InvalidRequest => error.provider().is_none(),
        _ => error
            .code()
            .is_some_and(|code| code == NOT_CONNECTED || LOCAL.contains(&code)),
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.bucket
            .with(|inner, _| inner.unanswered.remove(&self.call));
        let [requests, input, output] = self.taken;
        let [used_requests, used_input, used_output] = self.used;
        let rest = [
            requests - used_requests,
            input - used_input,
            output - used_output,
        ];
        let now = now(&self.context);
        match self.source {
            Source::Local => self.bucket.give_back(rest, self.began, now),
            Source::Shared => {
                if let Some(link) = self.bucket.link() {
                    let settled = Settled {
                        rest,
                        began: self.began,
                    };
                    link.settle(&self.bucket, &settled, now);
                }
            }
            Source::None => {}
        }
    }
}

/// A place in the queue of waiting calls; given up on drop.
struct Place<'a> {
    demand: &'a Demand,
    turn: Turn,
    // Whether the call has begun.
    is_taken: bool,
}

impl<'a> Place<'a> {
    /// `None` if enough calls wait already.
    fn join(demand: &'a Demand, now: Duration) -> Option<Self> {
        let bucket = &demand.bucket;
        let owner = Tenant::of(&demand.context).0;
        let wait = demand.context.remaining().unwrap_or(Duration::MAX);
        let wait = wait.min(demand.wait);
        // The store is asked while a call waits for it.
        let queue = match bucket.link() {
            Some(_) => demand.queue.max(MOST_CALLS),
            None => demand.queue,
        };
        let place = bucket.with(|inner, _| {
            if inner.queue.len() >= queue {
                return None;
            }
            let turn = inner.turn(demand.rank, &owner);
            let waiter = Waiter {
                waker: None,
                owner,
                amounts: demand.amounts,
                until: now.saturating_add(wait),
                is_granted: false,
            };
            inner.shared.joined(turn, &waiter.owner);
            inner.queue.insert(turn, waiter);
            Some(Self {
                demand,
                turn,
                is_taken: false,
            })
        });
        if let Some(link) = bucket.link() {
            link.start(bucket);
        }
        place
    }

    /// Takes the amounts, or returns the time after which they may be there; `None` while other calls are served
    /// before, or the shared quota is asked.
    fn take(&mut self, now: Duration, waker: &Waker) -> Option<Result<(u64, Source), Duration>> {
        self.demand.bucket.with(|inner, quota| {
            let is_first = inner.queue.first_key_value()?.0 == &self.turn;
            let waiter = inner.queue.get_mut(&self.turn)?;
            match &mut waiter.waker {
                Some(own) => own.clone_from(waker),
                None => waiter.waker = Some(waker.clone()),
            }
            if waiter.is_granted {
                self.is_taken = true;
                return Some(Ok((inner.begin(&self.demand.amounts), Source::Shared)));
            }
            let until = waiter.until;
            let is_out = inner.shared.is_out();
            let is_refused = is_out
                && matches!(
                    self.demand.bucket.link()?.shared.on_outage,
                    OnOutage::Refuse
                );
            if is_refused || !is_out && inner.not_before(self.turn) > until {
                return Some(Err(Duration::MAX));
            }
            let taken = is_first.then(|| self.demand.take_in(inner, quota, now));
            let taken = taken.flatten();
            self.is_taken = matches!(taken, Some(Ok(_)));
            taken
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let bucket = &self.demand.bucket;
        let mut returned = None;
        let next = bucket.with(|inner, _| {
            let was_first = inner
                .queue
                .first_key_value()
                .is_some_and(|(it, _)| *it == self.turn);
            let waiter = inner.queue.remove(&self.turn);
            match waiter {
                Some(waiter) if !waiter.is_granted => inner.shared.left(self.turn, &waiter.owner),
                Some(_) if !self.is_taken => returned = Some(self.demand.amounts),
                _ => {}
            }
            if self.is_taken {
                inner.round = inner.round.max(self.turn.1);
            }
            was_first.then(|| inner.first()).flatten()
        });
        wake(next);
        if let (Some(rest), Some(link)) = (returned, bucket.link()) {
            let began = now(&self.demand.context);
            link.settle(bucket, &Settled { rest, began }, began);
        }
    }
}

/// A whole number, towards fewer tokens.
#[allow(clippy::cast_possible_truncation, reason = "saturates")]
pub(super) fn whole(tokens: f64) -> i64 {
    tokens.floor() as i64
}

/// Exact up to 2^53, which is beyond all quotas.
#[allow(clippy::cast_precision_loss, reason = "see above")]
pub(super) const fn amount(tokens: u64) -> f64 {
    tokens as f64
}

fn now(context: &Context) -> Duration {
    context.environment().clock().monotonic()
}
