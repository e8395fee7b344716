//! Tests of the test doubles.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

#[cfg(feature = "record")]
mod cassette;
#[cfg(feature = "record")]
mod clocks;
mod gate_check;
mod gates;
mod layer_check;
mod replay;
mod resume;
mod scripted_model;
#[cfg(feature = "store")]
mod store_check;
mod tool_layer_check;
