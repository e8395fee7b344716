use super::{Context, Run};
use crate::panic::catch;
use concentric_proto::CancelReason;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{PoisonError, atomic::Ordering},
    task::{Poll, ready},
    time::Duration,
};

/// Work that starts after a run's outcome.
pub(super) type Deferred = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Context {
    /// Schedules `work` for after the run's outcome, whichever outcome that is.
    ///
    /// The work is spawned on the runtime when the run's body ends or is dropped, at once if it already
    /// has; for a run that never had a body, when the last handle to the run is dropped (so `work` must
    /// not hold one). It is dropped if it takes longer than 30 seconds.
    pub fn defer(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.run
            .deferred
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::pin(work));
        // A later release of the run finds the work; an earlier one did not.
        if self.run.is_over() {
            self.run.start_deferred();
        }
    }

    /// Registers the caller as a driver of the run.
    pub(crate) fn claim(&self) {
        if self.run.drivers.fetch_add(1, Ordering::AcqRel) == 0 {
            self.run.had_outcome.store(false, Ordering::Release);
            self.run.outbox.open();
        }
    }

    /// Undoes a [`claim`](Self::claim). If the run has had its outcome and has no other driver, its
    /// stream is closed and its deferred work starts.
    pub(crate) fn release(&self, how: Release) {
        if how != Release::Attempt {
            self.run.had_outcome.store(true, Ordering::Release);
        }
        if self.run.drivers.fetch_sub(1, Ordering::AcqRel) == 1
            && self.run.had_outcome.load(Ordering::Acquire)
        {
            if how == Release::Dropped {
                self.cancel(CancelReason::Disconnected);
            }
            self.run.outbox.close();
            self.run.start_deferred();
        }
    }
}

/// The reason why a driver releases its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The attempt failed before there was a body; another one may follow.
    Attempt,
    /// The run's outcome was delivered.
    Outcome,
    /// The consumer dropped the body.
    Dropped,
}

impl Run {
    /// Whether the run has had its outcome and has no driver.
    fn is_over(&self) -> bool {
        self.drivers.load(Ordering::Acquire) == 0 && self.had_outcome.load(Ordering::Acquire)
    }

    pub(super) fn start_deferred(&self) {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        let work = std::mem::take(&mut *deferred);
        drop(deferred);
        if work.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!(
                count = work.len(),
                "no runtime for the deferred work of a run"
            );
            return;
        };
        for mut task in work {
            let mut limit = self.environment.clock().sleep(DEFERRED_LIMIT);
            runtime.spawn(poll_fn(move |cx| {
                match catch(|| task.as_mut().poll(cx)) {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(())) => return Poll::Ready(()),
                    Err(panic) => {
                        tracing::error!(
                            panic = panic.text(),
                            "the deferred work of a run panicked"
                        );
                        return Poll::Ready(());
                    }
                }
                ready!(limit.as_mut().poll(cx));
                tracing::warn!("the deferred work of a run was dropped after 30 seconds");
                Poll::Ready(())
            }));
        }
    }
}

impl Drop for Run {
    // The last handle ends a run that failed before it had a body.
    fn drop(&mut self) {
        let deferred = self.deferred.get_mut();
        if !deferred.unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.start_deferred();
        }
    }
}

/// The limit on the duration of a run's deferred work.
const DEFERRED_LIMIT: Duration = Duration::from_secs(30);
