//! Model calls and rounds of tool calls as durable steps of an engine that replays runs.
//!
//! ```
//! use concentric_core::{
//!     AgentLayer, ChatRequest, Context, Error,
//!     durable::{Journal, JournalHandle, Recorded, StepAttempt, StepName, StepWork},
//!     service::BoxFuture,
//! };
//! use concentric_layers::durable::{DurableLayer, DurableTools};
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use std::{collections::VecDeque, sync::{Arc, Mutex}};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! /// A journal that a second attempt at the run reads from its beginning, of runs that leave no step.
//! #[derive(Clone, Default)]
//! struct Notes(Arc<Mutex<VecDeque<Recorded>>>, Arc<Mutex<VecDeque<Recorded>>>);
//!
//! impl Journal for Notes {
//!     fn step(&self, _: StepName, work: StepWork) -> BoxFuture<Recorded> {
//!         let Self(old, new) = self.clone();
//!         Box::pin(async move {
//!             let known = old.lock().unwrap().pop_front();
//!             let result = match known {
//!                 Some(known) => known,
//!                 None => work(StepAttempt::first()).await,
//!             };
//!             new.lock().unwrap().push_back(result.clone());
//!             Ok(result)
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = ScriptedModel::new().tool_call("pay", json!({})).then().text("Paid.");
//! let tools = ScriptedTools::new().answers("pay", "ok");
//! let agent = ServiceBuilder::new()
//!     .layer(AgentLayer::new(DurableTools::new(tools.clone())))
//!     .layer(DurableLayer::new())
//!     .service(model);
//!
//! let notes = Notes::default();
//! let request = |notes: &Notes| {
//!     let mut request = ChatRequest::user("Pay them.");
//!     request.context.provide(JournalHandle::new(notes.clone()));
//!     request
//! };
//! let answer = agent.clone().oneshot(request(&notes)).await?.collect().await?;
//! assert_eq!((answer.text().as_str(), tools.calls().len()), ("Paid.", 1));
//!
//! // After a crash, the engine runs the same code with what it has recorded.
//! let replayed = Notes(notes.1, Arc::default());
//! let again = agent.oneshot(request(&replayed)).await?.collect().await?;
//! assert_eq!((again.text().as_str(), tools.calls().len()), ("Paid.", 1));
//! # Ok(())
//! # }
//! ```
//!
//! # Moments
//!
//! | moment | with a [journal](concentric_core::durable::Journal) | without |
//! |---|---|---|
//! | model call | a step `model-{step}`; its events are forwarded as they arrive, and the last one once the journal has the answer | passed |
//! | the step has a record | the recorded answer, its deltas joined; the model is not called | |
//! | round | a step `round-{step}`; its outcomes are yielded once the journal has all of them | passed |
//! | an earlier attempt may have executed the round | its calls are [lost ones](concentric_core::call::CallState::mark_lost), as after a crash behind `SuspendLayer`: the ledger knows what they did, or a person is asked | |
//! | a call fails | the error is recorded, [without foreign texts](concentric_core::durable::RecordedError), which are logged | passed |
//! | the future or the body is dropped | the step is stopped, and records the events that were forwarded; a replay yields them, and is dropped again | passed |
//!
//! A round is one step, with its gates, layers and hooks: decisions are made once, and its calls run in parallel
//! and with the run's own context. Durable [slots](concentric_core::state) that a step changes and the tokens that it
//! uses are recorded with it.
//!
//! # Place in the stack
//!
//! [`DurableLayer`] goes inside the agent, directly outside of the attempts at a model call: outside retries,
//! fallbacks and limits, inside compaction and guards. Layers outside of it run again in a replay, and must decide
//! the same. A model that such a layer calls by itself, to summarise or to judge, needs a `DurableLayer` of its own.
//! [`DurableTools`] goes around the toolset.
//!
//! Inside a step there are no steps: an agent that is a tool is a part of its round.
//!
//! See the [recommended order](crate::order).
//!
//! # Errors
//!
//! [`ErrorKind::Configuration`](concentric_core::ErrorKind::Configuration) with the code [`NOT_A_MODEL`] if the
//! answer of a model call is that of an agent that is interrupted, or edits the run: neither can be recorded.
//!
//! # Backpressure
//!
//! The services are always ready; the future waits for the inner one. At most 64 events wait for the
//! consumer.

mod answer;
mod body;
mod layer;
mod service;
mod tools;

pub use self::{
    answer::NOT_A_MODEL,
    body::DurableBody,
    layer::DurableLayer,
    service::{Durable, ResponseFuture},
    tools::{DurableOutcomes, DurableTools, RoundFuture},
};
