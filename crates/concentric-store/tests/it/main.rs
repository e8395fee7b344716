//! Tests of the stores.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

#[macro_use]
mod kinds;

mod common;
mod contract;
#[cfg(feature = "sqlite")]
mod crashes;
mod events;
mod holds;
#[cfg(feature = "sqlite")]
mod model;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(all(feature = "sqlite", unix))]
mod race;
#[cfg(feature = "redis")]
mod redis;
mod settings;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_runs;
#[cfg(feature = "sqlite")]
mod sqlite_threads;
mod suite;
