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
//! | `error-limit` | `ErrorLimit` | `consecutive`, `total` | `stop` |
//! | `loop-detector` | `LoopDetector` | `limit`, `window` | `stop` |
//! | `step-approval` | `StepApproval` | `after`, `steps` | `stop` |
//!
//! Layers that need a value of the program, such as a store, are registered by the program.

mod builtin;
mod error;
mod registry;
mod stack;

pub use self::registry::{MAX_LAYERS, Registry};
