//! Processes that share limits over Redis or PostgreSQL.
//!
//! | in the environment | | default |
//! |---|---|---|
//! | `CONCENTRIC_REDIS_VOLATILE`, `CONCENTRIC_POSTGRES` | the URLs of the servers; without one, nothing is tested with it | |
//! | `CONCENTRIC_LIMITS_SECONDS` | how long the processes compete for a bucket | 10 |
//! | `CONCENTRIC_LIMITS_RATE` | the calls that the bucket allows in a second | 100 |
#![cfg(unix)]
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod bar;
mod dying;
mod figures;
mod outage;
mod process;
