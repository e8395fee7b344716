//! Claims runs whose process died.

use super::SuspendLayer;
use concentric_core::{
    ChatRequest, Context, Environment, Resume, ResumePoint,
    context::Sleep,
    store::{RunKey, RunRecord, RunStore, StoreError, StoreFuture},
};
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{self, Poll},
    time::Duration,
};

/// The time that the store may take to finish a claim that nobody waits for, and to give it up.
pub(super) const GIVEN_UP_WITHIN: Duration = Duration::from_secs(30);

impl<St> SuspendLayer<St>
where
    St: RunStore + ?Sized,
{
    /// Claims at most `limit` runs whose process died, and returns requests that resume them.
    ///
    /// Call an agent inside a layer over the same store with each request, before four fifths of the
    /// [lease](Self::lease) have passed: later, the run fails and is abandoned again. Concurrent callers get different runs. A run whose request is dropped,
    /// or fails before the run has effects, is abandoned again. Use this function when a process starts,
    /// and periodically.
    ///
    /// A request contains the run's tenant, conversation, id and transcript. The other parts of the
    /// first request (system instructions, client tools, options, extensions) are not stored: add them
    /// with a layer, or to the request before the call. Of several clones of a request, one resumes the
    /// run; the others fail with [`ErrorKind::Conflict`](concentric_core::ErrorKind::Conflict).
    ///
    /// Runs do not record which agent created them: agents with different tools must use separate
    /// stores.
    ///
    /// Runs whose futures are no longer polled are returned as well. A run that ends each process that
    /// resumes it is [quarantined](concentric_core::store::RunStatus::Quarantined) in the end.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a task on tokio's runtime waits for the store, at most 30 seconds, and
    /// gives up the claims that it still makes. Without a runtime, their leases expire.
    ///
    /// # Errors
    ///
    /// Those of [`RunStore::claim_abandoned`].
    pub async fn claim_abandoned(
        &self,
        environment: &Environment,
        limit: usize,
    ) -> Result<Vec<ChatRequest>, StoreError> {
        let since = environment.clock().monotonic();
        let claiming = Claiming {
            store: Arc::clone(&self.store),
            claim: Some(self.store.claim_abandoned(limit, self.lease)),
            environment: environment.clone(),
        };
        let claimed = claiming.await?;
        let requests = claimed.into_iter().map(|record| {
            let key = record.key.clone();
            let mut context = Context::builder()
                .run_id(record.client_id.clone())
                .environment(environment.clone());
            if !key.thread.as_str().is_empty() {
                context = context.thread_id(key.thread);
            }
            let mut context = context.build();
            let mut request = ChatRequest::new(record.state.transcript().clone());
            let abandoned = Abandoned::new(Arc::clone(&self.store), record, since);
            context.extensions_mut().insert(key.tenant);
            context.extensions_mut().insert(abandoned);
            request.resume = Some(Resume::new(ResumePoint::InStore, Vec::new()));
            request.with_context(context)
        });
        Ok(requests.collect())
    }
}

/// A pending claim of abandoned runs. The store may complete it after it is dropped.
struct Claiming<St>
where
    St: RunStore + ?Sized,
{
    store: Arc<St>,
    // Taken while it is polled, so a claim that panicked is not polled again.
    claim: Option<StoreFuture<Vec<RunRecord>>>,
    environment: Environment,
}

impl<St> Future for Claiming<St>
where
    St: RunStore + ?Sized,
{
    type Output = Result<Vec<RunRecord>, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let Some(mut claim) = self.claim.take() else {
            return Poll::Pending;
        };
        let claimed = claim.as_mut().poll(cx);
        if claimed.is_pending() {
            self.claim = Some(claim);
        }
        claimed
    }
}

impl<St> Drop for Claiming<St>
where
    St: RunStore + ?Sized,
{
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!(
                "no tokio runtime to give up the claims of runs; their leases will expire"
            );
            return;
        };
        let store = Arc::clone(&self.store);
        let limit = self.environment.clock().sleep(GIVEN_UP_WITHIN);
        let given_up = async move {
            match claim.await {
                Ok(records) => {
                    for record in records {
                        give_up(&*store, record).await;
                    }
                }
                Err(error) => tracing::warn!(%error, "could not claim abandoned runs"),
            }
        };
        runtime.spawn(within(limit, given_up));
    }
}

/// Polls `future` up to `limit`; then returns `None`.
pub(super) async fn within<T>(mut limit: Sleep, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let done = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
    })
    .await;
    if done.is_none() {
        tracing::warn!(
            "the store did not give up the claims of runs in time; their leases will expire"
        );
    }
    done
}

/// Gives up the claim of a run, which is abandoned again.
async fn give_up<St>(store: &St, record: RunRecord)
where
    St: RunStore + ?Sized,
{
    match store.renew(record.key, record.fence, Duration::ZERO).await {
        // Another process has claimed the run after the lease.
        Ok(_) | Err(StoreError::Stale) => {}
        Err(error) => tracing::warn!(%error, "the claim of a run was not given up"),
    }
}

/// The claimed run that a request resumes: an extension of its context.
pub(super) struct Abandoned<St>(Arc<Claimed<St>>)
where
    St: RunStore + ?Sized;

struct Claimed<St>
where
    St: RunStore + ?Sized,
{
    store: Arc<St>,
    // Taken by the request that resumes it.
    record: Mutex<Option<RunRecord>>,
    // The monotonic time before the claim.
    since: Duration,
}

impl<St> Abandoned<St>
where
    St: RunStore + ?Sized,
{
    fn new(store: Arc<St>, record: RunRecord, since: Duration) -> Self {
        let record = Mutex::new(Some(record));
        Self(Arc::new(Claimed {
            store,
            record,
            since,
        }))
    }

    /// The key of the run that a request resumes, if no other request has taken it.
    pub(super) fn key(context: &Context) -> Option<RunKey> {
        let Self(claimed) = context.extensions().get()?;
        let record = claimed
            .record
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        record.as_ref().map(|record| record.key.clone())
    }

    /// Gives up the claim of the run that a request resumes.
    pub(super) async fn give_up(context: &Context) {
        let Some(abandoned) = context.extensions().get::<Self>() else {
            return;
        };
        if let Some((record, _)) = abandoned.take() {
            give_up(&*abandoned.0.store, record).await;
        }
    }

    /// Returns the run, and the time before it was claimed, if no other request has taken it.
    pub(super) fn take(&self) -> Option<(RunRecord, Duration)> {
        let mut record = self.0.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.take().map(|record| (record, self.0.since))
    }
}

impl<St> Clone for Abandoned<St>
where
    St: RunStore + ?Sized,
{
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Gives up the claim of a run that no request has resumed.
impl<St> Drop for Claimed<St>
where
    St: RunStore + ?Sized,
{
    fn drop(&mut self) {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(record) = record.take() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!("no tokio runtime to give up the claim of a run; its lease will expire");
            return;
        };
        let store = Arc::clone(&self.store);
        runtime.spawn(async move { give_up(&*store, record).await });
    }
}
