use super::{OVER_QUOTA, Quota, RATE_LIMITED};
use crate::{tokens::BYTES, wait::Stop};
use concentric_core::{Context, Error, ErrorKind, Str, Usage};
use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::sync::Notify;

/// Amounts of what is limited: requests, input tokens, output tokens.
pub(super) type Amounts = [f64; 3];

/// The number of keys that have a bucket of their own. Further keys share one.
const MAX_KEYS: usize = 10_000;

/// The time between two searches for buckets that can be removed.
const SWEEP: Duration = Duration::from_secs(1);

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
    levels: Mutex<Levels>,
    // Held by the first of the waiting calls; fair.
    turn: Arc<tokio::sync::Mutex<()>>,
    waiting: AtomicUsize,
    // Wakes the first of the waiting calls when something was returned.
    returned: Notify,
}

struct Levels {
    // The time of the last refill, by the clock of the run.
    at: Duration,
    // Negative if more was used than reserved.
    left: Amounts,
    // No call may begin before.
    closed_until: Duration,
}

impl Buckets {
    /// Returns the bucket of `key`.
    pub(super) fn get(
        &self,
        key: Str,
        quota: impl FnOnce() -> Quota,
        context: &Context,
    ) -> Arc<Bucket> {
        let mut by_key = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ByKey { buckets, swept } = &mut *by_key;
        if let Some(bucket) = buckets.get(&key) {
            return Arc::clone(bucket);
        }
        let now = now(context);
        let is_due = swept.is_none_or(|swept| now >= swept.saturating_add(SWEEP));
        if buckets.len() >= MAX_KEYS && is_due {
            *swept = Some(now);
            // A full bucket that no call uses is the same as a new one.
            buckets.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_full(now));
        }
        let key = match buckets.len() < MAX_KEYS {
            true => key,
            false => Str::default(),
        };
        let bucket = buckets
            .entry(key)
            .or_insert_with(|| Arc::new(Bucket::new(quota(), now)));
        Arc::clone(bucket)
    }
}

impl Bucket {
    fn new(quota: Quota, now: Duration) -> Self {
        Self {
            levels: Mutex::new(Levels {
                at: now,
                left: quota.limits,
                closed_until: Duration::ZERO,
            }),
            quota,
            turn: Arc::default(),
            waiting: AtomicUsize::new(0),
            returned: Notify::new(),
        }
    }

    fn levels(&self, now: Duration) -> MutexGuard<'_, Levels> {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_sub(levels.at).as_secs_f64() / self.quota.per.as_secs_f64();
        levels.at = levels.at.max(now);
        for (left, limit) in levels.left.iter_mut().zip(self.quota.limits) {
            if limit.is_finite() {
                *left = (*left + passed * limit).min(limit);
            }
        }
        levels
    }

    fn is_full(&self, now: Duration) -> bool {
        let levels = self.levels(now);
        levels.closed_until <= now && levels.left == self.quota.limits
    }

    /// Takes `amounts`, or returns the time after which they may be there.
    fn take(&self, amounts: &Amounts, now: Duration) -> Result<(), Duration> {
        let mut levels = self.levels(now);
        let mut wait = levels.closed_until.saturating_sub(now);
        for ((left, limit), amount) in levels.left.iter().zip(self.quota.limits).zip(amounts) {
            let missing = amount - left;
            if missing > 0.0 && limit.is_finite() {
                let seconds = missing / limit * self.quota.per.as_secs_f64();
                // Rounded up, so that the wait is not repeated for a rest.
                let seconds = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
                wait = wait.max(seconds.saturating_add(Duration::from_nanos(1)));
            }
        }
        if wait > Duration::ZERO {
            return Err(wait);
        }
        for (left, amount) in levels.left.iter_mut().zip(amounts) {
            *left -= amount;
        }
        Ok(())
    }

    /// Returns `amounts`; negative ones are taken.
    fn give_back(&self, amounts: Amounts, now: Duration) {
        let mut levels = self.levels(now);
        for ((left, limit), amount) in levels.left.iter_mut().zip(self.quota.limits).zip(amounts) {
            *left = (*left + amount).min(limit);
        }
        drop(levels);
        self.returned.notify_waiters();
    }

    fn close(&self, now: Duration, until: Duration) {
        let mut levels = self.levels(now);
        levels.closed_until = levels.closed_until.max(until);
    }
}

/// What a call has taken; settled on drop.
pub(super) struct Reservation {
    bucket: Arc<Bucket>,
    context: Context,
    taken: Amounts,
    used: Amounts,
    // The number of received bytes, until the usage is known.
    seen: u64,
}

/// How long a call may wait, and behind how many others.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) wait: Duration,
    pub(super) queue: usize,
}

impl Reservation {
    /// Takes `amounts` if no other call of the key waits.
    ///
    /// # Errors
    ///
    /// The amounts exceed the quota of a period.
    pub(super) fn try_take(
        bucket: &Arc<Bucket>,
        context: &Context,
        amounts: Amounts,
    ) -> Result<Option<Self>, Error> {
        if amounts
            .iter()
            .zip(bucket.quota.limits)
            .any(|(amount, limit)| *amount > limit)
        {
            let message = "the call needs more than the quota of a whole period";
            return Err(Error::new(ErrorKind::TooLarge, message).with_code(OVER_QUOTA));
        }
        let Ok(_turn) = bucket.turn.try_lock() else {
            return Ok(None);
        };
        let taken = bucket.take(&amounts, now(context));
        Ok(taken.is_ok().then(|| Self::new(bucket, context, amounts)))
    }

    /// Waits for `amounts`.
    pub(super) async fn take(
        bucket: Arc<Bucket>,
        context: Context,
        amounts: Amounts,
        patience: Patience,
    ) -> Result<Self, Error> {
        let place = Place(&bucket.waiting);
        if place.0.fetch_add(1, Ordering::AcqRel) >= patience.queue {
            return Err(bucket.limited(&amounts, &context, "too many calls wait for it"));
        }
        let started = now(&context);
        let left = context
            .remaining()
            .unwrap_or(Duration::MAX)
            .min(patience.wait);
        let wait = async {
            let _turn = bucket.turn.lock().await;
            loop {
                // Registered before the look, so that nothing returned after it is missed.
                let returned = bucket.returned.notified();
                let Err(wait) = bucket.take(&amounts, now(&context)) else {
                    return true;
                };
                let waited = now(&context).saturating_sub(started);
                if wait > left.saturating_sub(waited) {
                    return false;
                }
                let sleep = context.environment().clock().sleep(wait);
                either(sleep, returned).await;
            }
        };
        let mut wait = pin!(wait);
        let mut stop = Stop::new(&context);
        let mut late = context.environment().clock().sleep(patience.wait);
        let taken = poll_fn(|cx| {
            if let Poll::Ready(taken) = wait.as_mut().poll(cx) {
                return Poll::Ready(Ok(taken));
            }
            if let Poll::Ready(error) = stop.poll("a quota", cx) {
                return Poll::Ready(Err(error));
            }
            late.as_mut().poll(cx).map(|()| Ok(false))
        })
        .await?;
        match taken {
            true => Ok(Self::new(&bucket, &context, amounts)),
            false => Err(bucket.limited(
                &amounts,
                &context,
                "it is used up for longer than calls may wait",
            )),
        }
    }

    fn new(bucket: &Arc<Bucket>, context: &Context, taken: Amounts) -> Self {
        Self {
            bucket: Arc::clone(bucket),
            context: context.clone(),
            taken,
            used: taken,
            seen: 0,
        }
    }

    /// Records the usage that the provider reported.
    pub(super) fn used(&mut self, usage: Usage) {
        let tokens = [usage.input_tokens(), usage.output_tokens()];
        for (used, tokens) in self.used.iter_mut().skip(1).zip(tokens) {
            if let Some(tokens) = tokens {
                *used = amount(tokens);
            }
        }
        if usage.output_tokens().is_some() {
            self.seen = 0;
        }
    }

    /// Records `bytes` of received text, in case the provider does not report its usage.
    #[inline]
    pub(super) fn seen(&mut self, bytes: u64) {
        self.seen += bytes;
    }

    /// Records a failure before the answer.
    pub(super) fn failed(&mut self, error: &Error) {
        let was_sent = error.status().is_some();
        if was_sent || error.kind() == ErrorKind::Connection {
            self.used = [f64::from(u8::from(was_sent)), 0.0, 0.0];
        }
        if error.kind() == ErrorKind::RateLimited
            && let Some(after) = error.retry_after()
        {
            let now = now(&self.context);
            self.bucket.close(now, now.saturating_add(after));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let [requests, input, output] = self.taken;
        let [used_requests, used_input, used_output] = self.used;
        let used_output = used_output.max(amount(self.seen / BYTES));
        let rest = [
            requests - used_requests,
            input - used_input,
            output - used_output,
        ];
        self.bucket.give_back(rest, now(&self.context));
    }
}

impl Bucket {
    fn limited(&self, amounts: &Amounts, context: &Context, why: &str) -> Error {
        let now = now(context);
        let taken = self.take(amounts, now);
        if taken.is_ok() {
            // Only the wait is of interest.
            self.give_back(*amounts, now);
        }
        let message = format!("the quota of model calls is used up: {why}");
        Error::new(ErrorKind::RateLimited, message)
            .with_code(RATE_LIMITED)
            .with_retry_after(taken.err().unwrap_or_default())
    }
}

/// A place in the queue of waiting calls; released on drop.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Exact up to 2^53, which is beyond all quotas.
#[allow(clippy::cast_precision_loss, reason = "see above")]
pub(super) const fn amount(tokens: u64) -> f64 {
    tokens as f64
}

fn now(context: &Context) -> Duration {
    context.environment().clock().monotonic()
}

/// Resolves with the first of two futures.
async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Pending => other.as_mut().poll(cx),
        ready => ready,
    })
    .await;
}
