//! Tests that cross the crates.
#![allow(
    unreachable_pub,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod ag_ui_accepted;
mod answers;
mod conformance;
mod describe;
#[cfg(unix)]
#[path = "../crash/durable/dice.rs"]
mod dice;
#[cfg(unix)]
mod disconnects;
mod edits;
mod effects;
mod envelope;
mod faults;
mod guard;
mod hang_up;
mod liveness;
mod moderation;
mod nested;
mod nested_states;
mod output;
mod overrides;
mod panics;
mod polls;
mod polls_edges;
mod settings;
mod stack_types;
mod steps;
mod tower_layers;
mod usage;
mod waits;
#[cfg(unix)]
mod watched;
