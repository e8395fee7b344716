//! Typed tools and toolsets, with gates, approvals that survive a restart, hooks, skills and agents
//! as tools.
//!
//! A [`Tool`] wraps an async function and derives the JSON Schema of its arguments. A [`Toolset`]
//! executes the model's tool calls for an [`AgentLayer`](concentric_core::AgentLayer). Both are
//! tower services and accept tower layers.
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
//! # Stages of a call
//!
//! The gates decide about all calls of a round before the first one runs. A call that resumes after
//! an interrupt passes through the same stages.
//!
//! 1. Prepare: if there is a gate or a prepare stage, the arguments are decoded and validated.
//!    [`Toolset::prepare`] may edit them.
//! 2. Gate: [`Toolset::gate`]. The strictest verdict applies. A call that needs an approval waits
//!    ([`approval`]); [`SiblingPolicy`] determines whether the other calls wait, too.
//! 3. Execute, from the outermost layer to the innermost. Only a call that may run enters the
//!    layers. A call that already has an outcome ([`ToolCall::settled`]: refused, denied, executed
//!    elsewhere, or of an unknown tool) skips the layers, so that no layer can replace the outcome;
//!    [`Toolset::hooks`] observe it:
//!     1. the layers of the run ([`RunOverrides::tool_layer`]);
//!     2. the layers of the toolset ([`Toolset::layer`]), the first added outermost; hooks are
//!        such layers;
//!     3. the router;
//!     4. the layers of the tool ([`Tool::layer`]), the first added outermost;
//!     5. the comparison of the call with the one that was decided about, and the
//!        [ledger](Toolset::ledger);
//!     6. the checks and limits of the tool: decoding and validating the arguments, catching
//!        panics, the timeout, the size limit of the result;
//!     7. the function.
//! 4. Settle: each call has one outcome, in the order of the calls.
//!
//! [`RunOverrides::tool_layer`]: concentric_core::RunOverrides::tool_layer
//! [`ToolCall::settled`]: concentric_core::ToolCall::settled
//!
//! # When
//!
//! | event | the model reads | the run |
//! |---|---|---|
//! | the function returns `Ok` | the returned value | continues |
//! | it returns [`ToolError::new`] | the error's text, without its sources | continues |
//! | it returns another error by `?` | a fixed text; the error goes to the log | continues |
//! | it returns [`ToolError::fatal`], or a layer [`fatal`] | | fails |
//! | it or a layer panics | that the tool failed unexpectedly | continues, see below |
//! | it takes longer than [`Tool::timeout`] | that it timed out | continues, see below; fails with [`Tool::timeout_is_fatal`] |
//! | a layer drops the call while it runs, such as tower's `Timeout` | that it timed out | continues, see below |
//! | a layer returns `Err` | a fixed text; the error goes to the log | continues; fails with [`Toolset::errors_are_fatal`] |
//! | a layer returns an error that [halts](concentric_core::Error::halted) | the reason | is halted |
//! | the arguments are not JSON, or do not match the tool's schema | the position and the reason | continues; the function is not called |
//! | a gate or an approver denies the call | the reason | continues |
//! | a gate requires an approval | | is interrupted after all calls that may run have run; continues with the reply |
//! | a reply fails verification | that the approval is invalid | continues, and an event `approval-invalid` is emitted |
//! | the process ends while the call runs | the outcome, if the ledger, the tool or an operator can provide it | resumes in another process, which does not execute the call again |
//! | the result is over [`Tool::max_result_bytes`] | the first 80 % and the last 20 % of the limit | continues |
//! | an outcome halts the run, or the run is cancelled | | no further call of the round starts; the remaining calls are settled as cancelled |
//! | the round's stream is dropped | | every running function is dropped at once |
//!
//! # Abandoned calls
//!
//! A call that was abandoned while it ran (a time limit, a panic, a layer that dropped it) may have
//! taken effect. If its tool may run again, because it is [read-only](Tool::read_only), idempotent
//! or [keyed](Tool::keyed), the call fails. Otherwise its outcome is
//! [unknown](concentric_core::ToolStatus::Unknown), and it is treated as a call whose process
//! ended:
//!
//! 1. [`Tool::reconcile`] may report the outcome.
//! 2. With a [ledger](Toolset::ledger), the ledger entry stays started, and the run is interrupted
//!    to ask for the outcome ([`UNKNOWN_EFFECT`](concentric_core::interrupt::UNKNOWN_EFFECT)).
//! 3. Otherwise the model reads "This call was started earlier and its outcome is unknown. It was
//!    not retried.", and the reason.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "agent-tool")]
pub mod agent;
pub mod approval;
mod arguments;
mod call;
mod error;
pub mod gate;
#[cfg(feature = "lazy")]
pub mod lazy;
pub mod lifecycle;
pub mod matcher;
mod outcome;
#[cfg(feature = "output")]
pub mod output;
mod panic;
mod pipeline;
pub mod retry;
mod rules;
pub mod scoped;
#[cfg(feature = "skills")]
pub mod skills;
#[cfg(feature = "approval-tokens")]
pub mod token;
pub mod tool;
pub mod toolset;
mod truncation;

#[cfg(feature = "agent-tool")]
pub use self::agent::{agent_tool, agent_tool_with};
#[cfg(feature = "lazy")]
pub use self::lazy::{LazyTools, offer_tools};
#[cfg(feature = "output")]
pub use self::output::{Output, OutputError, output};
#[cfg(feature = "skills")]
pub use self::skills::{Skill, Skills};
#[cfg(feature = "approval-tokens")]
pub use self::token::ApprovalTokens;
pub use concentric_core::{
    digest::Digest,
    fatal::{fatal, is_fatal},
};

pub use self::{
    approval::Approval,
    arguments::NoArguments,
    error::{ErrorFormat, ToolError, ToolsetError},
    gate::{ApprovalEvent, Ask, Decided, Gate, ToolPins, Verdict, gate_fn},
    lifecycle::{RoundEnd, SiblingPolicy, ToolLifecycle},
    matcher::Matcher,
    outcome::{IntoOutcome, Json},
    retry::RetryTool,
    scoped::{ScopedExt, ScopedLayer},
    tool::{Tool, blocking_tool, blocking_tool_with_context, tool, tool_with_context},
    toolset::Toolset,
    truncation::Truncation,
};
