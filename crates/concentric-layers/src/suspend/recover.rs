//! Claims runs whose process died.

use super::SuspendLayer;
use concentric_core::{
    ChatRequest, Context, Environment, Resume, ResumePoint,
    store::{RunKey, RunRecord, RunStore, StoreError},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

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
    /// # Errors
    ///
    /// Those of [`RunStore::claim_abandoned`].
    pub async fn claim_abandoned(
        &self,
        environment: &Environment,
        limit: usize,
    ) -> Result<Vec<ChatRequest>, StoreError> {
        let since = environment.clock().monotonic();
        let claimed = self.store.claim_abandoned(limit, self.lease).await?;
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
        let left = self.store.renew(record.key, record.fence, Duration::ZERO);
        runtime.spawn(async move {
            match left.await {
                // Another process has claimed the run after the lease.
                Ok(_) | Err(StoreError::Stale) => {}
                Err(error) => tracing::warn!(%error, "the claim of a run was not given up"),
            }
        });
    }
}
