//! Worker processes over one PostgreSQL, which are killed, stopped and cut off while they serve runs.
//!
//! | in the environment | | default |
//! |---|---|---|
//! | `CONCENTRIC_POSTGRES` | the URL of the server; without it, nothing is tested | |
//! | `CONCENTRIC_POSTGRES_RESTART` | a command that kills the server and starts it again; without it, the server stays | |
//! | `CONCENTRIC_CLUSTER_SECONDS` | how long runs are started | 10 |
//! | `CONCENTRIC_CLUSTER_CALM` | for how many of these seconds nothing fails at first | 3 |
//! | `CONCENTRIC_CLUSTER_RATE` | the number of runs that are started in a minute | 200 |
//! | `CONCENTRIC_CLUSTER_STEPS` | the number of rounds of tool calls of a run | 4 |
//! | `CONCENTRIC_CLUSTER_LEASE` | the lease of a run, in milliseconds | 2000 |
//! | `CONCENTRIC_CLUSTER_SWEEP` | the interval of the sweepers, in milliseconds | 1000 |
//! | `CONCENTRIC_CLUSTER_FIRST_TOKEN` | the milliseconds until a model answers | 100 |
//! | `CONCENTRIC_CLUSTER_THINKS` | the milliseconds until a person replies, at most | 2000 |
//! | `CONCENTRIC_CLUSTER_NEMESIS` | the milliseconds between two faults; 0 for none | 1000 |
//! | `CONCENTRIC_SEED` | of the load and the faults | random, and printed |
#![cfg(unix)]
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod agent;
mod check;
mod client;
#[path = "../crash/durable/dice.rs"]
mod dice;
mod history;
mod load;
mod logged;
mod nemesis;
mod proxy;
mod worker;
#[path = "../crash/durable/world.rs"]
mod world;
