use super::Context;
use concentric_proto::{CancelReason, Error, ErrorKind};
use std::{
    future::Future,
    sync::{Arc, OnceLock},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The cancellation of a run, or of a call that several runs wait for.
#[derive(Default)]
pub(super) struct Cancel {
    // Created when the run is cancelled, or first waits until it is.
    token: OnceLock<CancellationToken>,
    reason: OnceLock<CancelReason>,
}

impl Context {
    /// Cancels the run: its model stream, tools and waits stop at once.
    ///
    /// If the run is cancelled several times, the first reason is kept.
    pub fn cancel(&self, reason: CancelReason) {
        let _ = self.own_cancel().reason.set(reason);
        self.token().cancel();
        self.run.outbox.call_driver();
    }

    /// Whether the run, or a run around it, was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        // The token takes a lock, and is cancelled after the reason is set.
        match self.of_shared() {
            Some(shared) => shared.reason.get().is_some(),
            None => {
                self.run.cancel.reason.get().is_some()
                    || self.parent().is_some_and(Self::is_cancelled)
            }
        }
    }

    /// Resolves when the run, or a run around it, is cancelled.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + '_ {
        self.token().cancelled()
    }

    pub(crate) fn cancelled_owned(&self) -> WaitForCancellationFutureOwned {
        self.token().clone().cancelled_owned()
    }

    pub(super) fn token(&self) -> &CancellationToken {
        let cancel = self.own_cancel();
        cancel.token.get_or_init(|| match self.outer() {
            Some(parent) => parent.token().child_token(),
            None => CancellationToken::new(),
        })
    }

    /// The reason why the run was cancelled; `None` if it was not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        let own = self.own_cancel().reason.get().cloned();
        own.or_else(|| self.outer().and_then(Self::cancel_reason))
    }

    /// Returns a context of the run that neither ends with it nor has its deadline, for a call that other
    /// runs wait for as well, such as one that a cache shares.
    ///
    /// Everything else is of this run: what the call emits, records and counts. The caller drops the call
    /// when no run waits for it any more; [`cancel`](Self::cancel) of the returned context cancels the call
    /// only.
    ///
    /// ```
    /// use concentric_core::{CancelReason, Context};
    ///
    /// let run = Context::new();
    /// let shared = run.shared();
    /// run.cancel(CancelReason::User);
    /// assert!(!shared.is_cancelled());
    /// assert_eq!(shared.run_id(), run.run_id());
    /// ```
    #[must_use]
    pub fn shared(&self) -> Self {
        let mut shared = self.clone();
        shared.local_mut().shared = Some(Arc::default());
        shared
    }

    #[inline]
    fn own_cancel(&self) -> &Cancel {
        self.of_shared().unwrap_or(&self.run.cancel)
    }

    /// The context whose cancellation applies to this one as well.
    #[inline]
    fn outer(&self) -> Option<&Self> {
        match self.of_shared() {
            None => self.parent(),
            Some(_) => None,
        }
    }

    /// The cancellation of the [shared](Self::shared) call that the context is of.
    #[inline]
    pub(super) fn of_shared(&self) -> Option<&Cancel> {
        self.local.as_deref()?.shared.as_deref()
    }
}

pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the run was cancelled")
}
