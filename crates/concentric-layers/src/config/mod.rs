//! Stacks from configuration: a registry of layers by name, with checked options.
//!
//! A [`Registry`] builds agents from JSON or TOML: the list of their layers, outermost first, with
//! the loop (`agent`) among them. A layer's position in the list is its position in the stack.
//!
//! ```
//! use concentric_core::{BoxModel, Error, NoTools};
//! use concentric_layers::{CommitLayer, config::Registry};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use tower::Layer;
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Hold {
//!     #[schemars(range(min = 1))]
//!     bytes: usize,
//! }
//!
//! fn agent(model: BoxModel) -> Result<BoxModel, Error> {
//!     let registry = Registry::builtin()
//!         .layer("hold", |options: Hold| Ok(CommitLayer::whole().limit(options.bytes)));
//!     let agent = registry.toml(
//!         r#"
//!         [[layers]]
//!         use = "defaults"
//!         options = { model = "gpt-5.5", system = "Be brief." }
//!
//!         [[layers]]
//!         use = "agent"
//!         options.step_limit = 8
//!
//!         [[layers]]
//!         use = "hold"
//!         options.bytes = 65536
//!         "#,
//!         NoTools,
//!     )?;
//!     Ok(agent.layer(model))
//! }
//! # let _ = agent;
//! let wrong = r#"{"layers": [{"use": "agent", "options": {"steps": 8}}]}"#;
//! let error = Registry::builtin().json(wrong, NoTools).unwrap_err();
//! assert!(error.message().starts_with("`layers[0].options`: "));
//! ```
//!
//! # The document
//!
//! | key | value |
//! |---|---|
//! | `layers` | the list of layers, at most [`MAX_LAYERS`], with exactly one `agent` |
//! | `layers[i].use` | the name of the layer |
//! | `layers[i].options` | its options; the default is an empty object |
//!
//! The options are checked against the JSON Schema of their type, and then deserialized.
//! [`Registry::schema`] is the schema of the whole document, for editors. An error names the key.
//!
//! # Layers of [`Registry::builtin`]
//!
//! | name | layer | options | feature |
//! |---|---|---|---|
//! | `agent` | [`AgentLayer`](concentric_core::AgentLayer) | `step_limit`, `call_limit` | |
//! | `defaults` | [`RequestDefaultsLayer`](crate::RequestDefaultsLayer) | `model`, `system`, `max_output_tokens`, `temperature` | |
//! | `commit` | [`CommitLayer`](crate::CommitLayer) | `at`, `limit` | |
//! | `budget` | `BudgetPlugin` | `limits` | `budget` |
//! | `detach` | `DetachLayer` | `limit`, `within_seconds` | `detach` |
//! | `in-flight` | `InFlightLimitLayer` | `max`, `queue` | `in-flight` |
//! | `log` | `LogLayer` | `preset`, `content` | `log` |
//! | `otel` | `Otel`: the spans of runs and tools outside the loop, those of model calls inside it | `content` | `otel` |
//! | `retry` | tower's `RetryLayer` with `RetryModel` | `attempts`, `backoff_seconds`, `max_retry_after_seconds` | `retry` |
//! | `circuit-breaker` | `CircuitBreakerLayer` | `name`, `failure_rate` or `consecutive`, `window_seconds`, `minimum_calls`, `slow`, `open_for_seconds`, `longest_open_seconds`, `probes` | `circuit-breaker` |
//! | `rate-limit` | `RateLimitLayer` | `requests`, `input_tokens`, `output_tokens`, `per_seconds`, `ignore_cached_input`, `follow_provider`, `wait_seconds`, `queue` | `rate-limit` |
//! | `response-cache` | `ResponseCacheLayer` | `scope`, `ttl_seconds`, `max_bytes`, `total_bytes`, `tool_calls` | `response-cache` |
//! | `tool-cache` | `ToolCacheLayer` | `scope`, `tools`, `ttl_seconds`, `entries`, `max_bytes` | `tool-cache` |
//! | `guard` | `GuardLayer` | `rules`, `patterns`, `block`, `flag`, `input`, `output`, `block_with`, `limit` | `guard` |
//! | `static-memory` | `StaticMemoryLayer` | `documents`, `reference`, `max_bytes` | `static-memory` |
//! | `trim` | `TrimLayer` | `by`, `limit`, `head`, `marker`, `drop_reasoning`, `drop_media` | `trim` |
//! | `clear-results` | `ClearToolResultsLayer` | `trigger`, `keep`, `clear_at_least`, `inputs`, `except`, `placeholder` | `clear-results` |
//! | `error-limit` | `ErrorLimit` | `consecutive`, `total` | `stop` |
//! | `loop-detector` | `LoopDetector` | `limit`, `window` | `stop` |
//! | `step-approval` | `StepApproval` | `after`, `steps` | `stop` |
//!
//! An option that is left out has the default of its layer. Layers that need a value of the program are registered by
//! the program: a store (`ConversationLayer`, `DynamicMemoryLayer`, `SuspendLayer`), a model (`CompactionLayer`,
//! `FallbackLayer`), a classifier (`GuardrailLayer`).

mod builtin;
mod error;
mod registry;
mod stack;

pub use self::registry::{MAX_LAYERS, Registry};
