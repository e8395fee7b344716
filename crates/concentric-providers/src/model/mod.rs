//! A model over an HTTP service, whichever API it speaks.
//!
//! What is the same for all of them is here: that the request goes out with the key, that the answer
//! is read as it arrives, in whichever frames, and how it ends.

mod body;
mod clocks;
mod config;
mod future;
mod input;
mod json;
mod layer;
mod service;

pub use self::{body::Body, future::ResponseFuture, layer::ProviderLayer, service::Model};
