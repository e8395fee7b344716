//! A layer that logs the start and the end of runs, model calls and tool calls.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error};
//! use concentric_layers::LogLayer;
//! use concentric_test::ScriptedModel;
//! use concentric_tools::{NoArguments, Toolset, tool};
//! use serde_json::json;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let log = LogLayer::standard();
//! let search = tool("search", "Searches.", |NoArguments {}| async { "nothing" });
//! let agent = ServiceBuilder::new()
//!     .layer(log.clone()) // runs
//!     .layer(AgentLayer::new(Toolset::new().tool(search).hooks(log.clone()))) // tool calls
//!     .layer(log) // model calls
//!     .service(ScriptedModel::new().tool_call("search", json!({})).then().text("Nothing."));
//!
//! // INFO concentric::log: run started run=run_… turns=1
//! // INFO concentric::log: model call started run=run_… step=0 turns=1 tools=1
//! // INFO concentric::log: model call ended run=run_… step=0 outcome="completed" reason="tool_calls" …
//! // ..
//! agent.oneshot(ChatRequest::user("Search.")).await?.collect().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Lines
//!
//! The target is `concentric::log`, the message one of those below. A field without a value is omitted.
//!
//! | message | level | fields |
//! |---|---|---|
//! | `run started` | info | `run`, `agent`, `thread`, `turns`, `tools` |
//! | `model call started` | info | the same, `step` |
//! | `run ended`, `model call ended` | see below | `run`, `agent`, `thread`, `step`, `provider`, `model`, `outcome`, `reason`, `kind`, `code`, `first_ms`, `duration_ms`, `input_tokens`, `output_tokens` |
//! | `tool call started` | info | `run`, `agent`, `step`, `tool`, `call`, `arguments_bytes`, `resumed` |
//! | `tool call ended` | see below | the same, `settled`, `outcome`, `kind`, `code`, `result_bytes`, `duration_ms` |
//!
//! `first_ms` is the time to the first content. A call has one line for its end, whatever the end is:
//!
//! | end | `outcome` | level |
//! |---|---|---|
//! | finish of a run or a model call | `completed`, `interrupted`, `halted`, `aborted`, `step_limit`, `call_limit` | info |
//! | outcome of a tool call | `done`, `denied`, `cancelled` | info |
//! | | `failed` | warn |
//! | | `unknown` | error |
//! | a tool call waits for a reply | `waiting` | info |
//! | error | `failed` | info if the run was cancelled or halted, warn if the error is [retryable](concentric_core::Error::is_retryable), else error |
//! | body without a finish | `truncated` | warn |
//! | future or body dropped | `dropped` | info |
//!
//! If the layer is added with `Toolset::hooks`, calls that do not run are logged as well, since they were
//! refused, denied or executed elsewhere ([`settled`](concentric_core::ToolCall::settled)). They have
//! `settled=true`. A call of a tool that does not exist has `tool="_OTHER"`, since its name is text of the
//! model.
//!
//! # Presets
//!
//! | | [`minimal`](LogLayer::minimal) | [`standard`](LogLayer::standard) | [`verbose`](LogLayer::verbose) |
//! |---|---|---|---|
//! | ends | yes | yes | yes |
//! | starts | | yes | yes |
//! | options of model calls, at debug | | | yes |
//!
//! The target and the levels are fixed: subscribers filter by both. Arguments and results are logged as sizes, and
//! not as digests, since a short text can be guessed from its digest.
//!
//! # Content
//!
//! By default no line contains text of a person, a model, a tool or a provider, since logs outlive
//! conversations; the code of an error is left out unless it has the form of a name. With [`content`](LogLayer::content), the lines also have `input` (the newest user
//! message), `output` (the text of the run's last message), `arguments`, `result` and `error` (the message
//! of an error), each up to a number of characters. [`redact`](LogLayer::redact) rewrites each text before
//! it is cut; if the function panics, the line has `[redaction_failed]` instead of the text. With the feature
//! `guard`, credentials that its rules `secrets` find are replaced in each text, also without `redact`. In a text that
//! is JSON with escapes, both apply to its decoded names and values, too, since an escape may hide a text.
//!
//! # Place in the stack
//!
//! One layer value serves all three places. Outside the loop, it logs runs: place it outermost, to log what
//! the layers inside reject. Inside the loop, it logs model calls: inside a retry or a fallback, each
//! attempt. On tools, it logs tool calls: outermost, with those that other layers answer.
//! [`DebugLayer`](crate::DebugLayer) logs whole requests and events, for development.
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure, errors and cancellation
//!
//! Readiness is forwarded. Responses and errors pass unchanged. Dropping a future or a body drops the inner
//! one. If no subscriber is interested in the target, a call costs one check and no allocation. Texts are copied
//! only for lines whose level is enabled.

mod body;
mod future;
mod layer;
mod lines;
mod service;

pub use self::{
    body::LogBody,
    future::{ResponseFuture, ToolFuture},
    layer::LogLayer,
    service::Log,
};
