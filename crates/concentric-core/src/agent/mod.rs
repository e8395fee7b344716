//! The loop between a model and its tools, as a layer.
//!
//! [`AgentLayer`] turns a model into an agent: a service with the same request and response types,
//! which calls the model again after each round of tool calls. All decisions are made by a
//! [`Machine`](crate::machine::Machine) without I/O; this module polls the services.
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
//! # Moments
//!
//! | moment | action of the loop |
//! |---|---|
//! | call | Clones the model, waits until the clone is ready, and calls it. |
//! | the model's first answer | Resolves the response future, which is the commit point: from here on nothing is retried. Emits [`Event::StepStart`] of this step, then the events that layers emitted during the call; no event is yielded before. |
//! | request with an open round ([`ChatRequest::resume`]) | Resolves the response future, emits [`Event::Resumed`], then starts tools. |
//! | [`Event::Finish`] after tool calls | Emits [`Event::StepFinish`] and passes the calls to the round service. |
//! | outcomes of all calls | Emits them in the order of the calls, then [`Event::StepStart`], and calls the model again. |
//! | an event that a layer or tool emits while the loop waits | Yields the event at once. Inside another loop's model call, the outermost loop yields it. |
//! | [`Event::Finish`] without tool calls | Emits [`Event::StepFinish`] and its own [`Event::Finish`]. |
//! | before a model call, a round, or the end of the run | Evaluates its [step gates](StepGate) and applies their decision. |
//! | step limit | Finishes with [`Outcome::StepLimit`]. |
//! | error, or a body that ends early | Yields the error as its last item; no tool call of that answer runs. |
//! | panic in the model, the tools or a layer around them | Fails with [`ErrorKind::Other`](crate::ErrorKind::Other) and a fixed message; the text of the panic is logged. |
//! | cancellation ([`Context::cancel`]) | Drops the pending work, closes the round, and finishes with [`Outcome::Aborted`]. |
//! | deadline | As for cancellation, but fails with [`ErrorKind::Timeout`](crate::ErrorKind::Timeout). |
//! | drop | Drops the model's stream, running tools and sub-agents, and cancels the run ([`CancelReason::Disconnected`](crate::CancelReason::Disconnected)) for spawned work. |
//!
//! # Nested agents
//!
//! An agent has the type of a model and can be the model of another agent: as an `AgentLayer`
//! inside another `AgentLayer`, or as a finished service. Each loop has its own tools, gates and
//! limits. The innermost model is offered the tools of all loops, and each call is executed by the
//! loop that owns the tool: the inner loop returns a call of an outer tool to the outer loop, and
//! is called again with its outcome. The outer loop counts the work of the inner loop up to that
//! point as one step. A tool name that occurs in two loops fails the run before the model is
//! called.
//!
//! An agent that receives only a task, not the conversation, is a tool of the other agent.
//!
//! Layers that act on whole runs, such as stores and sessions, belong outside the outermost loop.
//!
//! # Backpressure
//!
//! An agent is always ready. It waits for the model's readiness before each step, so it holds no
//! permit of the model while tools run. Layers that shed load or buffer belong inside the loop.
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
mod installer;
mod layer;
mod plugins;
mod service;
mod tools;

pub use self::{
    body::AgentBody,
    future::ResponseFuture,
    installer::{Installer, Plugin},
    layer::AgentLayer,
    plugins::Plugins,
    service::Agent,
    tools::{NoOutcomes, NoTools, ToolSource, WithTools},
};
pub use crate::{
    driver::resume,
    step_gate::{
        FinishDecision, GateOrder, RoundDecision, StepDecision, StepDraft, StepGate, StepView,
    },
    tool_layers::{ObserveSettled, ToolLayers},
    tool_parts::{RunTool, ToolParts},
};
