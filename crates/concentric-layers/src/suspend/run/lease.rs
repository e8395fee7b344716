use super::Kept;
use concentric_core::{
    CancelReason, Context,
    context::Sleep,
    store::{Renewed, RunClaim, RunStore, StoreError, StoreFuture},
};
use std::{
    future::Future,
    pin::Pin,
    task::{self, Poll, ready},
    time::Duration,
};

/// The renewal of a claim. A third of the lease after it was granted, it is renewed; after
/// [four fifths](Lease::end), it is lost.
pub(super) enum Lease {
    /// The claim did not exist at the last check.
    Unknown,
    /// The lease is renewed after this time.
    Holds(Sleep),
    /// The lease is being renewed since this time, and is lost if that takes longer than `limit`.
    Renewing {
        since: Duration,
        work: StoreFuture<Renewed>,
        limit: Sleep,
    },
}

impl Lease {
    /// Returns the time at which the lease counts as lost unless it was renewed. It is earlier than the
    /// lease's end, because the clocks of this process and of the store may run at different speeds.
    fn end<St>(kept: &Kept<St>) -> Duration
    where
        St: RunStore + ?Sized,
    {
        kept.leased().saturating_add(kept.lease / 5 * 4)
    }

    /// Resolves when the lease is lost. Cancels the run of `context` if that was requested.
    pub(super) fn poll<St>(
        &mut self,
        kept: &Kept<St>,
        claim: &RunClaim,
        context: &Context,
        cx: &mut task::Context<'_>,
    ) -> Poll<StoreError>
    where
        St: RunStore + ?Sized,
    {
        loop {
            *self = match self {
                Self::Unknown => Self::Holds(kept.until_renewal()),
                Self::Holds(sleep) => {
                    ready!(Pin::new(sleep).poll(cx));
                    let since = kept.monotonic();
                    // A run that was not polled for a long time may still have its claim, so it
                    // gets time to renew it.
                    let left = Self::end(kept).saturating_sub(since).max(kept.lease / 3);
                    Self::Renewing {
                        since,
                        work: kept.store.renew(claim.key.clone(), claim.fence, kept.lease),
                        limit: kept.environment.clock().sleep(left),
                    }
                }
                Self::Renewing { since, work, limit } => match work.as_mut().poll(cx) {
                    Poll::Ready(Ok(renewed)) => {
                        kept.set_leased(*since);
                        if renewed == Renewed::CancelRequested {
                            context.cancel(CancelReason::User);
                        }
                        Self::Holds(kept.until_renewal())
                    }
                    // The store may recover before the lease expires.
                    Poll::Ready(Err(StoreError::Failed(error)))
                        if kept.monotonic() < Self::end(kept) =>
                    {
                        tracing::warn!(%error, "a run's lease was not renewed");
                        Self::Holds(kept.environment.clock().sleep(kept.lease / 6))
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending => {
                        ready!(Pin::new(limit).poll(cx));
                        return Poll::Ready(StoreError::failed("the run's lease has expired"));
                    }
                },
            };
        }
    }
}
