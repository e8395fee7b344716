//! A model that responds from a script.
//!
//! The script has one response per call. Each builder method adds to the current response;
//! [`then`](ScriptedModel::then) begins the next one.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_test::ScriptedModel;
//! use serde_json::json;
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new()
//!     .text("Let me look.")
//!     .tool_call("search", json!({ "query": "tower" }))
//!     .then()
//!     .deltas(["It is ", "a library."]);
//!
//! let first = model.clone().oneshot(ChatRequest::user("What is tower?")).await?.collect().await?;
//! assert_eq!(first.message.tool_calls().count(), 1);
//! let second = model.clone().oneshot(ChatRequest::user("And?")).await?;
//! assert_eq!(second.text().await?, "It is a library.");
//!
//! assert_eq!(model.calls(), 2);
//! assert_eq!(model.request(0).transcript.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # How a response ends
//!
//! | last method | the response |
//! |---|---|
//! | none of these | finishes, with the reason `ToolCalls` if it has calls for the loop, else `Stop` |
//! | [`finish`](ScriptedModel::finish) | finishes with that value |
//! | [`error`](ScriptedModel::error) | fails: the future if there is no content before it, else the last item |
//! | [`end_early`](ScriptedModel::end_early) | ends without a terminal item, or fails as truncated if there is no content before |
//! | [`never`](ScriptedModel::never) | stays pending forever |
//!
//! As with a provider, the future resolves when the first content is ready, and no sooner.
//!
//! # Usage
//!
//! A response whose [head](ScriptedModel::head) names a model records its [usage](ScriptedModel::usage) in the
//! run, as the models of providers do: when it finishes, and as an
//! [estimate](concentric_core::Context::record_estimated_usage) when it fails or is dropped.

mod body;
mod script;
mod service;

pub use self::{
    body::ScriptedBody,
    service::{ResponseFuture, ScriptedModel},
};
