//! A layer of defaults: the system prompt, the model, and how it is to answer.
//!
//! ```
//! use concentric_core::layers::DefaultsLayer;
//! use concentric_core::BoxModel;
//! use tower::ServiceBuilder;
//!
//! fn polite(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(DefaultsLayer::new().system("You are polite.").options(|options| {
//!                 options.temperature = Some(0.2);
//!                 options.max_output_tokens = Some(1_000);
//!             }))
//!             .service(model),
//!     )
//! }
//! # let _ = polite;
//! ```
//!
//! # What it does to a request
//!
//! Its system segments come before the request's own. An option that the request sets stays; one
//! that it leaves open is filled in; entries of the two maps are added where the request has none.
//!
//! # Place in the stack
//!
//! Outside the loop, where it does its work once per run, or inside it; the model sees the same.

mod layer;
mod service;

pub use self::{layer::DefaultsLayer, service::Defaults};
