//! Layers from async functions.
//!
//! ```
//! use concentric_layers::{Next, NextTool, from_fn, tool_from_fn};
//! use concentric_core::{BoxModel, BoxTool, ChatRequest, ChatResponse, Error, EventStream, ToolCall, ToolOutcome};
//! use tower::ServiceBuilder;
//!
//! /// Calls a smaller model when the first one fails.
//! async fn fall_back(
//!     request: ChatRequest,
//!     mut next: Next,
//! ) -> Result<ChatResponse<EventStream>, Error> {
//!     match next.run(request.clone()).await {
//!         Ok(response) => Ok(response),
//!         Err(_) => {
//!             let mut request = request;
//!             request.options_mut().model = Some("small".into());
//!             next.run(request).await
//!         }
//!     }
//! }
//!
//! async fn no_delete(call: ToolCall, mut next: NextTool) -> Result<ToolOutcome, Error> {
//!     if *call.name() == *"delete" {
//!         return Ok(ToolOutcome::denied("Deletion is disabled."));
//!     }
//!     next.run(call).await
//! }
//!
//! fn layered(model: BoxModel, tool: BoxTool) {
//!     let model = ServiceBuilder::new().layer(from_fn(fall_back)).service(model);
//!     let tool = ServiceBuilder::new().layer(tool_from_fn(no_delete)).service(tool);
//! #   let _ = (model, tool);
//! }
//! # let _ = layered;
//! ```
//!
//! A closure with captured values clones them for each future:
//! `move |request, mut next: Next| { let x = x.clone(); async move { .. } }`.
//!
//! # Cost
//!
//! The rest of the stack is erased once, in
//! [`Layer::layer`](https://docs.rs/tower-layer/0.3/tower_layer/trait.Layer.html#tymethod.layer),
//! so a long stack of functions compiles as fast as a short one. Each call boxes a clone of the
//! rest of the stack, the future of that clone and its body; each event costs one indirect call.
//!
//! # Backpressure
//!
//! Readiness is that of the rest of the stack, and is used by the first [`Next::run`]; later calls
//! wait for readiness again. Dropping `next` without a call releases the reservation.

mod model;
mod tool;

pub use self::{
    model::{FromFn, FromFnLayer, Next, from_fn},
    tool::{NextTool, ToolFromFn, ToolFromFnLayer, tool_from_fn},
};
