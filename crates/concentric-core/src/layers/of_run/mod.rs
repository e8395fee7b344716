//! Layers around the model calls of one run.
//!
//! What is decided when an agent is put together is a layer of its stack. What only one run has (a
//! trace that its caller asked for, hooks of a test) is put around a clone of the agent, as far as it
//! is once per run; and around the model calls by [`ModelLayers`] in its context, where the stack has
//! an [`OfRunLayer`].
//!
//! ```
//! use concentric_core::{
//!     AgentLayer, BoxModel, ChatRequest, Error, Event, NoTools,
//!     layers::{ModelLayers, OfRunLayer, inspect_events},
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! async fn watched(model: BoxModel) -> Result<String, Error> {
//!     let agent = ServiceBuilder::new()
//!         .layer(AgentLayer::new(NoTools))
//!         .layer(OfRunLayer::new())
//!         .service(model);
//!
//!     let mut request = ChatRequest::user("hi");
//!     let own = ModelLayers::new().layer(inspect_events(|event: &Event| println!("{event:?}")));
//!     request.context.own_mut().insert(own);
//!     agent.oneshot(request).await?.text().await
//! }
//! # let _ = watched;
//! ```
//!
//! # Place in the stack
//!
//! Just inside of the loop, so that they are outside of the agent's own. An agent inside of the run,
//! as a model or as a tool, does not have them. Around an agent the layer fails the run with
//! [`ErrorKind::Configuration`](crate::ErrorKind::Configuration), and in
//! [`Layers`](crate::Layers) it does not compile.
//!
//! Where there is no [`OfRunLayer`] that applies them, the run fails with
//! [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) and an error that names them: before
//! anything is sent, if the model is one of `concentric-providers` or checks its
//! [stack](crate::Context::check_stack), else when the model begins to answer.
//!
//! # Backpressure
//!
//! Readiness is that of the rest of the stack. What was made ready for a run with layers of its own
//! is what these are put around.
//!
//! # Cost
//!
//! For a run without layers of its own, a look into its context per call, and a branch per event.
//! For one with, what is boxed by [`BoxModel`](crate::BoxModel), for each of them and each call.

mod body;
mod future;
mod layer;
mod service;

pub use self::{body::OfRunBody, future::ResponseFuture, layer::OfRunLayer, service::OfRun};
pub use crate::model_layers::ModelLayers;
