//! Measures the limits of [`Timeouts`] while a call waits for the service.
//!
//! The service is polled with a waker that records when it is woken. Waiting time ends at that
//! moment, no matter how late the consumer polls again. While bytes arrive, no clock is read and no
//! timer is set. A timer is set when there is nothing to read, and stays set until it fires; if it
//! fires too early by then, another one is set.

use crate::{Timeouts, failure::Origin};
use concentric_core::{Context, Environment, Error, ErrorKind, context::Sleep};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll, Wake, Waker, ready},
    time::Duration,
};

/// Longer limits are reduced to this one, since not every clock can represent every [`Duration`].
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// The limits and the elapsed times of one call.
pub(crate) struct Clocks {
    timeouts: Timeouts,
    // As a reading of the clock.
    run_ends: Option<Duration>,
    // The start of the current wait, as a reading of the clock.
    since: Option<Duration>,
    // The waiting times: since the last byte, since the last progress, and in total.
    idle: Duration,
    progress: Duration,
    total: Duration,
    // Fires when the first limit is reached or earlier, since activity only postpones a limit.
    alarm: Option<Sleep>,
    // Whether a limit had been reached when the service was pending last.
    is_late: bool,
    watch: Arc<Watch>,
    waker: Waker,
}

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    Idle(Duration),
    Progress(Duration),
    Total(Duration),
    Run,
}

/// A waker that records when it was woken, and wakes the task.
struct Watch {
    environment: Environment,
    state: Mutex<Watched>,
}

struct Watched {
    woken: Option<Duration>,
    task: Waker,
}

impl Clocks {
    /// Returns `None` if there are no limits.
    // Boxed, so that a response without limits is not larger.
    pub(crate) fn new(timeouts: Timeouts, context: &Context) -> Option<Box<Self>> {
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
            is_late: false,
            waker: Waker::from(Arc::clone(&watch)),
            watch,
        }))
    }

    /// Polls `service`, and checks the limits if it is pending.
    ///
    /// An item that is ready is returned even if a limit has been reached. The service is polled once more after that, since
    /// what has arrived may be in a task that was woken and waits for its turn.
    pub(crate) fn poll<T>(
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
            Poll::Pending => {
                let expired = clocks.poll_time(cx);
                let was_late = std::mem::replace(&mut clocks.is_late, expired.is_ready());
                if clocks.is_late && !was_late {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                expired.map(Err)
            }
        }
    }

    /// Records that a byte has arrived.
    #[inline]
    pub(crate) fn byte(&mut self) {
        self.idle = Duration::ZERO;
    }

    /// Records progress of the response.
    #[inline]
    pub(crate) fn progress(&mut self) {
        self.progress = Duration::ZERO;
    }

    /// Applies the limit for the body of an error response.
    pub(crate) fn refused(&mut self) {
        if let Some(error) = self.timeouts.error {
            let ends = self.total.saturating_add(error);
            let total = self.timeouts.total.map_or(ends, |total| total.min(ends));
            self.timeouts.total = Some(total);
            // The current timer may fire later than the new limit.
            self.alarm = None;
        }
    }

    /// Adds the time of the last wait.
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

    /// Starts a wait, and polls the timer for the first limit.
    fn poll_time(&mut self, cx: &mut task::Context<'_>) -> Poll<Expired> {
        // The service already has the waker, and may have woken it in the meantime.
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

    /// The first limit, and the time until it is reached.
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

    /// Sets the task to wake. Returns whether a wake has already occurred.
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
    pub(crate) fn error(self, origin: Origin<'_>) -> Error {
        let (code, what) = match self {
            Self::Idle(limit) => ("idle", format!("the provider sent no data for {limit:?}")),
            Self::Progress(limit) => (
                "no_progress",
                format!("the response made no progress for {limit:?}"),
            ),
            Self::Total(limit) => ("deadline", format!("the response took more than {limit:?}")),
            Self::Run => ("deadline", "the deadline of the run has passed".to_owned()),
        };
        origin.error(ErrorKind::Timeout, what).with_code(code)
    }
}

concentric_core::opaque_debug!(Clocks);
