//! Tests of the built-in layers.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

#[cfg(feature = "budget")]
mod budget;
#[cfg(feature = "detach")]
mod detach;
#[cfg(feature = "envelope")]
mod envelope;
mod hooks;
mod hooks_random;
mod hooks_trace;
#[cfg(feature = "session")]
mod hooks_whole;
#[cfg(feature = "in-flight")]
mod in_flight;
#[cfg(feature = "full")]
mod placement;
#[cfg(feature = "session")]
mod session;
#[cfg(feature = "full")]
mod settings;
#[cfg(feature = "steering")]
mod steering;
#[cfg(feature = "stop")]
mod stop;
#[cfg(feature = "suspend")]
mod suspend;
