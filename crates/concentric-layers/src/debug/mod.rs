//! A layer that logs requests and events.
//!
//! ```
//! use concentric_layers::DebugLayer;
//! use concentric_core::{AgentLayer, BoxModel, NoTools};
//! use tower::ServiceBuilder;
//!
//! fn agent(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(DebugLayer::new("run"))
//!             .layer(AgentLayer::new(NoTools))
//!             .layer(DebugLayer::new("model"))
//!             .service(model),
//!     )
//! }
//! # let _ = agent;
//! ```
//!
//! As a plugin, it is one switch for an agent: it logs around the agent, around the model, around
//! each layer that a plugin or a single run adds, and each tool call. Without it, nothing is added.
//!
//! ```
//! use concentric_core::{AgentLayer, NoTools};
//! use concentric_layers::DebugLayer;
//!
//! let debug = std::env::var_os("CLERK_DEBUG").is_some();
//! let agent = AgentLayer::new(NoTools).with(debug.then(|| DebugLayer::new("clerk")));
//! # let _ = agent;
//! ```
//!
//! The field `layer` of a line is the phase and the service whose requests and events it shows.
//! Layers of a `ServiceBuilder` cannot be observed from within: place a layer between them.
//!
//! Uses [`tracing`] with the target `concentric::events`: requests and ends are logged at `DEBUG`,
//! every event at `TRACE`; tool calls and outcomes at `DEBUG`, their arguments and content at
//! `TRACE`. The logs contain the full text of messages, so use it for development.

mod calls;
mod layer;
mod service;

pub use self::{
    layer::DebugLayer,
    service::{Debug, DebugBody, ResponseFuture},
};
