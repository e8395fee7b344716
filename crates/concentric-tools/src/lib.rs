//! Typed tools, their schemas and toolsets.
//!
//! A [`Tool`] is made of an async function and knows the JSON Schema of its arguments; a
//! [`Toolset`] is what an [`AgentLayer`](concentric_core::AgentLayer) executes the model's tool
//! calls by. Both are tower services and take tower layers.
//!
//! ```
//! use concentric_tools::{Json, Tool, ToolError, Toolset, tool};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Search {
//!     /// What to look for.
//!     query: String,
//!     /// How many files to return at the most.
//!     #[serde(default)]
//!     limit: Option<u32>,
//! }
//!
//! #[derive(Serialize)]
//! struct Found {
//!     files: Vec<String>,
//! }
//!
//! let search = tool("search", "Finds files by their content.", |args: Search| async move {
//!     let limit = args.limit.unwrap_or(10);
//!     if limit > 100 {
//!         return Err(ToolError::new("At most 100 files can be returned."));
//!     }
//!     Ok(Json(Found { files: vec![format!("{}.txt", args.query)] }))
//! })
//! .read_only()
//! .timeout(Duration::from_secs(10));
//!
//! let tools = Toolset::new().tool(search);
//! assert!(tools.check().is_ok());
//! // AgentLayer::new(tools)
//! ```
//!
//! # What stands around a function
//!
//! From the outside in; each layer is told of every call exactly once, of those too that the loop
//! refused and of those to tools that do not exist:
//!
//! 1. the toolset's layers ([`Toolset::layer`]), the first added outermost;
//! 2. the router, which answers refused and unknown calls;
//! 3. the tool's own layers ([`Tool::layer`]), the first added outermost;
//! 4. the tool's own care: its arguments are decoded and validated, its panics are caught, its
//!    time and the size of its result are limited;
//! 5. the function.
//!
//! # When what happens
//!
//! | | the model reads | the run |
//! |---|---|---|
//! | the function returns `Ok` | what it returned | goes on |
//! | it returns `Err` | the error's own text, and nothing of its sources | goes on |
//! | it returns [`ToolError::fatal`], or a layer [`fatal`] | | fails |
//! | it, or a layer, panics | that it failed unexpectedly | goes on |
//! | it takes longer than [`Tool::timeout`] | that it timed out | goes on; fails with [`Tool::timeout_is_fatal`] |
//! | a layer returns `Err` | the error's own text | goes on; fails with [`Toolset::errors_are_fatal`] |
//! | the arguments are not JSON, or not what the schema says | where and why | goes on, and the function is not called |
//! | its result is over [`Tool::max_result_bytes`] | the first 80 % and the last 20 % of the limit | goes on |
//! | an outcome halts the run, or the run is cancelled | | no further call of the round starts; those are settled as cancelled |
//! | the round's stream is dropped | | every running function is dropped at once |

mod arguments;
mod error;
mod layers;
mod outcome;
mod overlong;
mod panic;
pub mod tool;
pub mod toolset;

pub use self::{
    arguments::NoArguments,
    error::{ToolError, ToolsetError, fatal, is_fatal},
    outcome::{IntoOutcome, Json},
    overlong::Overlong,
    tool::{Tool, blocking_tool, blocking_tool_with_context, tool, tool_with_context},
    toolset::Toolset,
};
