use super::{Context, Run};
use crate::method::catch;
use concentric_proto::CancelReason;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{PoisonError, atomic::Ordering},
    task::{Poll, ready},
    time::Duration,
};

/// Work to be done after a run's outcome.
pub(super) type Deferred = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Context {
    /// Leaves `work` to be done after the run's outcome, whichever it is.
    ///
    /// It is spawned on the runtime when the run's body ends or is dropped, at once if that was
    /// before, or, if the run never had one, with its last handle (so `work` must not hold one
    /// itself); and given up after 30 seconds.
    pub fn defer(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.run
            .deferred
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::pin(work));
        // Whoever releases the run later finds it; whoever did before has not.
        if self.run.is_over() {
            self.run.start_deferred();
        }
    }

    /// Says that the caller drives the run.
    pub(crate) fn claim(&self) {
        if self.run.drivers.fetch_add(1, Ordering::AcqRel) == 0 {
            self.run.had_outcome.store(false, Ordering::Release);
            self.run.outbox.open();
        }
    }

    /// Takes a [`claim`](Self::claim) back. Once the run has had its outcome and nobody else drives
    /// it, nothing can be emitted any more, and deferred work starts.
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

/// How a driver leaves its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// It failed before there was a body; another attempt may follow.
    Attempt,
    /// It delivered the run's outcome.
    Outcome,
    /// Its consumer dropped the body.
    Dropped,
}

impl Run {
    /// Whether the run has had its outcome, and nobody drives it.
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
                "no runtime to do a run's deferred work on"
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
                        tracing::error!(panic = panic.text(), "a run's deferred work panicked");
                        return Poll::Ready(());
                    }
                }
                ready!(limit.as_mut().poll(cx));
                tracing::warn!("a run's deferred work was given up");
                Poll::Ready(())
            }));
        }
    }
}

impl Drop for Run {
    // A run that failed before it had a body ends with its last handle.
    fn drop(&mut self) {
        self.start_deferred();
    }
}

/// How long a run's deferred work may take.
const DEFERRED_LIMIT: Duration = Duration::from_secs(30);
