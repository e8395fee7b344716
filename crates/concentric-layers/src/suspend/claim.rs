//! Claims a stored run.

use super::run::{Kept, Origin};
use concentric_core::store::{RunClaim, RunRecord, RunStore, StoreError, StoreFuture};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

/// A pending claim of a stored run. The store may complete it after it is dropped: in that case, a
/// task waits for the claim and releases it.
pub(super) struct Claim<St>
where
    St: RunStore + ?Sized,
{
    kept: Arc<Kept<St>>,
    // Taken while it is polled, so a claim that panicked is not polled again.
    claim: Option<StoreFuture<RunRecord>>,
    is_abandoned: bool,
    // The time before the request.
    since: Duration,
}

impl<St> Claim<St>
where
    St: RunStore + ?Sized,
{
    /// Creates a pending claim. `is_abandoned` is set if the process that drove the run died.
    pub(super) fn new(
        kept: &Arc<Kept<St>>,
        claim: StoreFuture<RunRecord>,
        is_abandoned: bool,
    ) -> Self {
        Self {
            kept: Arc::clone(kept),
            claim: Some(claim),
            is_abandoned,
            since: kept.monotonic(),
        }
    }
}

impl<St> Future for Claim<St>
where
    St: RunStore + ?Sized,
{
    type Output = Result<(RunRecord, Origin), StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut claim) = self.claim.take() else {
            return Poll::Pending;
        };
        let claimed = claim.as_mut().poll(cx);
        if claimed.is_pending() {
            self.claim = Some(claim);
        }
        let record = ready!(claimed)?;
        self.kept.set_leased(self.since);
        let origin = match self.is_abandoned {
            true => Origin::Left,
            false => Origin::Waited,
        };
        Poll::Ready(Ok((record, origin)))
    }
}

impl<St> Drop for Claim<St>
where
    St: RunStore + ?Sized,
{
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        let (kept, is_abandoned) = (Arc::clone(&self.kept), self.is_abandoned);
        let given_back = async move {
            let record = match claim.await {
                Ok(record) => record,
                // The claim was not made.
                Err(StoreError::Taken | StoreError::Ended | StoreError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            let state = Arc::new(record.state);
            kept.claimed(RunClaim::new(record.key, record.fence), Arc::clone(&state));
            match kept.leave() {
                Some(left) if is_abandoned => left.await,
                _ => kept.suspend(state).await,
            }
        };
        self.kept.record(Box::pin(given_back), None);
    }
}
