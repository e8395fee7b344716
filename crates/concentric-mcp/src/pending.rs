//! The calls that wait for an answer of the server.

use concentric_core::Context;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// The name of the events that report the progress of a call.
pub(crate) const PROGRESS: &str = "mcp.progress";

/// The calls of a connection.
#[derive(Default)]
pub(crate) struct PendingCalls(Mutex<HashMap<ProgressToken, Pending>>);

struct Pending {
    context: Context,
    // The latest progress only, so that a flood needs no memory.
    progress: watch::Sender<Option<ProgressNotificationParam>>,
}

/// Receives the latest progress of a call.
pub(crate) type Progress = watch::Receiver<Option<ProgressNotificationParam>>;

impl PendingCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<ProgressToken, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, token: ProgressToken, context: Context) -> Progress {
        let (progress, received) = watch::channel(None);
        self.lock().insert(token, Pending { context, progress });
        received
    }

    pub(crate) fn remove(&self, token: &ProgressToken) {
        self.lock().remove(token);
    }

    pub(crate) fn progress(&self, progress: ProgressNotificationParam) {
        if let Some(pending) = self.lock().get(&progress.progress_token) {
            pending.progress.send_replace(Some(progress));
        }
    }

    /// The context of a call, if all pending calls belong to one run. The protocol does not name the
    /// call that a question of the server belongs to, and another run must not receive it.
    pub(crate) fn only_run(&self) -> Option<Context> {
        let calls = self.lock();
        let first = &calls.values().next()?.context;
        let is_only = calls
            .values()
            .all(|it| it.context.run_id() == first.run_id());
        is_only.then(|| first.clone())
    }
}
