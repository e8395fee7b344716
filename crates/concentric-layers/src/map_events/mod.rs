//! Layers that inspect or change each event.
//!
//! ```
//! use concentric_layers::{inspect_events, map_events};
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
//! For each `Ok` item of the body, including [`Event::Finish`](concentric_core::Event::Finish), when the
//! consumer polls for it. Not for errors or the end of the body: see [`on_end()`](super::on_end()).
//! Each call of the service uses its own clone of the function.
//!
//! # Place in the stack
//!
//! Inside the loop, changes are recorded in the transcript; outside it, only the consumer receives
//! them. The function must replace content with content
//! ([`Event::is_content`](concentric_core::Event::is_content)) and a finish with a finish. To drop events,
//! use a [`Transform`](super::Transform).

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
