//! A model over an HTTP service, independent of the API.
//!
//! This module implements the common parts: sending the request with the key, decoding the response
//! while it arrives in any framing, and ending it.

mod body;
mod clocks;
mod config;
mod future;
mod input;
mod json;
mod layer;
mod service;

pub use self::{body::Body, future::ResponseFuture, layer::ProviderLayer, service::Model};
