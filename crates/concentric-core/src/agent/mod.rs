//! The loop between a model and its tools, as a layer.
//!
//! [`AgentLayer`] makes of a model an agent: a service that speaks the same two types, and calls the
//! model as often as its tool calls need. It drives a [`Machine`](crate::machine::Machine): what is
//! decided is decided there, and this module only polls.
//!
//! ```
//! use concentric_core::{AgentLayer, BoxModel, NoTools};
//! use tower::ServiceBuilder;
//!
//! fn agent(model: BoxModel) -> BoxModel {
//!     let agent = ServiceBuilder::new()
//!         // Layers here run once per user turn.
//!         .layer(AgentLayer::new(NoTools).step_limit(8))
//!         // Layers here run once per model call.
//!         .service(model);
//!     BoxModel::new(agent)
//! }
//! # let _ = agent;
//! ```
//!
//! # When what happens
//!
//! | | the loop |
//! |---|---|
//! | is called | clones its model, waits until the clone is ready, and calls it |
//! | has the model's first answer | resolves its own future, the commit point: from here on nothing is retried. Emits [`Event::StepStart`] of this step, and shows nothing before |
//! | is given an open round ([`ChatRequest::resume`]) | resolves its future, then emits [`Event::Resumed`], then starts tools |
//! | reads [`Event::Finish`] with tool calls before it | emits [`Event::StepFinish`] and hands the calls to the round service |
//! | has every call's outcome | emits them in the order of the calls, then [`Event::StepStart`], and calls the model again |
//! | waits, while a layer or tool emits an event | yields the event at once; inside another loop's model call, leaves that to the outermost loop |
//! | reads [`Event::Finish`] without | emits [`Event::StepFinish`] and its own [`Event::Finish`] |
//! | is about to call the model, to begin a round, or to end | asks its [gates](StepGate), and does as they say |
//! | has made as many model calls as it may | finishes with [`Outcome::StepLimit`] |
//! | reads an error, or a body that ends early | yields it as its last item; no tool of that answer runs |
//! | meets a panic of its model, its tools or a layer on them | fails with [`ErrorKind::Other`](crate::ErrorKind::Other) and a fixed message; the panic's text is logged |
//! | is cancelled ([`Context::cancel`]) | drops what it waits for, closes the round, and finishes with [`Outcome::Aborted`] |
//! | passes the deadline | the same, and fails with [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) |
//! | is dropped | drops what it waits for: the model's stream, running tools, sub-agents; and cancels the run ([`CancelReason::Disconnected`](crate::CancelReason::Disconnected)), for what was spawned |
//!
//! # Agents inside of agents
//!
//! An agent is a model by its types, and may stand in the place of another agent's model: as an
//! `AgentLayer` inside of an `AgentLayer`, or as a service that is finished. Each loop has its own tools,
//! gates and limits. The innermost model is offered the tools of all loops, and each call is executed
//! by the loop that has the tool: the inner loop hands a call of an outer tool back, and is called again
//! with its outcome. To the outer loop, what the inner one does until then is one step. Two loops must
//! not have tools of the same name: the run fails before the model is called.
//!
//! An agent that is to see only a task, and not the conversation, is a tool of the other one.
//!
//! Layers for whole runs, such as those of stores and sessions, go around the outermost loop.
//!
//! # Backpressure
//!
//! An agent is always ready, and waits for its model's readiness step by step, so that it holds no
//! permit of its model while tools run. A layer that sheds or buffers belongs inside it.
//!
//! [`Context::cancel`]: crate::Context::cancel
//! [`ChatRequest::resume`]: crate::ChatRequest::resume
//! [`Event::Finish`]: crate::Event::Finish
//! [`Event::Resumed`]: crate::Event::Resumed
//! [`Event::StepFinish`]: crate::Event::StepFinish
//! [`Event::StepStart`]: crate::Event::StepStart
//! [`Outcome::Aborted`]: crate::Outcome::Aborted
//! [`Outcome::StepLimit`]: crate::Outcome::StepLimit

mod body;
mod future;
mod gate;
mod layer;
mod run;
mod service;
mod take_up;
mod tools;

pub use self::{
    body::AgentBody,
    future::ResponseFuture,
    gate::{BeforeFinish, BeforeRound, BeforeStep, GateOrder, StepGate, StepGates, StepView},
    layer::AgentLayer,
    service::Agent,
    take_up::take_up,
    tools::{NoOutcomes, NoTools, ToolSource, WithTools},
};
