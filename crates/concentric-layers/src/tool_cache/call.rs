use super::{
    key::Key,
    layer::{Options, Stored},
};
use crate::caching::SharedStore;
use concentric_core::{
    BoxError, CustomEvent, Error, OutcomeSource, ToolCall, ToolContent, ToolOutcome, ToolStatus,
};
use moka::future::Cache;
use serde_json::json;
use std::{sync::Arc, time::Duration};
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
        && stored.age(now()) >= options.cache.ttl
    {
        results.invalidate(&key).await;
    }
    // One lookup in the store is enough.
    let mut has_looked = options.cache.store.is_none();
    loop {
        if !may_wait && let Some(stored) = results.get(&key).await {
            return Ok(hit(call, &stored));
        }
        // Set by this call's own execution.
        let mut own = None;
        let execution = async {
            if !std::mem::replace(&mut has_looked, true) {
                match find(call, &key, &options).await {
                    Ok(None) => {}
                    Ok(Some(stored)) => return Ok(stored),
                    Err(error) => {
                        own = Some(Err(error));
                        return Err(NotStored);
                    }
                }
            }
            let result = inner.clone().oneshot(call.clone()).await;
            let result = result.map_err(|error| Error::from(error.into()));
            let result = &*own.insert(result);
            match result {
                Ok(outcome) if is_stored(outcome, options.cache.max_bytes) => {
                    let stored = Stored {
                        outcome: Arc::new(outcome.clone()),
                        at: now(),
                        aged: Duration::ZERO,
                    };
                    let outcome = Arc::clone(&stored.outcome);
                    let json = move || serde_json::to_vec(&*outcome).ok();
                    let in_store = |store: &SharedStore| key.in_store(store);
                    options.cache.store(in_store, &call.context, json);
                    Ok(stored)
                }
                _ => Err(NotStored),
            }
        };
        let shared = match may_wait {
            true => results.try_get_with(key.clone(), execution).await.ok(),
            false => match execution.await {
                Ok(stored) => {
                    results.insert(key.clone(), stored.clone()).await;
                    Some(stored)
                }
                Err(NotStored) => None,
            },
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

/// Looks the result of a call up in the store.
async fn find(call: &ToolCall, key: &Key, options: &Options) -> Result<Option<Stored>, Error> {
    let cache = &options.cache;
    // Another process may store larger results.
    let read = |json: &[u8]| {
        let outcome: ToolOutcome = serde_json::from_slice(json).ok()?;
        is_stored(&outcome, cache.max_bytes).then_some(outcome)
    };
    let in_store = |store: &SharedStore| key.in_store(store);
    let found = cache.find(in_store, &call.context, read).await?;
    let at = call.context.environment().clock().monotonic();
    Ok(found.map(|(outcome, aged)| Stored {
        outcome: Arc::new(outcome),
        at,
        aged,
    }))
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
