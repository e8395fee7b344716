//! Continues a run to its end after its consumer disconnects.
//!
//! Dropping the response of an agent stops the run: the model's stream and the running tools are
//! dropped with it. With [`Detach`], a run that has started continues to its end. Its effects are
//! completed, and its answer is in the conversation when the client reconnects, if the layer that
//! stores the conversation is [inside](#place-in-the-stack).
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error};
//! use concentric_layers::{End, on_end};
//! use concentric_layers::DetachLayer;
//! use concentric_test::{ScriptedModel, ScriptedTools};
//! use serde_json::json;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let tools = ScriptedTools::new().answers("order", "ordered");
//! let model = ScriptedModel::new().tool_call("order", json!({})).then().text("Done.");
//! let detach = DetachLayer::new();
//! let agent = ServiceBuilder::new()
//!     .layer(on_end(|end: End<'_>| assert!(matches!(end, End::Dropped))))
//!     .layer(detach.clone())
//!     .layer(on_end(|end: End<'_>| assert!(matches!(end, End::Finished(_)))))
//!     .layer(AgentLayer::new(tools.clone()))
//!     .service(model);
//!
//! let answer = agent.oneshot(ChatRequest::user("Order one.")).await?;
//! // The client disconnects.
//! drop(answer);
//!
//! // When the server shuts down:
//! detach.shutdown().await;
//! assert_eq!(tools.done(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # When the consumer disconnects
//!
//! While the consumer is connected, the layer adds a few instructions per event and spawns no task. A
//! future or body that is dropped before its end continues in a separate task on tokio's runtime, and its
//! events are discarded. Inner layers observe the end of the run; outer layers observe a drop.
//!
//! | dropped | effect |
//! |---|---|
//! | a future that was never polled | is dropped; the run has not started |
//! | a future or body before its end | continues |
//! | a body after its terminal item | is dropped; the run has ended |
//! | a future or body whose poll panicked | is dropped |
//! | a future or body over the [limit](DetachLayer::limit), after a [shutdown](DetachLayer::shutdown), or without a tokio runtime | is dropped, which cancels the run ([`Disconnected`](concentric_core::CancelReason::Disconnected)), and a warning is logged |
//!
//! | the continued run | effect |
//! |---|---|
//! | finishes | has ended |
//! | finishes with [`Interrupted`](concentric_core::Outcome::Interrupted) | waits in the store for replies if [`SuspendLayer`](crate::suspend::SuspendLayer) is inside; otherwise, it cannot be resumed, and an error is logged with the run's id |
//! | fails, ends early or panics | has ended; a warning is logged with the run's id |
//! | is cancelled ([`Context::cancel`](concentric_core::Context::cancel)) or passes its [deadline](concentric_core::Context::deadline) | ends accordingly; it is dropped if it does not end within 30 seconds, or within its remaining time if that is shorter |
//! | exceeds its [time limit](DetachLayer::within) | is dropped, and a warning is logged |
//!
//! A disconnect is therefore distinguished from a cancellation by the user: only the latter ends
//! the run ([`Aborted`](concentric_core::Outcome::Aborted)). The run's own deadline still applies.
//!
//! Inner services can read from [`Consumer::of`] whether the consumer is still connected, for
//! example a tool that reports its progress, or a model whose streaming is more expensive.
//!
//! # Place in the stack
//!
//! Outside [`AgentLayer`](concentric_core::AgentLayer), once per run. Layers that must observe the
//! end of the run go inside: stores, hooks, budgets. Layers that belong to the consumer go outside:
//! the server, and layers that drop a run on purpose. If a `Timeout`, a `Hedge` or a fallback is
//! outside, the attempt that it drops continues, including its tools.
//!
//! The layer also goes around a [session](crate::session) and a
//! [`SuspendLayer`](crate::suspend::SuspendLayer). Inside one of them, a dropped turn would end for
//! the conversation or the store while its run continues, and a reply could be applied twice. The
//! first call therefore fails with [`Configuration`](concentric_core::ErrorKind::Configuration) and
//! names both layers. The same applies to a `DetachLayer` inside another one, which would continue
//! the runs that the outer one stops at its limits or its shutdown, and inside a
//! [`GuardrailLayer`](crate::GuardrailLayer) with `Input::Parallel`, whose blocked runs it would continue. In
//! [`Layers`](concentric_core::Layers), the other stacks do not compile:
//!
//! ```compile_fail,E0283
//! # use concentric_core::Layers;
//! # use concentric_layers::DetachLayer;
//! let twice = Layers::new().with(DetachLayer::new()).with(DetachLayer::new());
//! ```
//!
//! Around an agent that is used as a model or as a tool, the layer has no effect, because the outer
//! run decides whether it continues. Directly around the model of a loop, it fails the call with
//! [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! See the [recommended order](crate::order).
//!
//! # Backpressure
//!
//! Forwards the readiness of the inner service. A permit of an inner limit is held until a detached
//! run has ended; that of an outer limit is released when the consumer disconnects.
//!
//! # Cost
//!
//! The rest of a run is moved into a task, so each run needs two boxes: one for the future and one
//! for the body.

mod body;
mod consumer;
mod future;
mod hold;
mod layer;
mod runs;
mod service;

pub use self::{
    body::DetachBody, consumer::Consumer, future::ResponseFuture, layer::DetachLayer,
    service::Detach,
};
