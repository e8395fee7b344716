//! A layer that answers repeated requests from earlier answers, and shares concurrent calls.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, NoTools, store::Tenant};
//! use concentric_layers::response_cache::{CacheScope, ResponseCacheLayer};
//! use concentric_test::ScriptedModel;
//! use std::time::Duration;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new().deltas(["A ", "cat."]);
//! let agent = ServiceBuilder::new()
//!     .layer(AgentLayer::new(NoTools))
//!     .layer(ResponseCacheLayer::new(CacheScope::Tenant).ttl(Duration::from_secs(600)))
//!     .service(model.clone());
//! for _ in 0..2 {
//!     let mut request = ChatRequest::user("What is it?");
//!     request.context.extensions_mut().insert(Tenant("ann".into()));
//!     let answer = agent.clone().oneshot(request).await?;
//!     assert_eq!(answer.text().await?, "A cat.");
//! }
//! assert_eq!(model.calls(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Which requests are cached
//!
//! | request | |
//! |---|---|
//! | with the [digest](concentric_core::digest::Digest::of_request) of an earlier one of its [scope](CacheScope) | answered from the earlier answer |
//! | that continues state of the provider (`previous_response_id`, `conversation` or `container` in [`provider`](concentric_core::ChatOptions::provider)) | passed to the inner service |
//! | that resumes a run of an agent in the model's place | passed to the inner service |
//! | within a call through the same layer, such as one of an agent in the model's place | passed to the inner service, since it could wait for itself |
//! | with [`CacheControl`] in its context's extensions | as that states |
//! | outside the scope, such as `Thread` without a thread id or `Tenant` without a tenant | passed to the inner service |
//!
//! Requests are compared exactly, never by similarity. [`key`](ResponseCacheLayer::key) replaces the digest in this
//! comparison. An answer is stored whether or not the request asks for a random one.
//!
//! # Which answers are stored
//!
//! Answers that are complete, with the finish reason [`Stop`](concentric_core::FinishReason::Stop), some content and
//! no refusal. One that is truncated, filtered, cancelled or fails is not stored, nor is one with tool calls
//! (unless [`tool_calls`](ResponseCacheLayer::tool_calls) is set), with events of other layers, of an agent, or with
//! [lasting edits](concentric_core::ChatResponse::with_edits).
//!
//! A hit has the content in one delta for each part, new ids of calls, and no ids of the provider's response.
//! [`Finish::usage`](concentric_core::Finish::usage) is zero, since nothing was spent; [`Replayed`] is in the
//! [extensions](concentric_core::ChatResponse::extensions) of the answer. A request that makes no call of its own emits
//! a custom event `concentric.response_cache` with the value `{"answer": "stored"}` or `{"answer": "shared"}`.
//!
//! # Concurrent requests
//!
//! Equal requests share one call, also while it streams: each receives all of its events, from the first.
//!
//! | moment | effect |
//! |---|---|
//! | a request has neither a stored answer nor a call in progress | its run makes the call, and is charged for it |
//! | another run waits, and the first is cancelled, late or dropped | only that run ends; the call continues |
//! | the last run that waits is cancelled, late or dropped | the call is dropped |
//! | the call fails before its first event | its run receives the error; one of the others makes another call, for which the rest wait |
//! | the call fails later | requests that have received events receive the error; one of the others makes another call |
//! | the error states [effects](concentric_core::Error::effects) | all receive it, since another call could repeat them |
//! | the answer is of an agent in the model's place, or edits the run | it is of its run; one of the others makes another call |
//! | a reader is slower than others | they do not wait for it |
//! | a reader is more than [`max_bytes`](ResponseCacheLayer::max_bytes) behind | it receives an error with the code [`LAGGED`], or makes another call if it has received nothing |
//! | more than 1,024 calls are in progress | further ones are not shared |
//!
//! The layers inside see the run that makes the call, without its cancellation and its deadline
//! ([`Context::shared`](concentric_core::Context::shared)): what they emit, record and charge is of that run. The finish of
//! that run reports the tokens, or, if that run has ended before, the finish of another one.
//!
//! # A store for several processes
//!
//! With [`store`](ResponseCacheLayer::store), answers are also in a
//! [`CacheStore`](concentric_core::store::CacheStore), such as the `SqliteStore` or `PostgresStore` of
//! `concentric-store`, for other processes and later ones.
//!
//! ```
//! use concentric_core::{ChatRequest, Error};
//! use concentric_layers::response_cache::{CacheScope, ResponseCacheLayer};
//! use concentric_test::{MemoryStore, ScriptedModel};
//! use tower::{Layer, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let store = MemoryStore::new();
//! // The layer of one process. The name changes with the model and with what stands inside the layer.
//! let process = || ResponseCacheLayer::new(CacheScope::Shared).store(store.clone(), "small model, 2");
//!
//! let model = ScriptedModel::new().text("A cat.");
//! let answer = process().layer(model).oneshot(ChatRequest::user("What is it?")).await?;
//! assert_eq!(answer.text().await?, "A cat.");
//! // The run does not wait for the write.
//! tokio::task::yield_now().await;
//!
//! let unused = ScriptedModel::new();
//! let answer = process().layer(unused.clone()).oneshot(ChatRequest::user("What is it?")).await?;
//! assert_eq!(answer.text().await?, "A cat.");
//! assert_eq!(unused.calls(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! | moment | effect |
//! |---|---|
//! | the process has neither an answer nor a call in progress | one lookup in the store, for all requests that wait |
//! | the store has an answer | a hit; it expires [`ttl`](ResponseCacheLayer::ttl) after it was written, by the clock of the store |
//! | the store fails, panics, or does not respond within [`store_wait`](ResponseCacheLayer::store_wait) (250 milliseconds) | the call is made, and a warning is logged; with [`store_required`](ResponseCacheLayer::store_required), the request fails |
//! | the entry is of another version, is damaged, or is one that this layer would not store | the call is made, and replaces it; a warning is logged |
//! | an answer that is stored ends | it is written in a task, for which no run waits. The write is given up after 10 seconds, or if 64 others are in progress |
//! | the last consumer leaves before the end | nothing is written |
//! | [`Refresh`](CacheControl::Refresh) | no lookup; the answer replaces the entry |
//!
//! Calls are shared within a process only: two processes that miss at the same time make one call each. The check of
//! an entry detects accidents, not tampering: a writer of the store controls the answers.
//!
//! [`CacheStore::remove_entries`](concentric_core::store::CacheStore::remove_entries) removes entries, those of
//! [`Shared`](CacheScope::Shared) with the default tenant. Entries of [`Run`](CacheScope::Run) and
//! [`Thread`](CacheScope::Thread) belong to the conversation, and the stores of `concentric-store` delete them with
//! it. A process still uses those that it has read.
//!
//! # Place in the stack
//!
//! Inside the loop, inside layers that change the request, since the key is the request as it arrives, and inside
//! guards, so that a hit is checked by current rules. Outside fallbacks, retries and
//! [`BudgetPlugin::model`](crate::budget::BudgetPlugin::model), so that hits are free. One layer is for one model, or for one
//! set of models that may answer for each other.
//!
//! See the [recommended order](crate::order).
//!
//! # Limits
//!
//! | option | default |
//! |---|---|
//! | [`total_bytes`](ResponseCacheLayer::total_bytes), the least recently used are evicted | 64 MiB |
//! | [`ttl`](ResponseCacheLayer::ttl) since the answer was stored; hits do not extend it | 1 hour |
//! | [`max_bytes`](ResponseCacheLayer::max_bytes) of an answer | 1 MiB |
//! | [`store_wait`](ResponseCacheLayer::store_wait) for the store, if there is one | 250 milliseconds |
//!
//! Clones of the layer and their services share one cache, in memory. A [store](#a-store-for-several-processes) has
//! limits of its own. Time is that of the
//! [environment](concentric_core::Environment) of the runs, which must be the same for all of them. A call costs the digest
//! of its request, so it reads the conversation once.
//!
//! | not an option | because |
//! |---|---|
//! | the name of the model in the key | a service does not state its model before it answers. A request that [names one](concentric_core::ChatOptions::model) has it in its digest. In a store, the name of the space is part of the key |
//! | a scope of a user | an application defines its users: see the example of [`key`](ResponseCacheLayer::key) |
//! | stored answers only | a service that fails, in the model's place, has this effect |
//! | calls that are not shared | without sharing, concurrent misses pay for equal answers. [`CacheControl`] excepts a request |
//! | a time limit of shared calls | timeouts inside apply to them: tower's `TimeoutLayer`, or the `Timeouts` of `concentric-providers` |
//!
//! # Backpressure
//!
//! Always ready; the future waits for the inner service, since a hit does not reach it. A shared call is polled when
//! the fastest of its readers needs the next event, and its events are kept for the others. Each reader may poll it, in
//! its own task, and the call wakes all that wait. No reader ever waits for a lock while the call is polled: it is
//! woken when the call has more.
//!
//! # Errors
//!
//! Errors pass unchanged, except as the table states. A run that is cancelled or late while it waits fails with
//! [`Cancelled`](concentric_core::ErrorKind::Cancelled) or [`Timeout`](concentric_core::ErrorKind::Timeout);
//! [`Overloaded`](concentric_core::ErrorKind::Overloaded) with the code [`LAGGED`] is the last item of a body. With
//! [`store_required`](ResponseCacheLayer::store_required), a failure of the store is
//! [`Server`](concentric_core::ErrorKind::Server) with the code `store_failed`.
//!
//! # Cancel safety
//!
//! Dropping the future or the body affects only its own run, and drops the call with the last of them.

mod answer;
mod body;
mod call;
mod future;
mod key;
mod layer;
mod progress;
mod service;

pub use self::{
    body::ResponseCacheBody, future::ResponseFuture, key::CacheControl, layer::ResponseCacheLayer,
    service::ResponseCache,
};
pub use crate::caching::CacheScope;

use concentric_core::Usage;
use std::time::Duration;

/// The [code](concentric_core::Error::code) of an error for a reader that is too far behind the others of its
/// call.
pub const LAGGED: &str = "lagged";

/// An extension of an answer that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// The tokens that the answer used when it was made.
    pub usage: Usage,
    /// The time since it was stored.
    pub age: Duration,
}
