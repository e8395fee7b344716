//! Tests of the test doubles.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod cassette;
mod clocks;
mod gates;
mod layer_check;
mod resume;
mod scripted_model;
