//! Tests of the loop and the building blocks.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod capability;
#[cfg(feature = "digest")]
mod digest;
mod emitted;
mod enters;
mod placement;
mod run;
mod shared_context;
mod state;
mod steps;
