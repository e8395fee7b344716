//! A layer that sets defaults of requests: the system prompt, the model, and other options.
//!
//! ```
//! use concentric_layers::RequestDefaultsLayer;
//! use concentric_core::BoxModel;
//! use tower::ServiceBuilder;
//!
//! fn polite(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(RequestDefaultsLayer::new().system("You are polite.").options(|options| {
//!                 options.temperature = Some(0.2);
//!                 options.max_output_tokens = Some(1_000);
//!             }))
//!             .service(model),
//!     )
//! }
//! # let _ = polite;
//! ```
//!
//! # Effect on a request
//!
//! The layer's system segments precede those of the request. Options that the request sets are
//! kept, unset options are filled in, and missing entries of the two maps are added.
//!
//! # Place in the stack
//!
//! Outside the loop, where the layer runs once per run, or inside it, with the same effect.
//!
//! See the [recommended order](crate::order).

mod layer;
mod service;

pub use self::{layer::RequestDefaultsLayer, service::Defaults};
