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
pub(crate) struct PendingCalls(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    /// The calls that are being sent, which have no token yet.
    sending: HashMap<u64, Context>,
    sent: HashMap<ProgressToken, Pending>,
    next: u64,
}

struct Pending {
    context: Context,
    // The latest progress only, so that a flood needs no memory.
    progress: watch::Sender<Option<ProgressNotificationParam>>,
}

/// Receives the latest progress of a call.
pub(crate) type Progress = watch::Receiver<Option<ProgressNotificationParam>>;

impl PendingCalls {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call that is being sent until the guard is dropped. The server may ask about it before
    /// [`add`](Self::add) has its token.
    pub(crate) fn sending(&self, context: Context) -> SendingCall<'_> {
        let mut calls = self.lock();
        let id = calls.next;
        calls.next = id.wrapping_add(1);
        calls.sending.insert(id, context);
        SendingCall { calls: self, id }
    }

    pub(crate) fn add(&self, token: ProgressToken, context: Context) -> Progress {
        let (progress, received) = watch::channel(None);
        let pending = Pending { context, progress };
        self.lock().sent.insert(token, pending);
        received
    }

    pub(crate) fn remove(&self, token: &ProgressToken) {
        self.lock().sent.remove(token);
    }

    pub(crate) fn progress(&self, progress: ProgressNotificationParam) {
        if let Some(pending) = self.lock().sent.get(&progress.progress_token) {
            pending.progress.send_replace(Some(progress));
        }
    }

    /// The context of a call, if all pending calls belong to one run. The protocol does not name the
    /// call that a question of the server belongs to, and another run must not receive it.
    pub(crate) fn only_run(&self) -> Option<Context> {
        let calls = self.lock();
        let sent = calls.sent.values().map(|it| &it.context);
        let mut contexts = calls.sending.values().chain(sent);
        let first = contexts.next()?;
        let is_only = contexts.all(|it| it.run_id() == first.run_id());
        is_only.then(|| first.clone())
    }
}

/// A call that is being sent.
pub(crate) struct SendingCall<'a> {
    calls: &'a PendingCalls,
    id: u64,
}

impl Drop for SendingCall<'_> {
    fn drop(&mut self) {
        self.calls.lock().sending.remove(&self.id);
    }
}
