use super::Context;
use concentric_proto::{CancelReason, Error, ErrorKind};
use std::future::Future;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

impl Context {
    /// Cancels the run: its model stream, tools and waits stop at once.
    ///
    /// If the run is cancelled several times, the first reason is kept.
    pub fn cancel(&self, reason: CancelReason) {
        let _ = self.run.cancel_reason.set(reason);
        self.token().cancel();
        self.run.outbox.call_driver();
    }

    /// Whether the run, or a run around it, was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        // The token takes a lock, and is cancelled after the reason is set.
        self.run.cancel_reason.get().is_some() || self.parent().is_some_and(Self::is_cancelled)
    }

    /// Resolves when the run, or a run around it, is cancelled.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + '_ {
        self.token().cancelled()
    }

    pub(crate) fn cancelled_owned(&self) -> WaitForCancellationFutureOwned {
        self.token().clone().cancelled_owned()
    }

    pub(super) fn token(&self) -> &CancellationToken {
        self.run.cancel.get_or_init(|| match self.parent() {
            Some(parent) => parent.token().child_token(),
            None => CancellationToken::new(),
        })
    }

    /// The reason why the run was cancelled; `None` if it was not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        let own = self.run.cancel_reason.get().cloned();
        own.or_else(|| self.parent().and_then(Self::cancel_reason))
    }
}

pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the run was cancelled")
}
