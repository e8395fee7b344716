use super::{
    key::Key,
    layer::{Options, Stored},
};
use concentric_core::{
    BoxError, CustomEvent, Error, OutcomeSource, ToolCall, ToolContent, ToolOutcome, ToolStatus,
};
use moka::future::Cache;
use serde_json::json;
use std::sync::Arc;
use tower::ServiceExt;
use tower_service::Service;

/// The result of an execution is not stored, so that a concurrent call executes as well.
struct NotStored;

/// Returns a stored result, or executes the call, unless an equal call is being executed.
pub(super) async fn cached<S>(
    inner: S,
    mut call: ToolCall,
    key: Key,
    options: Options,
    results: Arc<Cache<Key, Stored>>,
) -> Result<ToolOutcome, Error>
where
    S: Service<ToolCall, Response = ToolOutcome> + Clone,
    S::Error: Into<BoxError>,
{
    // An execution must not wait for another one, which may wait for it.
    let may_wait = call.context.enter_shared(&results);
    let call = &call;
    let now = || call.context.environment().clock().monotonic();
    if let Some(stored) = results.get(&key).await
        && now().saturating_sub(stored.at) >= options.cache.ttl
    {
        results.invalidate(&key).await;
    }
    loop {
        if !may_wait && let Some(stored) = results.get(&key).await {
            return Ok(hit(call, &stored));
        }
        // Set by this call's own execution.
        let mut own = None;
        let execution = async {
            let result = inner.clone().oneshot(call.clone()).await;
            let result = result.map_err(|error| Error::from(error.into()));
            let result = &*own.insert(result);
            match result {
                Ok(outcome) if is_stored(outcome, options.cache.max_bytes) => Ok(Stored {
                    outcome: Arc::new(outcome.clone()),
                    at: now(),
                }),
                _ => Err(NotStored),
            }
        };
        let shared = match may_wait {
            true => results.try_get_with(key.clone(), execution).await.ok(),
            false => {
                if let Ok(stored) = execution.await {
                    results.insert(key.clone(), stored).await;
                }
                None
            }
        };
        if let Some(result) = own {
            // Evicts the least recently used result now rather than at some later call.
            results.run_pending_tasks().await;
            return result;
        }
        if let Some(stored) = shared {
            return Ok(hit(call, &stored));
        }
    }
}

fn hit(call: &ToolCall, stored: &Stored) -> ToolOutcome {
    // A field of the span of the call, if there is one.
    tracing::Span::current().record("concentric.cached", true);
    let event = json!({"tool": call.name().as_str()});
    // A consumer that is far behind loses the event, not the result.
    let _ = call
        .context
        .emit(CustomEvent::new("concentric.tool_cache", event));
    (*stored.outcome).clone()
}

fn is_stored(outcome: &ToolOutcome, max_bytes: usize) -> bool {
    outcome.status == ToolStatus::Done
        && outcome.halt.is_none()
        && outcome.source == OutcomeSource::Executor
        && bytes(outcome) <= max_bytes
}

fn bytes(outcome: &ToolOutcome) -> usize {
    let content = match &outcome.content {
        ToolContent::Text(text) => text.len(),
        other => serde_json::to_string(other).map_or(usize::MAX, |text| text.len()),
    };
    let data = outcome.data.as_ref().map(|data| data.to_string().len());
    content.saturating_add(data.unwrap_or(0))
}
