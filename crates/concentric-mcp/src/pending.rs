//! The calls that wait for an answer of the server.

use concentric_core::Context;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU32},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The name of the events that report the progress of a call.
pub(crate) const PROGRESS: &str = "mcp.progress";

/// The calls of a connection.
#[derive(Default)]
pub(crate) struct PendingCalls(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    /// The calls that are being sent, which have no token yet.
    sending: HashMap<u64, Arc<PendingCall>>,
    sent: HashMap<ProgressToken, Sent>,
    next: u64,
}

/// A call without an answer.
pub(crate) struct PendingCall {
    pub(crate) context: Context,
    /// Cancelled once the call has ended, or was dropped.
    pub(crate) ended: CancellationToken,
    /// The requests of the server for the model.
    pub(crate) samples: AtomicU32,
}

struct Sent {
    call: Arc<PendingCall>,
    // The latest progress only, so that a flood needs no memory.
    progress: watch::Sender<Option<ProgressNotificationParam>>,
}

/// Receives the latest progress of a call.
pub(crate) type Progress = watch::Receiver<Option<ProgressNotificationParam>>;

impl PendingCalls {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call that is being sent until the guard is dropped or the call has a token. The server may
    /// ask about it before.
    pub(crate) fn sending(&self, context: Context) -> SendingCall<'_> {
        let call = Arc::new(PendingCall {
            context,
            ended: CancellationToken::new(),
            samples: AtomicU32::new(0),
        });
        let mut calls = self.lock();
        let id = calls.next;
        calls.next = id.wrapping_add(1);
        calls.sending.insert(id, call);
        SendingCall { calls: self, id }
    }

    /// Removes a call, which has ended.
    pub(crate) fn remove(&self, token: &ProgressToken) {
        if let Some(sent) = self.lock().sent.remove(token) {
            sent.call.ended.cancel();
        }
    }

    pub(crate) fn progress(&self, progress: ProgressNotificationParam) {
        if let Some(sent) = self.lock().sent.get(&progress.progress_token) {
            sent.progress.send_replace(Some(progress));
        }
    }

    /// A call, if all pending calls belong to one run. The protocol does not name the call that a
    /// question of the server belongs to, and another run must not receive it.
    pub(crate) fn only_run(&self) -> Option<Arc<PendingCall>> {
        let calls = self.lock();
        let sent = calls.sent.values().map(|it| &it.call);
        let mut pending = calls.sending.values().chain(sent);
        let first = pending.next()?;
        let run = first.context.run_id();
        let is_only = pending.all(|it| it.context.run_id() == run);
        is_only.then(|| Arc::clone(first))
    }
}

/// A call that is being sent.
pub(crate) struct SendingCall<'a> {
    calls: &'a PendingCalls,
    id: u64,
}

impl SendingCall<'_> {
    /// Gives the call its token, until it is [removed](PendingCalls::remove).
    pub(crate) fn sent(self, token: ProgressToken) -> Progress {
        let (progress, received) = watch::channel(None);
        let mut calls = self.calls.lock();
        if let Some(call) = calls.sending.remove(&self.id) {
            calls.sent.insert(token, Sent { call, progress });
        }
        received
    }
}

impl Drop for SendingCall<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.calls.lock().sending.remove(&self.id) {
            call.ended.cancel();
        }
    }
}
