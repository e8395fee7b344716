//! A layer that adds documents to the system prompt: rules, facts, the style of a project.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, NoTools};
//! use concentric_layers::StaticMemoryLayer;
//! use concentric_test::ScriptedModel;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let memory = StaticMemoryLayer::new()
//!     .document("style", "Answers have one sentence.")?
//!     .document("prices", "A ticket costs 3 EUR.")?;
//! let model = ScriptedModel::new().text("3 EUR.");
//! let agent = ServiceBuilder::new()
//!     .layer(memory)
//!     .layer(AgentLayer::new(NoTools))
//!     .service(model.clone());
//! agent.oneshot(ChatRequest::user("The price?")).await?.collect().await?;
//! assert!(model.request(0).system.text().contains("A ticket costs 3 EUR."));
//! # Ok(())
//! # }
//! ```
//!
//! # The system prompt
//!
//! The documents are one [segment](concentric_core::SystemSegment) after those of the request, in the order
//! added, each in a frame `<document id="..">`. A text that contains the end of a frame can't leave its own:
//! `</document` is escaped. The segment is fixed for a conversation
//! ([`Stability::Thread`](concentric_core::Stability::Thread)), so that providers cache it. With
//! [`reference`](StaticMemoryLayer::reference), the segment states that the documents are material and not
//! instructions, for texts that the operator did not write.
//!
//! The documents are read when the layer is built; requests share them. A request that has the segment
//! already is not changed.
//!
//! # Place in the stack
//!
//! Outside the loop, inside `SuspendLayer`, since the system prompt is
//! not part of a suspended run. Inside the loop, it has the same effect. The layer keeps no state of a run, so a
//! resumed run has the documents of the layer that it is resumed with.
//!
//! See the [recommended order](crate::order).
//!
//! # Limits and errors
//!
//! The segment has at most 32 KiB ([`max_bytes`](StaticMemoryLayer::max_bytes)), about 8,000 tokens. The
//! methods that add a document fail with
//! [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration) and one of these codes:
//!
//! | code | |
//! |---|---|
//! | [`TOO_LARGE`] | the document exceeds the limit, with those before it |
//! | [`DUPLICATE`] | there is a document with this id |
//! | [`UNREADABLE`] | the file can't be read, is not UTF-8, or is outside the folder |
//!
//! Documents are not cut to the limit, since the rest of a text may say the opposite of the whole, and they are not
//! read again, since a changed prompt is one that no provider has cached: a program that watches its files makes a
//! new agent. Which files apply to whom, as with `AGENTS.md`, is decided by the application, which adds them.
//! Material that is too long for a prompt belongs in a tool that searches it.
//!
//! # Backpressure and cancellation
//!
//! Readiness is forwarded, responses and errors pass unchanged; the future is that of the inner service.

mod layer;
mod service;

pub use self::{
    layer::{DUPLICATE, StaticMemoryLayer, TOO_LARGE, UNREADABLE},
    service::StaticMemory,
};
