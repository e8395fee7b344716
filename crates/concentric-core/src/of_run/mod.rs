//! Layers around the model calls of one run.
//!
//! Layers that apply to all runs of an agent are part of its stack. Layers that apply to one run,
//! such as a trace requested by its caller or the hooks of a test, are added in two ways: around a
//! clone of the agent, if they run once per run; or around the model calls, with [`ModelLayers`] in
//! the request's context. The latter requires an [`OfRunLayer`] in the stack.
//!
//! ```
//! use concentric_core::{
//!     AgentLayer, BoxModel, ChatRequest, Error, Event, NoTools,
//!     of_run::{ModelLayers, OfRunLayer},
//! };
//! use concentric_layers::inspect_events;
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
//! Directly inside the loop, so that the layers of the run are outside the agent's own layers. An
//! agent inside the run, as a model or as a tool, does not apply them. Around an agent, the layer
//! fails the run with [`ErrorKind::Configuration`](crate::ErrorKind::Configuration), and does not
//! compile in [`Layers`](crate::Layers).
//!
//! If no [`OfRunLayer`] applies them, the run fails with
//! [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) and an error that names the
//! layers. The models of `concentric-providers`, and others that check their
//! [stack](crate::Context::check_stack), fail before they send a request; with other models, the
//! run fails when the model begins to answer.
//!
//! # Backpressure
//!
//! Readiness is that of the rest of the stack. The layers of a run wrap the service that was polled
//! ready.
//!
//! # Cost
//!
//! Without layers for the run: one lookup in its context per call, and a branch per event. With
//! layers: the boxes of a [`BoxModel`](crate::BoxModel), per layer and call.

mod body;
mod future;
mod layer;
mod service;

pub use self::{body::OfRunBody, future::ResponseFuture, layer::OfRunLayer, service::OfRun};
pub use crate::model_layers::ModelLayers;
