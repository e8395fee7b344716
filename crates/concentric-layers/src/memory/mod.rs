//! A layer that recalls memories of earlier runs, and captures each turn for later ones.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, NoTools, Str};
//! use concentric_layers::DynamicMemoryLayer;
//! use concentric_test::{MemoryStore, ScriptedModel};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! #[derive(Clone)]
//! struct User(Str);
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new().text("Noted.").then().text("Green tea.");
//! let memory = DynamicMemoryLayer::new(MemoryStore::new(), |context| {
//!     // The host's authentication has put the user into the context.
//!     context.extensions().get::<User>().map(|user| user.0.clone())
//! });
//! let agent = ServiceBuilder::new()
//!     .layer(memory)
//!     .layer(AgentLayer::new(NoTools))
//!     .service(model.clone());
//! for text in ["I like green tea.", "Which tea do I like?"] {
//!     let mut request = ChatRequest::user(text);
//!     request.context.extensions_mut().insert(User("ada".into()));
//!     agent.clone().oneshot(request).await?.collect().await?;
//!     // The turn is captured after its end.
//!     tokio::task::yield_now().await;
//! }
//! assert!(model.request(1).system.text().contains("I like green tea."));
//! # Ok(())
//! # }
//! ```
//!
//! # Moments
//!
//! | moment | |
//! |---|---|
//! | a run starts | the owner's memories that match the newest message of the user are added to the system prompt |
//! | the run resumes | gets the memories that it had, from its own state; the store is not searched |
//! | the run completes | its message and its answer are one memory, written after the end of the run ([`Context::defer`](concentric_core::Context::defer)) |
//! | the run is interrupted | nothing; the resumed run captures the turn when it completes |
//! | the run is halted, cancelled or at a limit, fails, ends early or is dropped | nothing. An error of a layer outside, such as that of a conversation that has moved, comes after the end that this layer receives |
//!
//! A turn is captured once, also if its run is resumed after a crash: the id of the memory is in the run's
//! state, and a memory with the same id is replaced. [`capture`](DynamicMemoryLayer::capture) chooses the
//! text from the whole conversation, with the results of tools, or captures nothing. By default they are not captured,
//! since a result may contain instructions of others, which every later run would read. A run that did not complete has
//! no answer to remember, so no option captures it.
//!
//! With [`facts`](DynamicMemoryLayer::facts), a model extracts what is worth remembering from the captured text,
//! and each fact is a memory of its own.
//!
//! # Tools
//!
//! The tools of [`tools`](DynamicMemoryLayer::tools) let the model of the agent itself store, search, replace
//! and delete memories during a run. They are an array, from which a toolset takes those that it needs.
//!
//! # The system prompt
//!
//! The memories are one [segment](concentric_core::SystemSegment) after those of the request, fixed for the
//! run ([`Stability::Run`](concentric_core::Stability::Run)), each in a frame with its id and its age in
//! days. The segment states that they are material and not instructions, since users have written them. A
//! text that contains the end of a frame can't leave its own.
//!
//! # Owners
//!
//! The function of [`new`](DynamicMemoryLayer::new) names the owner of a run's memories, such as a user or a
//! conversation, within the run's [tenant](concentric_core::store::Tenant). A run without an owner has no
//! memories. Layers in one stack work side by side, for different owners, or for one owner with several
//! stores.
//!
//! # Limits
//!
//! | option | default |
//! |---|---|
//! | [`top`](DynamicMemoryLayer::top): recalled memories | 8 |
//! | [`max_bytes`](DynamicMemoryLayer::max_bytes) of the segment; the worst matches are left out | 6,000, about 1,500 tokens |
//! | [`timeout`](DynamicMemoryLayer::timeout) of the search | 2 s |
//! | the query, and a captured text | the first 8 KiB |
//!
//! # Place in the stack
//!
//! Around [`AgentLayer`](concentric_core::AgentLayer), inside a [`SuspendLayer`](crate::SuspendLayer), whose
//! stored runs keep their memories. Inside a loop, the first call fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration). An agent that is a tool has no memories
//! unless its own stack has the layer.
//!
//! See the [recommended order](crate::order).
//!
//! # Failures
//!
//! The layer has no errors of its own. If the search fails, panics or exceeds its time, or the function that
//! names the owner panics, the run proceeds without memories. No option lets a failed search fail the run, since an
//! answer without memories is still one. Failures are logged with the target `concentric::memory`, and those of the
//! model that extracts facts by their kind and code, since a message may quote the conversation. After each search,
//! a [`CustomEvent`](concentric_core::CustomEvent) named `concentric.memory` has the number of recalled memories and
//! whether the search failed: `{"recalled": 2, "failed": false}`.
//!
//! # Backpressure
//!
//! The layer is always ready. Its future waits for the search and then for a clone of the inner service.
//!
//! # Cancel safety
//!
//! Dropping the future drops the search and the inner call. A cancelled run, or one whose deadline passes,
//! stops waiting for the search. A capture that has not started when the process ends is lost.

mod body;
mod facts;
mod future;
mod layer;
mod service;
mod tools;
mod turn;

pub use self::{
    body::DynamicMemoryBody, future::ResponseFuture, layer::DynamicMemoryLayer,
    service::DynamicMemory,
};
