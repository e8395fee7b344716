//! Calls of a server that does not behave.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod agents;
mod calls;
mod changes;
mod common;
mod figures;
mod http;
mod listing;
mod oauth;
mod offers;
mod pools;
mod processes;
mod questions;
mod streams;
