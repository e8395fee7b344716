use super::Kept;
use crate::suspend::policy;
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
    /// The lease is renewed after this time. The error is that of a run which loses its lease before.
    Holds(Sleep, StoreError),
    /// The lease is being renewed since this time. The limit is the time at which it is lost.
    Renewing {
        since: Duration,
        work: StoreFuture<Renewed>,
        limit: Sleep,
    },
}

impl Lease {
    /// Returns the time at which the lease counts as lost unless it was renewed. It is earlier than the
    /// lease's end, because the clocks of this process and of the store may run at different speeds.
    pub(super) fn end<St>(kept: &Kept<St>) -> Duration
    where
        St: RunStore + ?Sized,
    {
        kept.leased()
            .saturating_add(policy::is_lost_after(kept.lease))
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
        let clock = kept.environment.clock();
        loop {
            let since = kept.monotonic();
            let left = Self::end(kept).saturating_sub(since);
            *self = match self {
                // A process that has slept may find that another one has its run.
                Self::Unknown => Self::Holds(kept.until_renewal(), StoreError::Stale),
                Self::Holds(_, error) if left.is_zero() => return Poll::Ready(error.clone()),
                Self::Holds(sleep, _) => {
                    ready!(Pin::new(sleep).poll(cx));
                    Self::Renewing {
                        since,
                        work: kept.store.renew(claim.key.clone(), claim.fence, kept.lease),
                        limit: clock.sleep(left),
                    }
                }
                Self::Renewing { since, work, limit } => match work.as_mut().poll(cx) {
                    Poll::Ready(Ok(renewed)) => {
                        kept.set_leased(*since);
                        if renewed == Renewed::CancelRequested {
                            context.cancel(CancelReason::User);
                        }
                        Self::Holds(kept.until_renewal(), StoreError::Stale)
                    }
                    Poll::Ready(Err(StoreError::Failed(error))) => {
                        tracing::warn!(%error, "a run's lease was not renewed");
                        // The store may recover before the lease is lost.
                        Self::Holds(clock.sleep(left.min(kept.lease / 6)), expired())
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending if left.is_zero() => {
                        return Poll::Ready(expired());
                    }
                    Poll::Pending => {
                        ready!(Pin::new(&mut *limit).poll(cx));
                        // A write of the run has extended the lease.
                        *limit = clock.sleep(left);
                        continue;
                    }
                },
            };
        }
    }
}

fn expired() -> StoreError {
    StoreError::failed("the run's lease has expired")
}
