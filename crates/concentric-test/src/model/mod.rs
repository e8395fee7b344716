//! A model that says what its script says.
//!
//! A script is one answer per call. What is added goes to the answer that is being written;
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
//! # How an answer ends
//!
//! | written | the answer |
//! |---|---|
//! | nothing | finishes; its reason is `ToolCalls` if it has calls for the loop, else `Stop` |
//! | [`finish`](ScriptedModel::finish) | finishes so |
//! | [`error`](ScriptedModel::error) | fails: as the future if no content came before, else as the last item |
//! | [`end_early`](ScriptedModel::end_early) | ends without a terminal item, or fails as truncated if no content came before |
//! | [`never`](ScriptedModel::never) | goes on for ever without a word |
//!
//! Like a provider's, its future resolves when the first content is ready, and no sooner.

mod body;
mod script;
mod service;

pub use self::{
    body::ScriptedBody,
    service::{ResponseFuture, ScriptedModel},
};
