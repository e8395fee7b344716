//! A layer that has a run come to its end when its consumer leaves.
//!
//! Whoever drops an agent's answer stops the run: the model's stream, the running tools and all that
//! waits are dropped with it. [`Detach`] is for an agent whose runs are to be finished once they have
//! begun, whoever still listens: the order is placed, and the answer is in the conversation when the
//! client comes back, if what keeps that is [inside](#place-in-the-stack).
//!
//! ```
//! use concentric_core::{AgentLayer, ChatRequest, Error, layers::{End, on_end}};
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
//! // The client hangs up.
//! drop(answer);
//!
//! // When the server is shut down:
//! detach.runs().shutdown().await;
//! assert_eq!(tools.done(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # When the consumer leaves
//!
//! While it is there the layer adds a move of two words per event, and spawns nothing. A future or
//! body that is dropped before its end goes on in a task of its own on tokio's runtime, and what it
//! says goes nowhere. Layers inside see it come to its end; those outside see a drop.
//!
//! | what is dropped, or goes on | |
//! |---|---|
//! | a future that was never polled | is dropped: nothing has begun |
//! | a future or body before its end | goes on |
//! | a body that has yielded its last item | is over, as without the layer |
//! | a future or body whose own poll has panicked | is dropped |
//! | one over the [limit](DetachLayer::limit), after a [shutdown](DetachedRuns::shutdown), or where there is no runtime | is dropped as without the layer, which cancels the run ([`Disconnected`](concentric_core::CancelReason::Disconnected)); and a warning logged |
//! | finishes, also with [`Interrupted`](concentric_core::Outcome::Interrupted) | is over: one that asks waits in the store, if [`SuspendLayer`](crate::suspend::SuspendLayer) is inside. Else no reply can reach it, and an error is logged, with the run's id |
//! | fails, ends early or panics | is over; a warning is logged, with the run's id |
//! | is cancelled ([`Context::cancel`](concentric_core::Context::cancel)), or passes its [deadline](concentric_core::Context::deadline) | ends as such a run; if it does not within 30 seconds, or the time that is left to it, it is dropped |
//! | takes longer than it [may](DetachLayer::within) | is dropped as without the layer; a warning is logged |
//!
//! So a consumer that leaves is told apart from a user who cancels: the one is no end of the run, the
//! other is [`Aborted`](concentric_core::Outcome::Aborted). The run's own deadline holds on.
//!
//! Who is inside can ask [`Consumer::of`] the context whether anybody is still there: a tool that
//! would show its progress, or a model that is dearer when it streams.
//!
//! # Place in the stack
//!
//! Outside [`AgentLayer`](concentric_core::AgentLayer), once per run. Inside of it goes all that is to see
//! the end: stores, hooks, budgets. Outside goes what is the consumer's own: the server, and whatever
//! may drop a run on purpose. A `Timeout`, a `Hedge` or a fallback outside drops the attempt that it
//! gives up, which goes on then, tools and all.
//!
//! It goes around a [session](crate::session) and a [`SuspendLayer`](crate::suspend::SuspendLayer),
//! too. Inside of one, a dropped turn would end for the conversation or the store while its run
//! continues, and a reply could be given, and acted on, a second time: so the first call fails with
//! [`Configuration`](concentric_core::ErrorKind::Configuration) and names both layers. So does the
//! first call of one inside of another: the inner one would continue the runs that the outer one
//! stops at its limits or its shutdown. In [`Layers`](concentric_core::Layers) none of this compiles:
//!
//! ```compile_fail,E0283
//! # use concentric_core::Layers;
//! # use concentric_layers::DetachLayer;
//! let twice = Layers::new().with(DetachLayer::new()).with(DetachLayer::new());
//! ```
//!
//! Around an agent in the place of another one's model, or in an agent that is a tool, it does
//! nothing: whether that goes on is for the outer run. Directly around the model of a loop it fails
//! the call with [`Configuration`](concentric_core::ErrorKind::Configuration).
//!
//! # Backpressure
//!
//! Readiness is that of the inner service. A permit of a limit inside is kept until a detached run is
//! over; one outside is given back when the consumer leaves.
//!
//! # Cost
//!
//! What is left is moved, so it has to be in boxes: one for the future and one for the body of each
//! run. The inner service is erased once, when the layer is applied.

mod body;
mod consumer;
mod future;
mod hold;
mod layer;
mod runs;
mod service;

pub use self::{
    body::DetachBody,
    consumer::Consumer,
    future::ResponseFuture,
    layer::{DetachLayer, DetachableRun},
    runs::DetachedRuns,
    service::Detach,
};
