use super::{
    RateLimitBody, ResponseFuture,
    bucket::{Buckets, Demand, amount},
};
use crate::{shared::Shared, tokens::Estimator};
use concentric_core::{
    BoxError, ChatRequest, ChatResponse, Error, Event, Str, Usage, store::Quota,
};
use futures_core::Stream;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tower_layer::Layer;
use tower_service::Service;

/// [`Layer`] that keeps model calls within a quota ([`RateLimit`]).
///
/// Services created by a layer and its clones share its quotas. See the [module docs](super) for an example.
#[derive(Clone)]
pub struct RateLimitLayer {
    quota: Quota,
    key: Option<Arc<Of<ChatRequest, Str>>>,
    quota_of: Arc<Of<str, Option<Quota>>>,
    // `None` for the estimate of this layer.
    estimate: Option<Arc<Of<ChatRequest, Usage>>>,
    estimator: Estimator,
    priority: Option<Arc<Of<ChatRequest, u8>>>,
    wait: Duration,
    queue: usize,
    follows: bool,
    ignores_cached: bool,
    shared: Option<Shared>,
    buckets: Arc<Buckets>,
}

type Of<T, R> = dyn Fn(&T) -> R + Send + Sync;

impl RateLimitLayer {
    /// Creates a layer with one quota for all calls.
    pub fn new(quota: Quota) -> Self {
        Self {
            quota,
            key: None,
            quota_of: Arc::new(|_| None),
            estimate: None,
            estimator: Estimator::new(),
            priority: None,
            wait: Duration::from_secs(30),
            queue: 1_000,
            follows: true,
            ignores_cached: false,
            shared: None,
            buckets: Arc::default(),
        }
    }

    /// Gives each key a quota of its own. Up to 10,000 keys that do not have their whole quota left are
    /// distinguished; calls of further ones share the quota of the empty key.
    #[must_use]
    pub fn by(mut self, key: impl Fn(&ChatRequest) -> Str + Send + Sync + 'static) -> Self {
        self.key = Some(Arc::new(key));
        self
    }

    /// Sets the quotas of single keys, such as those of a plan; `None` for the quota of the layer. Read when
    /// a key is first used, or used again after its quota was full.
    #[must_use]
    pub fn quotas(mut self, of: impl Fn(&str) -> Option<Quota> + Send + Sync + 'static) -> Self {
        self.quota_of = Arc::new(of);
        self
    }

    /// Sets the estimate of the tokens of a call, for example with another
    /// [`TokenCounter`](crate::tokens::TokenCounter):
    ///
    /// ```
    /// use concentric_core::{ChatRequest, Usage};
    /// use concentric_layers::{RateLimitLayer, tokens::TokenCounter};
    ///
    /// fn counted_by(limit: RateLimitLayer, counter: impl TokenCounter) -> RateLimitLayer {
    ///     limit.estimate(move |request: &ChatRequest| {
    ///         let output = request.options.max_output_tokens.unwrap_or(1_000);
    ///         Usage::new(counter.request(request), output.into())
    ///     })
    /// }
    /// ```
    #[must_use]
    pub fn estimate(mut self, of: impl Fn(&ChatRequest) -> Usage + Send + Sync + 'static) -> Self {
        self.estimate = Some(Arc::new(of));
        self
    }

    /// Does not count input that the provider read from its cache, as with providers whose limits do not include
    /// it.
    #[must_use]
    pub fn ignore_cached_input(mut self) -> Self {
        self.ignores_cached = true;
        self
    }

    /// Shares the quotas with other processes. See [the module docs](super#several-processes).
    #[must_use]
    pub fn shared(mut self, shared: Shared) -> Self {
        self.shared = Some(shared);
        self
    }

    /// Sets how long a call may wait, by the clock of its run; the default is 30 seconds. With zero, a
    /// call that would wait fails at once.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Serves waiting calls with a greater number first, and calls with the same one in turns of their tenants. By
    /// default all have the same.
    #[must_use]
    pub fn priority(mut self, of: impl Fn(&ChatRequest) -> u8 + Send + Sync + 'static) -> Self {
        self.priority = Some(Arc::new(of));
        self
    }

    /// Sets whether the [rate limits](super#the-providers-limits) that the provider reports are followed; by
    /// default, they are.
    #[must_use]
    pub fn follow_provider(mut self, follows: bool) -> Self {
        self.follows = follows;
        self
    }

    /// Sets how many calls of a key may wait; the default is 1,000. Of a [shared](Self::shared) quota, at least 64 may,
    /// since the store is asked first.
    #[must_use]
    pub fn queue(mut self, calls: usize) -> Self {
        self.queue = calls;
        self
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("quota", &self.quota)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit {
            inner,
            layer: self.clone(),
        }
    }
}

/// Middleware that keeps model calls within a quota.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: RateLimitLayer,
}

impl<S> RateLimit<S> {
    /// Gets a reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B> Service<ChatRequest> for RateLimit<S>
where
    S: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Response = ChatResponse<RateLimitBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let layer = &self.layer;
        let key = layer.key.as_ref().map(|key| key(&request));
        let quota = |key: &Str| (layer.quota_of)(key).unwrap_or(layer.quota);
        let bucket = layer
            .buckets
            .get(key, quota, layer.shared.as_ref(), &request.context);
        let most_output = request.options.max_output_tokens;
        let most_output = most_output.map_or(f64::INFINITY, f64::from);
        let tokens = |tokens: Option<u64>| tokens.map_or(0.0, amount);
        let (estimate, usual) = match &layer.estimate {
            Some(of) => (of(&request), None),
            None => (layer.estimator.call(&request), bucket.usual_output()),
        };
        let output = match usual {
            Some(usual) => usual.min(most_output),
            None => tokens(estimate.output_tokens()),
        };
        let amounts = [1.0, tokens(estimate.input_tokens()), output];
        let priority = layer.priority.as_ref().map_or(0, |of| of(&request));
        let demand = Demand {
            bucket,
            context: request.context.clone(),
            amounts,
            rank: u8::MAX - priority,
            wait: layer.wait,
            queue: layer.queue,
            follows: layer.follows,
            ignores_cached: layer.ignores_cached,
            most_output,
        };
        ResponseFuture::new(self.inner.clone(), request, demand)
    }
}
