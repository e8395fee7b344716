//! The clocks of a call, which run while the service is waited for.
//!
//! What there is to wait for is polled with a waker of ours, which notes when it is woken. So the
//! time that is charged ends there, however late whoever reads the answer comes back. While bytes
//! flow, no clock is read and no timer set: one is set when there is nothing to read, and left as it
//! is until it rings, which may be too early by then.

use crate::{Timeouts, failure::Origin};
use concentric_core::{Context, Environment, Error, ErrorKind, context::Sleep};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll, Wake, Waker, ready},
    time::Duration,
};

/// What a longer time counts as, since not all clocks can count as far as a [`Duration`].
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// The clocks of one call.
pub(super) struct Clocks {
    timeouts: Timeouts,
    // By the clock's reading.
    run_ends: Option<Duration>,
    // Since when the service is waited for, by the same.
    since: Option<Duration>,
    // For how long it was: since the last byte, since the last progress, and in all.
    idle: Duration,
    progress: Duration,
    total: Duration,
    // Rings when the first of the clocks is over, or before: whatever happens makes that later.
    alarm: Option<Sleep>,
    watch: Arc<Watch>,
    waker: Waker,
}

/// The time for something is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    Idle(Duration),
    Progress(Duration),
    Total(Duration),
    Run,
}

/// Hands on a wake, and notes when it came.
struct Watch {
    environment: Environment,
    state: Mutex<Watched>,
}

struct Watched {
    woken: Option<Duration>,
    task: Waker,
}

impl Clocks {
    /// `None` if nothing is limited.
    // Boxed, so that an answer without clocks is no larger.
    pub(super) fn new(timeouts: Timeouts, context: &Context) -> Option<Box<Self>> {
        if timeouts == Timeouts::off() && context.deadline().is_none() {
            return None;
        }
        let watch = Arc::new(Watch {
            environment: context.environment().clone(),
            state: Mutex::new(Watched {
                woken: None,
                task: Waker::noop().clone(),
            }),
        });
        let run_ends = context
            .remaining()
            .map(|left| watch.now().saturating_add(left.min(LONGEST)));
        Some(Box::new(Self {
            timeouts,
            run_ends,
            since: None,
            idle: Duration::ZERO,
            progress: Duration::ZERO,
            total: Duration::ZERO,
            alarm: None,
            waker: Waker::from(Arc::clone(&watch)),
            watch,
        }))
    }

    /// Polls what the service does next, and the time that is left for it.
    ///
    /// What is there is never too late.
    pub(super) fn poll<T>(
        clocks: &mut Option<Box<Self>>,
        cx: &mut task::Context<'_>,
        service: impl FnOnce(&mut task::Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, Expired>> {
        let Some(clocks) = clocks else {
            return service(cx).map(Ok);
        };
        clocks.charge();
        match service(&mut task::Context::from_waker(&clocks.waker)) {
            Poll::Ready(ready) => Poll::Ready(Ok(ready)),
            Poll::Pending => clocks.poll_time(cx).map(Err),
        }
    }

    /// A byte has come.
    #[inline]
    pub(super) fn byte(&mut self) {
        self.idle = Duration::ZERO;
    }

    /// The answer has grown.
    #[inline]
    pub(super) fn progress(&mut self) {
        self.progress = Duration::ZERO;
    }

    /// What is left to come is an error's body.
    pub(super) fn refused(&mut self) {
        if let Some(error) = self.timeouts.error {
            let ends = self.total.saturating_add(error);
            let total = self.timeouts.total.map_or(ends, |total| total.min(ends));
            self.timeouts.total = Some(total);
            // It may ring later than that.
            self.alarm = None;
        }
    }

    /// Counts the time for which the service was waited for.
    #[inline]
    fn charge(&mut self) {
        if let Some(since) = self.since.take() {
            let woken = self.watch.lock().woken.take();
            let until = woken.unwrap_or_else(|| self.watch.now());
            let waited = until.saturating_sub(since);
            for spent in [&mut self.idle, &mut self.progress, &mut self.total] {
                *spent = spent.saturating_add(waited);
            }
        }
    }

    /// There is nothing yet.
    fn poll_time(&mut self, cx: &mut task::Context<'_>) -> Poll<Expired> {
        // The service has the waker already, and may have used it since.
        if self.watch.watch(cx.waker()) {
            cx.waker().wake_by_ref();
        }
        let now = self.watch.now();
        self.since = Some(now);
        let Some((left, expired)) = self.left(now) else {
            return Poll::Pending;
        };
        if left.is_zero() {
            return Poll::Ready(expired);
        }
        if let Some(alarm) = &mut self.alarm {
            ready!(alarm.as_mut().poll(cx).map(|()| self.alarm = None));
        }
        let mut alarm = self.watch.environment.clock().sleep(left);
        if alarm.as_mut().poll(cx).is_ready() {
            return Poll::Ready(expired);
        }
        self.alarm = Some(alarm);
        Poll::Pending
    }

    /// How long it is until the first of the clocks is over.
    fn left(&self, now: Duration) -> Option<(Duration, Expired)> {
        let left = |limit: Option<Duration>, spent, expired: fn(Duration) -> Expired| {
            let limit = limit?;
            Some((limit.min(LONGEST).saturating_sub(spent), expired(limit)))
        };
        let Timeouts {
            idle,
            progress,
            total,
            error: _,
        } = self.timeouts;
        let run = self
            .run_ends
            .map(|ends| (ends.saturating_sub(now), Expired::Run));
        [
            run,
            left(total, self.total, Expired::Total),
            left(idle, self.idle, Expired::Idle),
            left(progress, self.progress, Expired::Progress),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|(left, _)| *left)
    }
}

impl Watch {
    fn now(&self) -> Duration {
        self.environment.clock().monotonic()
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `task` woken from now on; whether it should have been already.
    fn watch(&self, task: &Waker) -> bool {
        let mut state = self.lock();
        state.task.clone_from(task);
        state.woken.is_some()
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let now = self.now();
        let mut state = self.lock();
        state.woken.get_or_insert(now);
        let task = state.task.clone();
        drop(state);
        task.wake();
    }
}

impl Expired {
    pub(super) fn error(self, origin: Origin<'_>) -> Error {
        let (code, what) = match self {
            Self::Idle(limit) => ("idle", format!("the service sent nothing for {limit:?}")),
            Self::Progress(limit) => (
                "no_progress",
                format!("the answer did not go on for {limit:?}"),
            ),
            Self::Total(limit) => ("deadline", format!("the answer took more than {limit:?}")),
            Self::Run => ("deadline", "the run's time is over".to_owned()),
        };
        origin.error(ErrorKind::Timeout, what).with_code(code)
    }
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocks")
            .field("timeouts", &self.timeouts)
            .field("idle", &self.idle)
            .field("progress", &self.progress)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}
