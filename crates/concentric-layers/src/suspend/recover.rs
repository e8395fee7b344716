use super::take_up::Abandoned;
use concentric_core::{
    ChatRequest, Context, Environment, Resume, Suspended,
    store::{RunStore, StoreError},
};

/// The runs in `store` whose process died, as requests that go on with them; at most `limit`.
///
/// Each is to be called on an agent behind a [`SuspendLayer`](super::SuspendLayer) over the same
/// store, which claims it then: of two processes that have the same request, one goes on, and the
/// other's fails with [`ErrorKind::Conflict`](concentric_core::ErrorKind::Conflict). A program does this when it
/// starts, and now and then.
///
/// A request has the run's tenant, conversation, id and transcript. What else the first one had (the
/// system's instructions, the client's tools, options, extensions) was not written down: put it into
/// a layer, or into the request before it is called.
///
/// A run is of whatever agent wrote it: agents with different tools keep their runs in stores of
/// their own.
///
/// A run that was left by itself, because its future was never polled again, is found as well.
///
/// # Errors
///
/// Those of [`RunStore::abandoned`].
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
            request.resume = Some(Resume::new(Suspended::Elsewhere, Vec::new()));
            request.with_context(context)
        })
        .collect())
}
