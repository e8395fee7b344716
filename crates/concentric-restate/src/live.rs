//! The runs that this process drives, to cancel the step that one of them executes.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::Notify;

/// The runs that this process drives, by their conversations.
#[derive(Clone, Default)]
pub(crate) struct LiveRuns(Arc<Mutex<HashMap<String, LiveRun>>>);

/// A run that is driven.
#[derive(Clone, Default)]
pub(crate) struct LiveRun(Arc<Flag>);

#[derive(Default)]
struct Flag {
    is_cancelled: AtomicBool,
    notify: Notify,
}

impl LiveRun {
    fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    /// Resolves once the run is cancelled.
    pub(crate) async fn cancelled(&self) {
        let notified = self.0.notify.notified();
        if !self.0.is_cancelled.load(Ordering::Acquire) {
            notified.await;
        }
    }
}

impl LiveRuns {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, LiveRun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the run of a conversation until the guard is dropped.
    pub(crate) fn enter(&self, thread: &str) -> LiveGuard {
        let run = LiveRun::default();
        self.lock().insert(thread.to_owned(), run.clone());
        LiveGuard {
            runs: self.clone(),
            thread: thread.to_owned(),
            run,
        }
    }

    /// Cancels the run of a conversation; whether this process drives one.
    pub(crate) fn cancel(&self, thread: &str) -> bool {
        let run = self.lock().get(thread).cloned();
        run.is_some_and(|run| {
            run.cancel();
            true
        })
    }
}

pub(crate) struct LiveGuard {
    runs: LiveRuns,
    thread: String,
    pub(crate) run: LiveRun,
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        let mut runs = self.runs.lock();
        // Another attempt may have taken its place.
        if runs
            .get(&self.thread)
            .is_some_and(|run| Arc::ptr_eq(&run.0, &self.run.0))
        {
            runs.remove(&self.thread);
        }
    }
}
