use super::take_up::Abandoned;
use concentric_core::{
    ChatRequest, Context, Environment, Resume, ResumePoint,
    store::{RunStore, StoreError},
};

/// Returns up to `limit` runs in `store` whose process died, as requests that resume them.
///
/// Call an agent inside a [`SuspendLayer`](super::SuspendLayer) over the same store with each
/// request. The layer claims the run: if two processes have the same request, one resumes the run
/// and the other call fails with [`ErrorKind::Conflict`](concentric_core::ErrorKind::Conflict). Use
/// this function when a process starts, and periodically.
///
/// A request contains the run's tenant, conversation, id and transcript. The other parts of the
/// first request (system instructions, client tools, options, extensions) are not stored: add them
/// with a layer, or to the request before the call.
///
/// Runs do not record which agent created them: agents with different tools must use separate
/// stores.
///
/// Runs whose futures are no longer polled are returned as well.
///
/// # Errors
///
/// The errors of [`RunStore::abandoned`].
pub async fn abandoned<St>(
    store: &St,
    environment: &Environment,
    limit: usize,
) -> Result<Vec<ChatRequest>, StoreError>
where
    St: RunStore + ?Sized,
{
    let found = store.abandoned(environment.clock().now(), limit).await?;
    Ok(found
        .into_iter()
        .map(|record| {
            let key = record.key;
            let mut context = Context::builder()
                .run_id(record.client_id)
                .environment(environment.clone());
            if !key.thread.as_str().is_empty() {
                context = context.thread_id(key.thread.clone());
            }
            let mut context = context.build();
            let version = record.version;
            context.extensions_mut().insert(key.tenant.clone());
            context.extensions_mut().insert(Abandoned { key, version });
            let mut request = ChatRequest::new(record.state.transcript().clone());
            request.resume = Some(Resume::new(ResumePoint::InStore, Vec::new()));
            request.with_context(context)
        })
        .collect())
}
