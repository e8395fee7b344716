//! A layer that logs what passes at its place.
//!
//! ```
//! use concentric_core::layers::DebugLayer;
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
//! It logs to [`tracing`], with the target `concentric::events`: requests and ends at `DEBUG`, every
//! event at `TRACE`. It shows what is said in full, so it is for development.

mod layer;
mod service;

pub use self::{
    layer::DebugLayer,
    service::{Debug, DebugBody, ResponseFuture},
};
