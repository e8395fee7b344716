//! Layers that decide whether and when a call is made.

use crate::config::Registry;
#[cfg(feature = "tool-cache")]
use concentric_core::agent::Installer;
#[cfg(any(
    feature = "circuit-breaker",
    feature = "rate-limit",
    feature = "response-cache",
    feature = "retry",
    feature = "tool-cache"
))]
use {
    super::{Seconds, set},
    schemars::JsonSchema,
    serde::Deserialize,
};

#[cfg(feature = "retry")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Retry {
    /// The number of attempts, with the first.
    #[schemars(range(min = 1))]
    attempts: u32,
    /// The upper bound of the first pause, and of all.
    backoff_seconds: Option<[Seconds; 2]>,
    /// The longest pause that a provider may request.
    max_retry_after_seconds: Option<Seconds>,
}

#[cfg(feature = "circuit-breaker")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CircuitBreaker {
    /// The name in errors, events and the log.
    name: String,
    /// The share of failed calls that opens the circuit.
    #[schemars(range(min = 0.0, max = 1.0))]
    failure_rate: Option<f64>,
    /// The number of failures in a row that opens the circuit, in place of a rate.
    #[schemars(range(min = 1))]
    consecutive: Option<u32>,
    /// The time over which calls are counted.
    window_seconds: Option<Seconds>,
    minimum_calls: Option<u32>,
    slow: Option<Slow>,
    open_for_seconds: Option<Seconds>,
    longest_open_seconds: Option<Seconds>,
    #[schemars(range(min = 1))]
    probes: Option<u32>,
}

#[cfg(feature = "circuit-breaker")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Slow {
    /// The time to the first content from which a call is slow.
    first_content_seconds: Seconds,
    /// The share of slow calls that opens the circuit.
    #[schemars(range(min = 0.0, max = 1.0))]
    rate: f64,
}

#[cfg(feature = "rate-limit")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RateLimit {
    requests: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    /// The period of the quota; a minute by default.
    per_seconds: Option<Seconds>,
    #[serde(default)]
    ignore_cached_input: bool,
    follow_provider: Option<bool>,
    /// The time that a call may wait.
    wait_seconds: Option<Seconds>,
    /// The number of calls that may wait.
    queue: Option<usize>,
}

/// The calls that share results.
#[cfg(any(feature = "response-cache", feature = "tool-cache"))]
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Scope {
    Run,
    Thread,
    Tenant,
    Shared,
}

#[cfg(any(feature = "response-cache", feature = "tool-cache"))]
impl From<Scope> for crate::caching::CacheScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Run => Self::Run,
            Scope::Thread => Self::Thread,
            Scope::Tenant => Self::Tenant,
            Scope::Shared => Self::Shared,
        }
    }
}

#[cfg(feature = "response-cache")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResponseCache {
    scope: Scope,
    ttl_seconds: Option<Seconds>,
    /// The maximum size of an answer.
    max_bytes: Option<usize>,
    /// The maximum size of all answers.
    total_bytes: Option<u64>,
    /// Whether answers with tool calls are stored.
    #[serde(default)]
    tool_calls: bool,
}

#[cfg(feature = "tool-cache")]
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ToolCache {
    scope: Scope,
    /// The tools whose calls are cached; by default those that are read-only.
    tools: Option<Vec<String>>,
    ttl_seconds: Option<Seconds>,
    /// The maximum number of results.
    entries: Option<u64>,
    /// The maximum size of a result.
    max_bytes: Option<usize>,
}

pub(super) fn register(registry: Registry) -> Registry {
    caches(attempts(registry))
}

fn attempts(registry: Registry) -> Registry {
    #[cfg(feature = "retry")]
    let registry = registry.layer("retry", |options: Retry| {
        let policy = crate::RetryModel::new(options.attempts);
        let backoff = |policy: crate::RetryModel, [first, longest]: [Seconds; 2]| {
            policy.backoff(first.into(), longest.into())
        };
        let policy = set(policy, options.backoff_seconds, backoff);
        let longest = options.max_retry_after_seconds.map(Into::into);
        let policy = set(policy, longest, crate::RetryModel::max_retry_after);
        Ok(tower::retry::RetryLayer::new(policy))
    });
    #[cfg(feature = "circuit-breaker")]
    let registry = registry.layer("circuit-breaker", |options: CircuitBreaker| {
        use crate::CircuitBreakerLayer as Layer;
        if options.failure_rate.is_some() && options.consecutive.is_some() {
            return Err("`failure_rate` and `consecutive` exclude each other".into());
        }
        let layer = Layer::new(options.name);
        let layer = set(layer, options.failure_rate, Layer::failure_rate);
        let layer = set(layer, options.consecutive, Layer::consecutive);
        let layer = set(layer, options.window_seconds.map(Into::into), Layer::window);
        let layer = set(layer, options.minimum_calls, Layer::minimum_calls);
        let layer = set(layer, options.slow, |layer, slow| {
            layer.slow(slow.first_content_seconds.into(), slow.rate)
        });
        let layer = set(
            layer,
            options.open_for_seconds.map(Into::into),
            Layer::open_for,
        );
        let longest = options.longest_open_seconds.map(Into::into);
        let layer = set(layer, longest, Layer::longest_open);
        Ok(set(layer, options.probes, Layer::probes))
    });
    #[cfg(feature = "rate-limit")]
    let registry = registry.layer("rate-limit", |options: RateLimit| {
        use crate::{RateLimitLayer as Layer, rate_limit::Quota};
        let limits = [
            options.requests,
            options.input_tokens,
            options.output_tokens,
        ];
        if limits.iter().all(Option::is_none) {
            return Err("one of `requests`, `input_tokens` and `output_tokens` is required".into());
        }
        let per = options
            .per_seconds
            .map_or(std::time::Duration::from_secs(60), Into::into);
        if per.is_zero() {
            return Err("`per_seconds` must be greater than 0".into());
        }
        let quota = set(Quota::per(per), options.requests, Quota::requests);
        let quota = set(quota, options.input_tokens, Quota::input_tokens);
        let quota = set(quota, options.output_tokens, Quota::output_tokens);
        let layer = match options.ignore_cached_input {
            true => Layer::new(quota).ignore_cached_input(),
            false => Layer::new(quota),
        };
        let layer = set(layer, options.follow_provider, Layer::follow_provider);
        let layer = set(layer, options.wait_seconds.map(Into::into), Layer::wait);
        Ok(set(layer, options.queue, Layer::queue))
    });
    registry
}

fn caches(registry: Registry) -> Registry {
    #[cfg(feature = "response-cache")]
    let registry = registry.layer("response-cache", |options: ResponseCache| {
        use crate::ResponseCacheLayer as Layer;
        let layer = Layer::new(options.scope.into()).tool_calls(options.tool_calls);
        let layer = set(layer, options.ttl_seconds.map(Into::into), Layer::ttl);
        let layer = set(layer, options.max_bytes, Layer::max_bytes);
        Ok(set(layer, options.total_bytes, Layer::total_bytes))
    });
    #[cfg(feature = "tool-cache")]
    let registry = registry.plugin("tool-cache", |options: ToolCache| {
        use crate::ToolCacheLayer as Layer;
        let layer = Layer::new(options.scope.into());
        let layer = set(layer, options.tools, Layer::tools);
        let layer = set(layer, options.ttl_seconds.map(Into::into), Layer::ttl);
        let layer = set(layer, options.entries, Layer::entries);
        let layer = set(layer, options.max_bytes, Layer::max_bytes);
        Ok(|at: &mut Installer<'_>| at.tool_layer(layer))
    });
    registry
}
