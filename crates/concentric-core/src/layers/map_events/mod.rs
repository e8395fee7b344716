//! Layers that look at each event, or change it.
//!
//! ```
//! use concentric_core::layers::{inspect_events, map_events};
//! use concentric_core::{BoxModel, Event, Str};
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use tower::ServiceBuilder;
//!
//! static BYTES: AtomicUsize = AtomicUsize::new(0);
//!
//! fn count(model: BoxModel) -> BoxModel {
//!     BoxModel::new(
//!         ServiceBuilder::new()
//!             .layer(inspect_events(|event: &Event| {
//!                 if let Event::TextDelta(text) = event {
//!                     BYTES.fetch_add(text.len(), Ordering::Relaxed);
//!                 }
//!             }))
//!             .layer(map_events(|event: &mut Event| {
//!                 if let Event::TextDelta(text) = event {
//!                     *text = Str::from(text.to_uppercase());
//!                 }
//!             }))
//!             .service(model),
//!     )
//! }
//! # let _ = count;
//! ```
//!
//! # When the function is called
//!
//! For each `Ok` item of the body, [`Event::Finish`](crate::Event::Finish) included, when the
//! consumer polls for it. Not for errors, and not for the end: see [`on_end()`](super::on_end()).
//! Each call of the service has its own clone of the function.
//!
//! # Place in the stack
//!
//! Inside the loop a changed event is what the transcript records; outside it only the consumer
//! sees the change. The function must leave content for content
//! ([`Event::is_content`](crate::Event::is_content)) and a finish for a finish; to drop events, use
//! a [`Transform`](super::Transform).

mod body;
mod future;
mod layer;
mod service;

pub use self::{
    body::MapEventsBody,
    future::ResponseFuture,
    layer::{MapEventsLayer, inspect_events, map_events},
    service::MapEvents,
};
