//! One call through a layer that may answer or repeat it.

use super::{
    drive, noop,
    script::{CHUNK, Model, Script, TOOL},
    stream::expected,
    tools,
};
use concentric_core::{AgentLayer, ChatRequest, Error, Event, ModelService};
use concentric_layers::{
    response_cache::{CacheScope, ResponseCacheLayer},
    retry::RetryModel,
    tool_cache::ToolCacheLayer,
};
use futures_core::Stream;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    time::Duration,
};
use tower::{Layer, ServiceExt, retry::RetryLayer};

/// A model call with one event, without a loop.
pub(crate) fn none(count: u64) {
    drive::concentric(Model(Script::Text(1)), count, expected(1));
}

/// A retry policy whose model does not fail.
pub(crate) fn retry(count: u64) {
    let retry = RetryLayer::new(RetryModel::new(3));
    drive::concentric(retry.layer(Model(Script::Text(1))), count, expected(1));
}

/// A call that is answered from the cache.
pub(crate) fn cache_hit(count: u64) {
    let cache = ResponseCacheLayer::new(CacheScope::Shared);
    drive::concentric(cache.layer(Model(Script::Text(1))), count, expected(1));
}

/// A call whose answer is stored, in place of the one before.
pub(crate) fn cache_miss(count: u64) {
    let cache = ResponseCacheLayer::new(CacheScope::Run);
    drive::concentric(cache.layer(Model(Script::Text(1))), count, expected(1));
}

/// The events that each of two readers receives.
pub(crate) const SHARED: usize = 2_000;

/// Two readers, in turn, of two calls.
pub(crate) fn two_calls(count: u64) {
    two_readers(&Model(Script::Text(SHARED)), count);
}

/// Two readers, in turn, of one call.
pub(crate) fn cache_shared(count: u64) {
    // An answer that is stored is not used by the next run.
    let cache = ResponseCacheLayer::new(CacheScope::Shared).ttl(Duration::ZERO);
    two_readers(&cache.layer(Model(Script::Text(SHARED))), count);
}

fn two_readers<S>(service: &S, count: u64)
where
    S: ModelService<Error = Error> + Clone,
{
    for _ in 0..count {
        let text = drive::block_on(async {
            let call = || service.clone().oneshot(ChatRequest::user("hi"));
            let (one, other) = (call().await?, call().await?);
            let (mut one, mut other) = (pin!(one.body), pin!(other.body));
            let mut bytes = 0;
            // Both end with the same item.
            while let Some(read) = next(one.as_mut()).await? {
                bytes += read;
                bytes += next(other.as_mut()).await?.unwrap_or_default();
            }
            Ok::<_, Error>(bytes)
        });
        assert_eq!(text.expect("the call must not fail"), 2 * SHARED * CHUNK);
    }
}

/// The text of the next event.
async fn next<B>(mut body: Pin<&mut B>) -> Result<Option<usize>, Error>
where
    B: Stream<Item = Result<Event, Error>>,
{
    let event = poll_fn(|cx| body.as_mut().poll_next(cx))
        .await
        .transpose()?;
    Ok(event.map(|event| match event {
        Event::TextDelta(text) => text.len(),
        _ => 0,
    }))
}

/// Turns that call a tool once each, and receive stored results.
pub(crate) fn tool_cache_hit<const TURNS: usize>(count: u64) {
    tool_cache(CacheScope::Shared, TURNS, count);
}

/// Turns that call a tool once each, with results that are stored for the run.
pub(crate) fn tool_cache_miss<const TURNS: usize>(count: u64) {
    tool_cache(CacheScope::Run, TURNS, count);
}

fn tool_cache(scope: CacheScope, turns: usize, count: u64) {
    let cache = ToolCacheLayer::new(scope).tools([TOOL]);
    let agent = AgentLayer::new(noop::toolset().layer(cache)).step_limit(turns as u32 + 1);
    let model = Model(Script::Calls { turns, each: 1 });
    drive::concentric(agent.layer(model), count, tools::expected(turns));
}
