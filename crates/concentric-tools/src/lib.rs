//! Typed tools and toolsets, and all that happens to a tool call: gates, approvals that survive a
//! restart, hooks, skills, agents as tools.
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
//! # What happens to a call
//!
//! All calls of a round are decided about before one of them runs; a call that is taken up after it
//! waited goes the same way.
//!
//! 1. Prepare: with a gate or a prepare stage, the arguments are decoded and validated, and
//!    [`Toolset::prepare`] may edit them.
//! 2. Gate: [`Toolset::gate`]. The strictest verdict holds; a call that is asked about waits
//!    ([`approval`]), and its [`Siblings`] with it or not.
//! 3. Execute, from the outside in. Only a call that may run enters the layers. One that has its
//!    outcome already ([`ToolCall::settled`]: refused, denied, executed elsewhere, or of a tool that
//!    does not exist) reaches no layer, so that none can replace that outcome; [`Toolset::hooks`]
//!    observe it:
//!     1. the run's own layers ([`ToolLayers`]);
//!     2. the toolset's ([`Toolset::layer`]), the first added outermost; [hooks] are such, too;
//!     3. the router;
//!     4. the tool's own ([`Tool::layer`]), the first added outermost;
//!     5. the check that the call arrives as it was decided about, and the [ledger](Toolset::ledger);
//!     6. the tool's own care: its arguments are decoded and validated, its panics are caught, its
//!        time and the size of its result are limited;
//!     7. the function.
//! 4. Settle: each call has one outcome, in the order of the calls.
//!
//! [`ToolCall::settled`]: concentric_core::ToolCall::settled
//!
//! # When what happens
//!
//! | | the model reads | the run |
//! |---|---|---|
//! | the function returns `Ok` | what it returned | goes on |
//! | it returns [`ToolError::new`] | the error's text, and nothing of its sources | continues |
//! | it returns another error by `?` | a fixed text; the error goes to the log | continues |
//! | it returns [`ToolError::fatal`], or a layer [`fatal`] | | fails |
//! | it, or a layer, panics | that it failed unexpectedly | continues, see below |
//! | it takes longer than [`Tool::timeout`] | that it timed out | continues, see below; fails with [`Tool::timeout_is_fatal`] |
//! | a layer drops the call while it runs, such as tower's `Timeout` | that it timed out | continues, see below |
//! | a layer returns `Err` | a fixed text; the error goes to the log | continues; fails with [`Toolset::errors_are_fatal`] |
//! | a layer returns an error that [halts](concentric_core::Error::halted) | the reason | is halted |
//! | the arguments are not JSON, or not valid by the schema that the model was shown | where and why | continues, and the function is not called |
//! | a gate denies it, or somebody does | why | goes on |
//! | a gate asks | | is interrupted when all that may run has run; goes on with the reply |
//! | a reply can't be believed | that the approval is invalid | goes on, and an event `approval-invalid` says so |
//! | its process ends while it runs | what a ledger, the tool or somebody knows of it | goes on elsewhere, and does not run it again |
//! | its result is over [`Tool::max_result_bytes`] | the first 80 % and the last 20 % of the limit | goes on |
//! | an outcome halts the run, or the run is cancelled | | no further call of the round starts; those are settled as cancelled |
//! | the round's stream is dropped | | every running function is dropped at once |
//!
//! # Calls that are given up
//!
//! A call that was given up while it ran (a time limit, a panic, a layer that dropped it) may have
//! taken effect. If its tool may run again, because it is [read-only](Tool::read_only), idempotent or
//! [keyed](Tool::keyed), the call has failed. Otherwise its outcome is
//! [unknown](concentric_core::ToolStatus::Unknown), and it is treated as a call whose process ended:
//!
//! 1. [`Tool::reconcile`] may report the outcome.
//! 2. With a [ledger](Toolset::ledger), whose entry stays begun, the run is interrupted, and a person
//!    is asked ([`UNKNOWN_EFFECT`](concentric_core::interrupt::UNKNOWN_EFFECT)).
//! 3. Otherwise the model reads "This call was started earlier and its outcome is unknown. It was not
//!    retried.", and the reason.

pub mod agent;
pub mod approval;
mod arguments;
mod digest;
mod error;
pub mod gate;
pub mod hooks;
mod layers;
pub mod lazy;
pub mod lifecycle;
pub mod matcher;
mod outcome;
pub mod output;
mod overlong;
mod panic;
pub mod retry;
pub mod scoped;
pub mod skills;
pub mod token;
pub mod tool;
pub mod toolset;

pub use self::{
    agent::{agent_tool, agent_tool_with},
    approval::{Approval, ApprovalEvent, Ask},
    arguments::NoArguments,
    digest::Digest,
    error::{ToolError, ToolsetError, fatal, is_fatal},
    gate::{Decided, Gate, Pins, Verdict, gate_fn},
    hooks::{BeforeCall, Flow, ToolHooks, ToolHooksLayer, after_fn, before_fn},
    lazy::{LazyTools, offer_tools},
    lifecycle::{ProtocolEntry, ProtocolStep, RoundEnd, Siblings, Tokens, ToolLifecycle},
    matcher::Matcher,
    outcome::{IntoOutcome, Json},
    output::{Output, OutputError, output},
    overlong::Overlong,
    retry::RetryTool,
    scoped::{ScopedExt, ScopedLayer},
    skills::{Skill, Skills},
    tool::{Tool, blocking_tool, blocking_tool_with_context, tool, tool_with_context},
    toolset::{ToolLayers, Toolset},
};
