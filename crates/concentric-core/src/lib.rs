//! The services and the loop of LLM agents as tower service stacks.
//!
//! An agent is a tower stack. A model is a [`Service`](tower_service::Service) from a
//! [`ChatRequest`] to a [`ChatResponse`], whose body is a stream of [`Event`]s. A tool is a service
//! from a [`ToolCall`] to a [`ToolOutcome`]. Middleware for either is a
//! [`Layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html). The loop between them
//! is a layer too: [`AgentLayer`] combines a model and a set of tools into a service with the same
//! request and response types as the model. The position of a layer determines what it observes:
//!
//! | position | runs | scope of its changes |
//! |---|---|---|
//! | outside [`AgentLayer`] | once per user turn | to the request: the whole run; to an event: the consumer only |
//! | inside [`AgentLayer`] | once per model call | to the request: this model call; to an event: the transcript as well |
//! | on the tools | once per tool call | |
//!
//! Messages, events, errors and the loop itself, a [`Machine`](machine::Machine) without I/O, are
//! defined in `concentric-proto`; this crate re-exports all of it.
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, ChatResponse, Error, Event, FinishReason, NoTools, Usage};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // A model is any service of this shape; a provider's layer turns an HTTP client into one.
//! let model = service_fn(async |_: ChatRequest| {
//!     Ok::<_, Error>(ChatResponse::new(futures_util::stream::iter([
//!         Ok(Event::text("Hello!")),
//!         Ok(Event::finish(FinishReason::Stop, Usage::new(9, 2))),
//!     ])))
//! });
//! let agent = ServiceBuilder::new()
//!     .layer(AgentLayer::new(NoTools))
//!     .service(model);
//!
//! let answer = agent.oneshot(ChatRequest::user("hi")).await?.collect().await?;
//! assert_eq!(answer.text(), "Hello!");
//! assert_eq!(answer.transcript().map(|t| t.len()), Some(2));
//! # Ok(())
//! # }
//! ```

pub mod agent;
pub mod ask;
pub mod capability;
mod capability_error;
mod checkpoint;
pub mod context;
pub mod describe;
#[cfg(feature = "digest")]
pub mod digest;
pub mod driver;
pub mod durable;
mod end;
mod environment;
mod erased_layers;
pub mod fatal;
pub mod gate;
pub mod hooks;
mod hub;
mod interest;
mod marks;
mod outbox;
mod overrides;
pub mod panic;
mod request;
mod response;
mod resume;
mod run_key;
pub mod service;
mod slots;
pub mod state;
mod step_gate;
pub mod store;
mod tool_call;
mod tool_layers;
mod tool_parts;
pub mod trace;

pub use self::{
    agent::{Agent, AgentLayer, NoTools, Plugin, ToolSource},
    capability::{Capability, Declares, Layers},
    context::Context,
    environment::Environment,
    hooks::Hooks,
    hub::InterruptHub,
    outbox::EmitError,
    overrides::RunOverrides,
    request::ChatRequest,
    response::{Answer, ChatResponse, Incomplete},
    resume::{Resume, ResumePoint},
    service::{BoxModel, BoxTool, EventStream, ModelService, RoundService, ToolService},
    tool_call::{Attempts, Seal, ToolCall, ToolRound},
};
#[doc(inline)]
pub use concentric_proto::*;
