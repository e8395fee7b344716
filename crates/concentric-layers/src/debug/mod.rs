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
//! As a plugin, one layer logs both places:
//!
//! ```
//! use concentric_core::{AgentLayer, NoTools};
//! use concentric_layers::DebugLayer;
//!
//! let agent = AgentLayer::new(NoTools).with(DebugLayer::new("clerk"));
//! # let _ = agent;
//! ```
//!
//! Uses [`tracing`] with the target `concentric::events`: requests and ends are logged at `DEBUG`,
//! every event at `TRACE`. The logs contain the full text of messages, so use it for development.

mod layer;
mod service;

pub use self::{
    layer::DebugLayer,
    service::{Debug, DebugBody, ResponseFuture},
};
