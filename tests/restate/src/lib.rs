//! The agent, the world and the processes of the tests with Restate.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test program, which fails by panics"
)]

pub mod agent;
pub mod servers;
pub mod world;
