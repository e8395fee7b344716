use super::Kept;
use concentric_core::{
    context::Sleep,
    store::{RunClaim, RunStore, StoreError, StoreFuture},
};
use std::{
    future::Future,
    pin::Pin,
    task::{self, Poll, ready},
    time::SystemTime,
};

/// The renewal of a claim.
pub(super) enum Lease {
    /// The claim did not exist at the last check.
    Unknown,
    /// The lease is valid until `until`, and is renewed after `sleep`.
    Holds { until: SystemTime, sleep: Sleep },
    /// The lease is being extended to `next`, and is lost if that takes longer than `limit`.
    Renewing {
        until: SystemTime,
        next: SystemTime,
        work: StoreFuture<()>,
        limit: Sleep,
    },
}

impl Lease {
    pub(super) fn poll<St>(
        &mut self,
        kept: &Kept<St>,
        claim: &RunClaim,
        cx: &mut task::Context<'_>,
    ) -> Poll<StoreError>
    where
        St: RunStore + ?Sized,
    {
        loop {
            *self = match self {
                Self::Unknown => Self::Holds {
                    until: kept.until(),
                    sleep: kept.sleep(3),
                },
                Self::Holds { until, sleep } => {
                    ready!(Pin::new(sleep).poll(cx));
                    let (until, next) = (*until, kept.until());
                    // A run that was not polled for a long time may still have its claim, so it
                    // gets time to renew it.
                    let left = until.duration_since(kept.now()).unwrap_or_default();
                    let left = left.max(kept.lease / 3);
                    Self::Renewing {
                        until,
                        next,
                        work: kept.store.renew(claim.key.clone(), claim.fence, next),
                        limit: kept.environment.clock().sleep(left),
                    }
                }
                Self::Renewing {
                    until,
                    next,
                    work,
                    limit,
                } => match work.as_mut().poll(cx) {
                    Poll::Ready(Ok(())) => Self::Holds {
                        until: *next,
                        sleep: kept.sleep(3),
                    },
                    // The store may recover before the lease expires.
                    Poll::Ready(Err(StoreError::Failed(error))) if kept.now() < *until => {
                        tracing::warn!(%error, "a run's lease was not renewed");
                        Self::Holds {
                            until: *until,
                            sleep: kept.sleep(6),
                        }
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
