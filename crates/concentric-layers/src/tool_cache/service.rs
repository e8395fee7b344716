use super::{
    call::cached,
    key::Key,
    layer::{Options, Stored},
};
use concentric_core::{BoxError, Error, ToolCall, ToolOutcome};
use moka::future::Cache;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tower::ServiceExt;
use tower_service::Service;

/// Middleware that answers repeated tool calls from earlier results.
#[derive(Clone)]
pub struct ToolCache<S> {
    inner: S,
    options: Options,
    results: Arc<Cache<Key, Stored>>,
}

impl<S> ToolCache<S> {
    pub(super) const fn new(inner: S, options: Options, results: Arc<Cache<Key, Stored>>) -> Self {
        Self {
            inner,
            options,
            results,
        }
    }

    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S> Service<ToolCall> for ToolCache<S>
where
    S: Service<ToolCall, Response = ToolOutcome> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    type Response = ToolOutcome;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<ToolOutcome, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The future waits for the inner service, because a hit does not reach it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let inner = self.inner.clone();
        match Key::of(&self.options, &call) {
            Some(key) => {
                let (options, results) = (self.options.clone(), self.results.clone());
                Box::pin(cached(inner, call, key, options, results))
            }
            None => {
                Box::pin(async { inner.oneshot(call).await.map_err(|e| Error::from(e.into())) })
            }
        }
    }
}

concentric_core::opaque_debug!(ToolCache<S>);
