//! Tests that kill and race processes.
#![cfg(unix)]
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod crash;
mod durable;
mod resume_races;
mod tokens;
